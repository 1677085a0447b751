"""FedMF as a baseline: the step rule of CoLR's released code with the sizes of each paper.

The papers that print FedMF as a baseline share no settings. FedRAP: dim 32, minibatches of 2048,
200 rounds. FedRecGEL: dim 32, minibatches of 256, one local epoch, 100 rounds, Adam. PFedCLR: dim
16, minibatches of 256, ten local epochs of Adam with rate .01, 60 % of the clients, 100 rounds.
None of Adam's runs can be repeated with plain steps. eta is .5 and gamma 5e-4, as in CoLR: on
FilmTrust the best on validation of its search range {.5, .1, .05, .01} and {5e-4, 1e-4}.
"""

from __future__ import annotations

from fedrec.algorithms import FedMFSettings
from fedrec.plan.schema import Plan
from fedrec.updates.settings import UpdateSettings
from fedrec_lab.papers.row import paper_plan, published_row

_SCORED = (
    "The papers score FedMF with a user's own copy of the item rows after local training; here "
    "the published rows are scored."
)


def _plan(
    *,
    dim: int = 32,
    rounds: int = 100,
    batch_size: int = 256,
    local_epochs: int = 1,
    every_rounds: int = 1,
    user_fraction: float = 1.0,
) -> Plan:
    return paper_plan(
        FedMFSettings(
            dim=dim,
            learning_rate=0.5,
            regularisation=5e-4,
            local_epochs=local_epochs,
            batch_size=batch_size,
        ),
        UpdateSettings(structure="dense", clip=8.0),
        rounds=rounds,
        every_rounds=every_rounds,
        user_fraction=user_fraction,
    )


ROWS = (
    published_row(
        "fedmf/ml-100k",
        (0.6505, 0.3840),
        "FedRAP, tables 3 and 4 (PLGC, table II, prints .6522 / .4063)",
        _plan(rounds=200, batch_size=2048),
        minutes=3,
        note=_SCORED,
    ),
    published_row(
        "fedmf/ml-100k/pfedclr",
        (0.4846, 0.2723),
        "PFedCLR, table 1",
        _plan(dim=16, local_epochs=10, user_fraction=0.6),
        minutes=5,
        note=f"Adam with rate .01 there. {_SCORED}",
    ),
    published_row(
        "fedmf/filmtrust",
        (0.6938, 0.4921),
        "FedRecGEL, table 2",
        _plan(),
        minutes=2,
        note=f"Adam there, and no validation items. {_SCORED}",
    ),
    published_row(
        "fedmf/filmtrust/pfedclr",
        (0.6507, 0.5171),
        "PFedCLR, table 1",
        _plan(dim=16, local_epochs=10, user_fraction=0.6),
        minutes=3,
        note=f"Adam with rate .01 there. {_SCORED}",
    ),
    published_row(
        "fedmf/amazon-video",
        (0.4557, 0.2602),
        "FedRecGEL, table 2",
        _plan(every_rounds=5),
        minutes=15,
        note=f"Adam there, and no validation items. {_SCORED}",
    ),
)
