"""PLGC around FedMF, FedNCF, PFedRec and FedRAP.

"A Model-agnostic Strategy to Mitigate Embedding Degradation in Personalized Federated
Recommendation" (Shen et al.).

The paper prints dim 32, minibatches of 2,048, ten local epochs, 100 rounds, all clients, SGD and an
exponential schedule. Which step sizes, decays and weights its grid search found is not printed.
"""

from __future__ import annotations

from typing import Any

from fedrec.algorithms import (
    FedMFSettings,
    FedNCFSettings,
    FedRAPSettings,
    PFedRecSettings,
    PLGCSettings,
)
from fedrec.algorithms.declarations import AlgorithmSettings
from fedrec.plan.schema import Plan
from fedrec.updates.settings import UpdateSettings
from fedrec_lab.papers.row import PublishedRow, paper_plan, published_row

_VISIT: dict[str, Any] = {"dim": 32, "local_epochs": 10, "batch_size": 2048}
_BASES: dict[str, AlgorithmSettings] = {
    "fedmf": FedMFSettings(**_VISIT, regularisation=0.0),
    "fedncf": FedNCFSettings(**_VISIT),
    "pfedrec": PFedRecSettings(**_VISIT),
    "fedrap": FedRAPSettings(**_VISIT, schedule="fixed"),
}
_UNPRINTED = (
    "The paper tuned step sizes, decay and both weights and prints none of them; here the steps of "
    "the base's own code, beta .5 (.1 with FedRAP), gamma .01 and a factor of .95 after every "
    "minibatch."
)


def _plan(base: str, **changes: Any) -> Plan:
    return paper_plan(
        PLGCSettings(base=_BASES[base], **changes),
        UpdateSettings(structure="dense", clip=256.0),
        rounds=100,
        every_rounds=5,
    )


def _row(base: str, hr: float, ndcg: float, minutes: float, **changes: Any) -> PublishedRow:
    return published_row(
        f"plgc/ml-100k/{base}",
        (hr, ndcg),
        "PLGC, table II",
        _plan(base, **changes),
        minutes=minutes,
        note=_UNPRINTED,
    )


ROWS = (
    _row("fedmf", 0.8629, 0.5736, 20),
    _row("fedncf", 0.8219, 0.5516, 25),
    _row("pfedrec", 0.8744, 0.5681, 20),
    _row("fedrap", 0.9981, 0.9317, 20, weight=0.1),
)
