"""Prints peak memory before and after a federation with large private tables.

Run by `test_tables.py` with a folder and a number of workers. Three numbers on stdout: bytes
before, bytes after, bytes of the tables. Of workers it is the largest one's peak.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np

from fedrec.data import Catalogue, UserSplit
from fedrec.ids import UserId
from fedrec.settings.schema import Settings
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.simulation import simulate

HELD = 6


def federation(n_users: int, n_items: int) -> tuple[UserSplit, Catalogue]:
    """Return users with items of their own neighbourhood."""
    held = (np.arange(n_users)[:, None] + 7 * np.arange(HELD + 2)) % n_items
    users = UserSplit(
        user_ids=tuple(UserId(f"u{number:05d}") for number in range(n_users)),
        train_indptr=np.arange(n_users + 1) * HELD,
        train_items=np.sort(held[:, :HELD], axis=1).reshape(-1),
        validation_items=held[:, HELD],
        test_items=held[:, HELD + 1],
    )
    return users, Catalogue.of([f"i{number:05d}" for number in range(n_items)])


def peak(who: int) -> int:
    """Return the most memory that was resident so far, in bytes."""
    return resource.getrusage(who).ru_maxrss << 10


def run(n_users: int, n_items: int, folder: Path, workers: int) -> int:
    """Count, train and measure, stop, train again; return the size of the personal tables."""
    users, catalogue = federation(n_users, n_items)
    alone = {"name": "pfedrec", "dim": 16, "item_rate_scale": 0.01}
    settings = Settings.model_validate(
        {
            "federation": {"minimum_item_users": 1},
            "algorithm": alone if workers == 1 else {"name": "fedrap", "local_epochs": 1},
            "update": {"structure": "dense", "clip": 256.0},
            "protection": {"name": "none"},
            "rounds": {"total": 2},
            "evaluation": {"every_rounds": 2},
            "client": {"device": "cpu", "memory_mib": 64, "workers": workers},
        }
    )
    seen: list[RoundReport] = []
    for resume in (False, True):
        result = simulate(
            settings,
            users=users,
            catalogue=catalogue,
            folder=folder,
            resume=resume,
            on_round=seen.append,
            stop=lambda: len(seen) >= 2,
        )
    result.recommender().save(folder)
    return sum(table.nbytes for table in result.last.private.tensors.values())


if __name__ == "__main__":
    place, n_workers = Path(sys.argv[1]), int(sys.argv[2])
    whose = resource.RUSAGE_SELF if n_workers == 1 else resource.RUSAGE_CHILDREN
    (place / "small").mkdir()
    # Imports and compiled code are no part of what is measured.
    run(40, 40, place / "small", n_workers)
    before = peak(whose)
    (place / "large").mkdir()
    table = run(*((8_000, 8_000) if n_workers == 1 else (600, 4_000)), place / "large", n_workers)
    print(before, peak(whose), table)
