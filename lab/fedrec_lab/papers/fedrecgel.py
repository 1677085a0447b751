"""FedRecGEL (WWW 2026): full, and its two ablations.

The released code has one set of settings, FilmTrust's: f 32, both radii .02, a user's Adam at .1, a
tenth of the users in each of 100 rounds, chunks of 128. Best radii are printed as "mostly .02 to
.2", about .1 for Amazon-Video. No items are kept for validation there: the round with the best
HR@10 on the test items is printed.

The ablation that the paper leaves out, both radii 0, has no figure to be a row. Set
`algorithm.radius_shared` and `algorithm.radius_private` to 0 in a row to run it.
"""

from __future__ import annotations

from fedrec.algorithms import FedRecGELSettings
from fedrec.plan.schema import Plan
from fedrec.updates.settings import UpdateSettings
from fedrec_lab.papers.row import paper_plan, published_row


def _plan(*, shared: float, private: float, every_rounds: int = 1) -> Plan:
    return paper_plan(
        FedRecGELSettings(radius_shared=shared, radius_private=private),
        UpdateSettings(structure="dense"),
        rounds=100,
        every_rounds=every_rounds,
        user_fraction=0.1,
        counted=True,
    )


_CHOSEN = (
    "Mean of 5 runs, each at the round that was best on its test items; here the round is chosen "
    "on validation items. Its code draws training negatives as `sampled` does: compare that one."
)
_FILMTRUST = (
    f"{_CHOSEN} The data have no times: the paper's test items are random ones. Columns @5 and @10 "
    "there belong to different rounds: judge by @10. The paper leaves out both radii 0."
)

ROWS = (
    published_row(
        "fedrecgel/filmtrust",
        (0.9166, 0.8201),
        "FedRecGEL, table 2",
        _plan(shared=0.02, private=0.02),
        minutes=3,
        note=_FILMTRUST,
    ),
    published_row(
        "fedrecgel/filmtrust/without-non-shared",
        (0.9163, 0.7729),
        "FedRecGEL, table 3",
        _plan(shared=0.02, private=0.0),
        minutes=3,
        note=f"NDCG@10 is printed below NDCG@5 (.7954), which cannot be. {_FILMTRUST}",
    ),
    published_row(
        "fedrecgel/filmtrust/without-shared",
        (0.9158, 0.8172),
        "FedRecGEL, table 3",
        _plan(shared=0.0, private=0.02),
        minutes=3,
        note=_FILMTRUST,
    ),
    published_row(
        "fedrecgel/amazon-video",
        (0.6270, 0.4133),
        "FedRecGEL, table 2",
        _plan(shared=0.1, private=0.1, every_rounds=5),
        minutes=30,
        note=f"Radii of .1 are read off the paper's figures. {_CHOSEN}",
    ),
)
