"""FedNCF as a baseline; the papers that print it share no settings and no released code.

Network and rates are those with which GPFedRec measures FedNCF (the defaults of `fedncf`).
"""

from __future__ import annotations

from fedrec.algorithms import FedNCFSettings
from fedrec.updates.settings import UpdateSettings
from fedrec_lab.papers.row import paper_plan, published_row

_SPREAD = "Papers print HR@10 from .4252 to .6089 for this data set: no single figure is a target."

ROWS = (
    published_row(
        "fedncf/ml-100k",
        (0.6089, 0.3268),
        "FedRAP, tables 3 and 4 (PLGC, table II, prints .3768 for the same NDCG)",
        paper_plan(
            FedNCFSettings(),
            UpdateSettings(structure="dense", clip=64.0),
            rounds=200,
            every_rounds=5,
        ),
        minutes=1,
        note=f"Minibatches of 2048 there. {_SPREAD}",
    ),
    published_row(
        "fedncf/ml-100k/pfedclr",
        (0.4252, 0.2290),
        "PFedCLR, table 1",
        paper_plan(
            FedNCFSettings(dim=16),
            UpdateSettings(structure="dense", clip=64.0),
            rounds=100,
            every_rounds=5,
        ),
        minutes=1,
        note=f"Dim 16, as for every method of that paper. {_SPREAD}",
    ),
)
