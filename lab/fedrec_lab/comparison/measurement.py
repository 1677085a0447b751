"""What a method is asked to do, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrec.config.schema import Settings
from fedrec.data.catalogue import Catalogue
from fedrec.data.splits import UserSplit
from fedrec.evaluation.metrics import Protocol, Rates
from fedrec.planning.cell_rows import Cells, trained_items

__all__ = ["Measurement", "Stopped", "Task"]


class Stopped(Exception):
    """Somebody asked to stop, and what was reached is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a method reached under one protocol with one seed, on test.

    Attributes:
        method: a stable name, for programs.
        label: the method, for people.
        chosen: what validation chose, e.g. "round 9"; empty where there was no choice.
        note: what a reader has to know about it.
    """

    method: str
    label: str
    protocol: Protocol
    seed: int
    rates: Rates
    chosen: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Data, protocols and seeds for one method.

    Attributes:
        settings: of the run that the method stands beside.
        protocols: what one training of the method can be measured under.
        seeds: for a method that depends on none, all of them are measured with one fit, because
            drawn candidates depend on them.
        n_clients: parties among which a federation's users are divided.
        cells: the partition of these; see `simulate`.
        folder: a training that is interrupted leaves its checkpoint here; None keeps nothing.
        accept_other_arithmetic: whether a training that was interrupted goes on where training
            rounds otherwise.
        tell: called with a short text whenever something was reached.
        stop: asked now and then; a method that sees it true raises `Stopped`.
    """

    settings: Settings
    catalogue: Catalogue
    users: UserSplit
    protocols: tuple[Protocol, ...]
    seeds: tuple[int, ...]
    n_clients: int = 1
    cells: Cells = ()
    folder: Path | None = None
    accept_other_arithmetic: bool = False
    tell: Callable[[str], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False

    @property
    def active(self) -> NDArray[np.int64]:
        """Rows of the items that the federation recommends, ascending: enough users hold them."""
        plan, n_items = self.settings.plan, len(self.catalogue)
        kept = trained_items(plan, self.users, n_items, n_clients=self.n_clients, cells=self.cells)
        return np.nonzero(kept)[0].astype(np.int64)
