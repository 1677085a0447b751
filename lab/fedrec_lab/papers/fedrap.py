"""FedRAP: "Federated Recommendation with Additive Personalization" (Li et al., ICLR 2024).

Dim 32, minibatches of 2048, at most 10 local epochs, 100 rounds of all clients. Step sizes and
weights were not printed. For MovieLens-100K the authors' logs have them (an issue of the released
code: lr_network .5, lr_args 200, weight decay 1e-4, lambda and mu .1); those of the other data
sets were lost. The released code runs every schedule as `fixed`.
"""

from __future__ import annotations

from typing import Literal

from fedrec.algorithms import FedRAPSettings
from fedrec.plan.schema import Plan
from fedrec.updates.settings import UpdateSettings
from fedrec_lab.papers.row import paper_plan, published_row


def _plan(
    schedule: Literal["tanh", "fixed"],
    tables: Literal["both", "shared", "private"] = "both",
    dim: int = 32,
    noise_where: Literal["none", "grad"] = "none",
) -> Plan:
    return paper_plan(
        FedRAPSettings(schedule=schedule, tables=tables, dim=dim, noise_where=noise_where),
        UpdateSettings(structure="dense", clip=16.0, fraction_bits=24),
        rounds=100,
    )


_AS_RELEASED = (
    "As released: constant weights, which is what the authors' code runs whatever schedule it is "
    "told, and what their log fits."
)
_ALIVE = "The schedule that the paper describes, really applied."
_UNPUBLISHED = (
    "Step sizes for this data set are not published; here those of the authors' log for "
    "MovieLens-100K."
)

ROWS = (
    published_row(
        "fedrap/ml-100k",
        (0.9709, 0.8781),
        "FedRAP, tables 3 and 4",
        _plan("fixed"),
        minutes=15,
        note=_AS_RELEASED,
    ),
    published_row(
        "fedrap/ml-100k/tanh",
        (0.9709, 0.8781),
        "FedRAP, tables 3 and 4",
        _plan("tanh"),
        minutes=15,
        note=_ALIVE,
    ),
    published_row(
        "fedrap/ml-100k/noise",
        (0.9364, 0.8015),
        "FedRAP, table 1",
        _plan("fixed", noise_where="grad"),
        minutes=120,
        note=f"{_AS_RELEASED} Noise on every gradient of C, as the experiments describe it; no "
        "code for it was released.",
    ),
    published_row(
        "fedrap/filmtrust",
        (0.9174, 0.7767),
        "FedRecGEL, table 2",
        _plan("fixed"),
        minutes=10,
        note=f"{_AS_RELEASED} {_UNPUBLISHED} Tuned by the authors of FedRecGEL, who keep no "
        "validation items.",
    ),
    published_row(
        "fedrap/filmtrust/pfedclr",
        (0.6826, 0.4628),
        "PFedCLR, table 1",
        _plan("fixed", dim=16),
        minutes=10,
        note=f"{_AS_RELEASED} {_UNPUBLISHED} That paper takes dim 16 for every method.",
    ),
)
