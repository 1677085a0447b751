"""What operators are shown of published rounds: the model's quality, and what counted of whom.

Read from the store once, and followed from there: nothing is decided by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrec.evaluation.metrics import METRIC_NAMES, MetricSums, Rates
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
    """What sums over all clients' users say.

    Attributes:
        round: the last published round that ranked held-out items; before the first such round
            the last one that trained; 0 before that.
        loss: of the last round that trained.
        validation, test: of the last round that ranked such items.
        untrained: what the untrained model gets on test; only the last round measures it.
    """

    round: RoundId = NO_ROUND
    loss: float | None = None
    validation: Rates | None = None
    test: Rates | None = None
    untrained: Rates | None = None

    def after(self, round_id: RoundId, values: Iterable[int]) -> ModelQuality:
        """Return what is known once a further round's metric sums are."""
        given = np.array(list(values), dtype=np.int64)
        if len(given) != len(METRIC_NAMES):
            return self
        sums = MetricSums(given)
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
        """Return the numbers that operators are shown, by name."""
        validation, test = self.validation, self.test
        return {
            "loss": self.loss,
            "validation_hr": None if validation is None else validation.hr,
            "validation_ndcg": None if validation is None else validation.ndcg,
            "test_hr": None if test is None else test.hr,
            "test_ndcg": None if test is None else test.ndcg,
        }


class LatestQuality:
    """Remembers the newest of everything that rounds measured."""

    def __init__(self) -> None:
        self.quality = ModelQuality()

    def read(self, store: Store) -> None:
        """Take what the journal knows, from its end as far back as it takes; in the store's thread.

        A round of every kind that measures is among the newest entries, so that a long run's
        journal is not read to its beginning.
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
        """Take what was just committed."""
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
    """What published rounds counted of a client."""

    round: RoundId = NO_ROUND
    n_bytes: int = 0


class CountedUpdates:
    """What published rounds counted of each client."""

    def __init__(self) -> None:
        self._found: dict[ClientId, CountedSoFar] = {}

    def read(self, store: Store) -> None:
        """Take what the store has; in the store's thread."""
        self._found = {
            client_id: CountedSoFar(round=last, n_bytes=n_bytes)
            for client_id, (last, n_bytes) in store.counted_by_client().items()
        }

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Take what was just published."""
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
        """Return what was counted of a client."""
        return self._found.get(client_id, CountedSoFar())
