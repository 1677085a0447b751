"""Figures of published rounds for operators: model quality, and each client's counted updates.

They are read from the store once and then follow it. No decision depends on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrec.evaluation.metrics import MetricSums, Rates
from fedrec.ids import ClientId, RoundId
from fedrec_server.rounds.changes import (
    CellsPaused,
    Change,
    RoundLearnt,
    RoundMeasured,
    RoundPublished,
)
from fedrec_server.rounds.state import NO_ROUND, State
from fedrec_server.store.store import Store

_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuality:
    """The metrics of the sums over all clients' users.

    Attributes:
        round: the last published round that ranked held-out items. Before the first such round, the
            last one that trained, or 0.
        loss: the loss of the last round that trained.
        validation, test: the metrics of the last round that ranked such items.
        untrained: the untrained model's metrics on test. Only the last round measures them.
    """

    round: RoundId = NO_ROUND
    loss: float | None = None
    validation: Rates | None = None
    test: Rates | None = None
    untrained: Rates | None = None

    def after(self, round_id: RoundId, values: Iterable[int]) -> ModelQuality:
        """Return the quality after the metric sums of one more round."""
        sums = MetricSums.of_event(values)
        if sums is None:
            return self
        validation, test = (sums.rates("model", split) for split in ("validation", "test"))
        ranks = validation is not None or test is not None
        ranked = self.validation is not None or self.test is not None
        return replace(
            self,
            round=round_id if ranks or (sums.loss is not None and not ranked) else self.round,
            loss=self.loss if sums.loss is None else sums.loss,
            validation=validation or self.validation,
            test=test or self.test,
            untrained=sums.rates("untrained", "test") or self.untrained,
        )

    def figures(self) -> dict[str, Any]:
        """Return the figures for operators, by name."""
        validation, test = self.validation, self.test
        return {
            "loss": self.loss,
            "validation_hr": None if validation is None else validation.hr,
            "validation_ndcg": None if validation is None else validation.ndcg,
            "test_hr": None if test is None else test.hr,
            "test_ndcg": None if test is None else test.ndcg,
        }


class LatestQuality:
    """Remembers the newest value of everything that rounds measured."""

    def __init__(self) -> None:
        self.quality = ModelQuality()

    def read(self, store: Store) -> None:
        """Read the journal from its end, as far back as needed. Runs in the store's thread.

        The newest entries include a round of every measuring kind, so even a long run's journal is
        not read to its beginning.
        """
        before = store.last_entry()
        newest: list[tuple[RoundId, list[int]]] = []
        found = ModelQuality()
        while before > 0 and (found.validation is None or found.loss is None):
            first = max(0, before - _PAGE)
            for entry in reversed(store.entries(first, before - first)):
                values = json.loads(entry.fields_json).get("metrics")
                if values:
                    newest.insert(0, (RoundId(entry.round), values))
            found = ModelQuality()
            for round_id, measured in newest:
                found = found.after(round_id, measured)
            before = first
        self.quality = found

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Follow committed changes."""
        for change in changes:
            if isinstance(change, RoundPublished):
                self._take(change.round, change.metrics)
            elif isinstance(change, RoundLearnt):
                self._take(change.statement.round, change.statement.metrics)
            elif isinstance(change, RoundMeasured) and change.agreed is not None:
                self._take(change.round, change.agreed.metrics)

    def _take(self, round_id: RoundId, metrics: bytes) -> None:
        values = np.frombuffer(metrics[: len(metrics) // 8 * 8], dtype="<i8")
        self.quality = self.quality.after(round_id, map(int, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSoFar:
    """The counted updates of one client in published rounds."""

    round: RoundId = NO_ROUND
    n_bytes: int = 0


class CountedUpdates:
    """The counted updates of each client in published rounds."""

    def __init__(self) -> None:
        self._found: dict[ClientId, CountedSoFar] = {}

    def read(self, store: Store) -> None:
        """Read the store. Runs in the store's thread."""
        self._found = {
            client_id: CountedSoFar(round=last, n_bytes=n_bytes)
            for client_id, (last, n_bytes) in store.counted_by_client().items()
        }

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Follow published rounds."""
        published = any(isinstance(change, RoundPublished) for change in changes)
        if not published or before.current is None:
            return
        paused = (change.left_out for change in changes if isinstance(change, CellsPaused))
        left_out = frozenset[ClientId]().union(*paused)
        for client_id, header in before.current.accepted.items():
            if client_id not in left_out:
                n_bytes = self.of(client_id).n_bytes + header.length
                self._found[client_id] = CountedSoFar(round=header.round, n_bytes=n_bytes)

    def of(self, client_id: ClientId) -> CountedSoFar:
        """Return a client's counted updates."""
        return self._found.get(client_id, CountedSoFar())
