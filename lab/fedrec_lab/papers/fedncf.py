"""FedNCF as a baseline; the papers that print it share no settings and no released code.

Network and rates are those with which GPFedRec measures FedNCF (the defaults of `fedncf`).
"""

from __future__ import annotations

from fedrec.algorithms import FedNCFSettings
from fedrec.config.schema import UpdateSettings
from fedrec_lab.papers.row import PublishedRow, paper_plan

__all__ = ["ROWS"]

_SPREAD = "Papers print HR@10 from .4252 to .6089 for this data set: no single figure is a target."

ROWS = (
    PublishedRow(
        name="fedncf/ml-100k",
        dataset="ml-100k",
        hr=0.6089,
        ndcg=0.3268,
        source="FedRAP, tables 3 and 4 (PLGC, table II, prints .3768 for the same NDCG)",
        note=f"Minibatches of 2048 there. {_SPREAD}",
        plan=paper_plan(
            FedNCFSettings(),
            UpdateSettings(structure="dense", clip=64.0),
            rounds=200,
            every_rounds=5,
        ),
        minutes=1,
    ),
    PublishedRow(
        name="fedncf/ml-100k/pfedclr",
        dataset="ml-100k",
        hr=0.4252,
        ndcg=0.2290,
        source="PFedCLR, table 1",
        note=f"Dim 16, as for every method of that paper. {_SPREAD}",
        plan=paper_plan(
            FedNCFSettings(dim=16),
            UpdateSettings(structure="dense", clip=64.0),
            rounds=100,
            every_rounds=5,
        ),
        minutes=1,
    ),
)
