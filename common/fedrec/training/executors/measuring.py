"""Measure a party's users: score them, and add up the metrics of their held-out items' ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import Algorithm, RoundStart
from fedrec.algorithms.cohort import Cohort, CohortTables
from fedrec.evaluation.metrics import RANK_FIELDS, Protocol, Split, rank_values
from fedrec.evaluation.protocols import Ranking
from fedrec.model.state import PrivateState
from fedrec.model.tables import table_bytes
from fedrec.training.device import DeviceTables

BYTES_PER_SCORE = 32
"""The memory for one user's score of an item during ranking: scores, their source and masks, and
those of the block before, while they are in use."""
_SECONDS_A_SCORE = 5e-9


def seconds_of_ranking(n_users: int, n_items: int) -> float:
    """Return the estimated time on one processor to rank users' held-out items of one split."""
    return n_users * n_items * _SECONDS_A_SCORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Score users on the active items.

    Attributes:
        start: the model.
        tables: the users' training items.
        private: their private tables, refreshed for the model. Those that aren't read may be
            missing.
    """

    algorithm: Algorithm
    start: RoundStart
    tables: CohortTables
    private: PrivateState
    on_device: DeviceTables

    def parts(
        self, rows: NDArray[np.int64], memory_bytes: int, *, n_columns: int = 0
    ) -> Iterator[NDArray[np.int64]]:
        """Cut user positions into parts whose scores fit the memory.

        Args:
            n_columns: the number of a user's scores that must fit, by default the active ones.
        """
        widths = self.private.widths()
        wanted = {name: widths[name] for name in self.algorithm.scoring if name in widths}
        # A user's own rows when they are read, when they move to the device, and a working copy.
        n_scores = max(n_columns or self.tables.n_items, 1)
        per_user = BYTES_PER_SCORE * n_scores + 3 * table_bytes(1, wanted)
        at_once = max(16, memory_bytes // per_user)
        for begin in range(0, len(rows), at_once):
            yield rows[begin : begin + at_once]

    def scores(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Return some users' scores of the active items, float32 (n_rows, n_active)."""
        own = self.on_device.rows(self.private, rows, self.algorithm.scoring)
        chunk = self.tables.chunk_of(rows, self.on_device.device)
        return self.algorithm.scores(chunk, self.start, own)


@dataclass(frozen=True, slots=True)
class Measures:
    """Choose the sums of ranks that measuring returns.

    Attributes:
        at: the K of HR@K.
    """

    protocols: tuple[Protocol, ...]
    splits: tuple[Split, ...]
    at: int

    def empty(self) -> NDArray[np.int64]:
        """Return sums of no users, int64 (n_protocols, n_splits, len(RANK_FIELDS))."""
        return np.zeros((len(self.protocols), len(self.splits), len(RANK_FIELDS)), np.int64)

    def of(
        self,
        scoring: Scoring,
        ranking: Ranking,
        rows: NDArray[np.int64],
        memory_bytes: int,
    ) -> NDArray[np.int64]:
        """Return the sums of some users in the form of `empty`."""
        found, active = self.empty(), scoring.start.active.cpu().numpy()
        for part in scoring.parts(rows, memory_bytes):
            scores = scoring.scores(part)
            for sums, protocol in zip(found, self.protocols, strict=True):
                for own, split in zip(sums, self.splits, strict=True):
                    ranks = ranking.ranks(scores, part, split, protocol, active)
                    own += rank_values(ranks, self.at).sum(0)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """The measuring of one model on one party's users.

    Attributes:
        cohort: the users that are scored.
        ranking: the same users' held-out items.
        memory_bytes: the memory for scores, under every executor.
    """

    scoring: Scoring
    cohort: Cohort
    ranking: Ranking
    measures: Measures
    memory_bytes: int

    @property
    def estimated_seconds(self) -> float:
        """The estimated time on one processor: 5 ns for ranking a score once."""
        n_ranked = len(self.measures.protocols) * len(self.measures.splits)
        return n_ranked * seconds_of_ranking(self.cohort.n_users, len(self.cohort.active))

    def run(self) -> NDArray[np.int64]:
        """Measure all users in this process."""
        rows = np.arange(self.cohort.n_users)
        return self.measures.of(self.scoring, self.ranking, rows, self.memory_bytes)
