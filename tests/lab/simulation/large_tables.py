"""A federation whose private tables lie in files of four users each, and its end by force.

Run by `test_large_tables.py`: FOLDER WHERE NUMBER kills this process at a call of a function.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from fedrec.data import generate, leave_one_out
from fedrec.model import blocked_table, tables
from fedrec.model.block_folder import BlockFolder
from fedrec.model.tables import TableRoom
from fedrec.settings.schema import Settings
from fedrec_lab.simulation import checkpoint, simulate
from fedrec_lab.simulation.result import SimulationResult

N_USERS, N_ITEMS, DIM = 61, 40, 4
USERS_A_BLOCK = 4
TABLE_BYTES = 4 * N_USERS * (N_ITEMS * DIM + DIM + 1)


def settings(**rounds: object) -> Settings:
    """Return the settings: FedRAP, six rounds of 70 % of the users."""
    return Settings.model_validate(
        {
            "federation": {"minimum_item_users": 1, "maximum_users": 64},
            "algorithm": {"name": "fedrap", "dim": DIM, "local_epochs": 1},
            "update": {"structure": "dense", "clip": 64.0},
            "protection": {"name": "none"},
            "rounds": {"total": 6, "recompute_limit": 16, "user_fraction": 0.7} | rounds,
            "client": {"device": "cpu"},
        }
    )


@contextmanager
def small_blocks() -> Iterator[None]:
    """Have tables lie in files, however small."""
    size = USERS_A_BLOCK * 4 * N_ITEMS * DIM
    with (
        patch.object(TableRoom, "is_enough_for", lambda self, n_users, widths: False),
        patch.object(blocked_table, "BLOCK_BYTES", size),
    ):
        yield


def run(
    folder: Path | None,
    *,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    **rounds: object,
) -> SimulationResult:
    """Run the federation, or go on with it."""
    data = generate(n_users=N_USERS, n_items=N_ITEMS, n_clusters=3, interactions_per_user=9, seed=8)
    users = leave_one_out(data.interactions, data.catalogue)
    return simulate(
        settings(**rounds),
        users=users,
        catalogue=data.catalogue,
        folder=folder,
        resume=resume,
        stop=stop,
    )


def die_at(where: str, number: int) -> None:
    """End this process at the so-and-so-many-th call of a function, before it does anything."""
    owner, name = {
        "rows written": (tables.BlockWriter, "write_block"),
        "block named": (BlockFolder, "take_in"),
        "checkpoint": (checkpoint, "write_whole"),
        "sweep": (BlockFolder, "keep"),
    }[where]
    original, calls = getattr(owner, name), [0]

    def dying(*args: object, **named: object) -> object:
        calls[0] += 1
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **named)

    setattr(owner, name, dying)


if __name__ == "__main__":
    die_at(sys.argv[2], int(sys.argv[3]))
    with small_blocks():
        run(Path(sys.argv[1]))
