"""Prints this process's peak memory before and after a federation with large private tables.

Run by `test_tables.py`; three numbers on stdout: bytes before, bytes after, bytes of the table.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np

from fedrec.config.schema import Settings
from fedrec.data import Catalogue, UserSplit
from fedrec.ids import UserId
from fedrec.reports.round_report import RoundReport
from fedrec.simulation import simulate

N_USERS = N_ITEMS = 8_000
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


def peak() -> int:
    """Return the most memory that was resident so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def run(n_users: int, n_items: int, folder: Path) -> int:
    """Count, train and measure, stop, train again; return the size of the personal table."""
    users, catalogue = federation(n_users, n_items)
    settings = Settings.model_validate(
        {
            "federation": {"minimum_item_users": 1},
            "algorithm": {"name": "pfedrec", "dim": 16, "item_rate_scale": 0.01},
            "update": {"structure": "dense", "clip": 256.0},
            "protection": {"name": "none"},
            "rounds": {"total": 2},
            "evaluation": {"every_rounds": 2},
            "client": {"device": "cpu", "memory_mib": 64},
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
    return result.last.private.tensors["personal_scores"].nbytes


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "small").mkdir()
    # Imports and compiled code are no part of what is measured.
    run(40, 40, place / "small")
    before = peak()
    (place / "large").mkdir()
    table = run(N_USERS, N_ITEMS, place / "large")
    print(before, peak(), table)
