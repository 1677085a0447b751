"""Published rows of methods whose server makes a model for each user."""

from __future__ import annotations

from typing import Literal

from fedrec.algorithms import (
    CoFedRecSettings,
    GPFedRecSettings,
    PerFedRecSettings,
    PFedGraphSettings,
)
from fedrec.updates.update import UpdateSettings
from fedrec_lab.papers.personalised import LEAK, TUNED
from fedrec_lab.papers.row import PublishedRow, paper_plan, published_row

_CORRECTED = "Neighbours are the most similar users, as the paper describes."
_DISTANCE = (
    "As released: the code takes distances as similarities, so neighbours are the users that "
    "differ most."
)


def _gpfedrec_row(
    name: str,
    figures: tuple[float, float],
    source: str,
    minutes: float,
    *,
    similarity: Literal["cosine", "distance"] = "cosine",
    dim: int = 32,
    clip: float = 256.0,
    note: str = "",
) -> PublishedRow:
    return published_row(
        f"gpfedrec/{name}",
        figures,
        source,
        paper_plan(
            GPFedRecSettings(dim=dim, similarity=similarity),
            UpdateSettings(structure="dense", clip=clip),
            rounds=100,
            every_rounds=5,
        ),
        minutes=minutes,
        note=f"{_CORRECTED if similarity == 'cosine' else _DISTANCE} {note}".rstrip(),
    )


_GPFEDREC = (0.7285, 0.4377)

GPFEDREC = (
    _gpfedrec_row("ml-100k", _GPFEDREC, "PLGC, table II", 20),
    _gpfedrec_row("ml-100k/distance", _GPFEDREC, "PLGC, table II", 20, similarity="distance"),
    _gpfedrec_row(
        "ml-100k/pfedclr",
        (0.6840, 0.3982),
        "PFedCLR, table 1",
        15,
        dim=16,
        note="Dim 16, as for every method of that paper.",
    ),
    _gpfedrec_row("filmtrust", (0.7857, 0.6407), "FedRecGEL, table 2", 15, clip=1024.0, note=TUNED),
)
"""GPFedRec: "GPFedRec: Graph-Guided Personalization for Federated Recommendation" (Zhang et al.).

The released code has one set of settings: dim 32, eta .1, lr_eta 80, weight 1 of the distance to
the received table, threshold 1, one layer, minibatches of 256, one local epoch, 100 rounds, all
clients. The figures are those that later papers measured. Which of the two readings they ran is
unknown, so both are here.
"""


_GIVEN_HERE = "{paper} tuned this baseline and prints none of its settings. {choice}"
_RELEASED_SIGN = "As released: tables are pushed away from the mixture that users receive."

_RELEASED_LAYERS = "As released: every layer convolves the first vector."


def _perfedrec_row(
    name: str,
    figures: tuple[float, float],
    source: str,
    minutes: float,
    convolution: Literal["from_previous", "from_first"] = "from_previous",
) -> PublishedRow:
    note = _GIVEN_HERE.format(paper=source.split(",")[0], choice="Here Adam has the rate .01.")
    return published_row(
        f"perfedrec/{name}",
        figures,
        source,
        paper_plan(
            PerFedRecSettings(convolution=convolution),
            UpdateSettings(structure="dense"),
            rounds=100,
            every_rounds=5,
        ),
        minutes=minutes,
        note=f"{note} {_RELEASED_LAYERS if convolution == 'from_first' else ''}".rstrip(),
    )


_PERFEDREC = (0.6119, 0.4409)

PERFEDREC = (
    _perfedrec_row("ml-100k", _PERFEDREC, "PLGC, table II", 20),
    _perfedrec_row("ml-100k/released", _PERFEDREC, "PLGC, table II", 20, "from_first"),
    _perfedrec_row("filmtrust", (0.9052, 0.7695), "FedRecGEL, table 2", 15),
)
"""PerFedRec (Luo et al., CIKM 2022), as later papers measured it.

The released code runs MovieLens-1M alone: dim 64, Adam with the rate 1e-4, 128 users in each of 400
rounds, five clusters.
"""

COFEDREC = (
    published_row(
        "cofedrec/filmtrust",
        (0.8126, 0.6729),
        "FedRecGEL, table 2",
        paper_plan(
            CoFedRecSettings(),
            UpdateSettings(structure="dense", clip=1024.0),
            rounds=100,
            every_rounds=5,
        ),
        minutes=15,
        note=_GIVEN_HERE.format(
            paper="FedRecGEL", choice="Here they are those of a third party for MovieLens-100K."
        ),
    ),
)
"""CoFedRec (He et al., WWW 2024), as FedRecGEL measured it. The official code was not available."""


def _pfedgraph_row(
    name: str, figures: tuple[float, float], *, sign: Literal["paper", "released"] = "paper"
) -> PublishedRow:
    return published_row(
        f"pfedgraph/{name}",
        figures,
        "PFedCLR, table 1",
        paper_plan(
            PFedGraphSettings(sign=sign),
            UpdateSettings(structure="dense"),
            rounds=100,
            every_rounds=5,
            user_fraction=0.1,
            counted=True,
        ),
        minutes=3,
        note=f"{LEAK} {_RELEASED_SIGN if sign == 'released' else ''}".rstrip(),
    )


PFEDGRAPH = (
    _pfedgraph_row("ml-100k", (0.6204, 0.4937)),
    _pfedgraph_row("ml-100k/released", (0.6204, 0.4937), sign="released"),
    _pfedgraph_row("filmtrust", (0.6956, 0.4982)),
)
"""pFedGraph (Ye et al., ICML 2023), as PFedCLR measured it.

Dim 16, Adam with the rate .01, ten passes of minibatches of 256, alpha .8 and lambda .01. A tenth
of the users is in each of 100 rounds.
"""
