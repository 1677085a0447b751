"""CoLR, SCoLR and their baselines on MovieLens-1M.

"Towards Efficient Communication and Secure Federated Recommendation System via Low-rank Training".
Settings of the paper and of the released configuration: dim 64, 1 % of the users in a round, 1000
rounds, two local epochs, minibatches of 256, eta .5, gamma 5e-4 (with derivative 2 gamma, on
touched rows). The figures' values were read off the images, to +-.003; those of SCoLR are printed.
"""

from __future__ import annotations

from fedrec.algorithms import FedMFSettings
from fedrec.updates.settings import UpdateSettings
from fedrec_lab.papers.row import PublishedRow, paper_plan, published_row

_DIM = 64
_MINUTES = {"dense": 6.0, "colr": 6.0, "scolr": 6.0, "svd": 35.0, "topk": 25.0}
_NOTE = (
    "The paper reports the last of 1000 rounds, here the best on validation of every 50th. Its "
    "training negatives exclude the test item and its 99 candidates alike, which does not leak; "
    "`sampled` is nearer to that than `paper`. It draws exactly 1 % of the users in a round, here "
    "each takes part with probability .01."
)

_PRINTED = {
    "dense": {
        64: (0.649, 0.375),
        32: (0.623, 0.355),
        16: (0.580, 0.324),
        8: (0.508, 0.279),
        4: (0.442, 0.243),
        2: (0.436, 0.240),
        1: (0.426, 0.234),
    },
    "colr": {
        32: (0.644, 0.373),
        16: (0.635, 0.366),
        8: (0.624, 0.358),
        4: (0.606, 0.345),
        2: (0.593, 0.333),
        1: (0.573, 0.320),
    },
    "svd": {
        32: (0.646, 0.376),
        16: (0.639, 0.370),
        8: (0.627, 0.360),
        4: (0.613, 0.347),
        2: (0.579, 0.325),
        1: (0.524, 0.291),
    },
    "topk": {
        32: (0.635, 0.367),
        16: (0.615, 0.350),
        8: (0.571, 0.318),
        4: (0.512, 0.281),
        2: (0.460, 0.245),
        1: (0.443, 0.234),
    },
    "scolr": {
        64: (0.6386, 0.3704),
        32: (0.6329, 0.3634),
        16: (0.6206, 0.3563),
        8: (0.6102, 0.3477),
        4: (0.5987, 0.3389),
        2: (0.5784, 0.3258),
    },
}
_SOURCES = {
    "dense": "figure 3",
    "colr": "figure 3",
    "svd": "figure 4",
    "topk": "figure 4",
    "scolr": "table 4",
}


def _row(structure: str, number: int, figures: tuple[float, float]) -> PublishedRow:
    """Return the row of a structure and its rank, of its values kept, or of the dimension."""
    name, dim, note = f"{structure}/ml-1m/rank-{number}", _DIM, _NOTE
    chosen: dict[str, object] = {"rank": number}
    if structure == "dense":
        name, dim, chosen = f"fedmf/ml-1m/dim-{number}", number, {}
    elif structure == "topk":
        name, chosen = f"topk/ml-1m/{number}-of-{_DIM}", {"ratio": number / _DIM}
    elif structure == "scolr":
        note = f"The normaliser, which the paper leaves open, counts users by item. {_NOTE}"
    return published_row(
        name,
        figures,
        f"CoLR, {_SOURCES[structure]}",
        paper_plan(
            FedMFSettings(
                dim=dim, learning_rate=0.5, regularisation=5e-4, local_epochs=2, batch_size=256
            ),
            UpdateSettings.model_validate({"structure": structure, "clip": 4.0, **chosen}),
            rounds=1000,
            every_rounds=50,
            user_fraction=0.01,
        ),
        minutes=_MINUTES[structure],
        note=note,
    )


ROWS = tuple(
    _row(structure, number, figures)
    for structure, printed in _PRINTED.items()
    for number, figures in printed.items()
)
