"""What the page knows of a run's past: a point for each round, and the last of what happened."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedrec.ids import RoundId
from fedrec_server.run.model_quality import Quality
from fedrec_server.store.store import Entry

__all__ = ["KEPT_EVENTS", "Happening", "News", "RoundPoint", "RunHistory"]

KEPT_EVENTS = 300
_UPDATE = "update counted"
"""One for each client and round: the page counts them, and lists none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPoint:
    """A published round.

    Attributes:
        sequence: the number of the last event that said anything of it.
        counted: updates in its sum.
        bytes_received: of all updates together.
        bytes_published: of the sum.
        loss, validation_hr, validation_ndcg, test_hr, test_ndcg: what it measured; None for what
            it did not.
    """

    sequence: int
    round: int
    kind: str
    unix_seconds: float
    counted: int
    bytes_received: int
    bytes_published: int
    seconds: float
    loss: float | None = None
    validation_hr: float | None = None
    validation_ndcg: float | None = None
    test_hr: float | None = None
    test_ndcg: float | None = None

    def measuring(self, sequence: int, metrics: list[int]) -> RoundPoint:
        """Return the round with what its sums of metrics say."""
        found = Quality().after(RoundId(self.round), metrics)
        validation, test = found.validation, found.test
        return replace(
            self,
            sequence=sequence,
            loss=found.loss,
            validation_hr=None if validation is None else validation.hr,
            validation_ndcg=None if validation is None else validation.ndcg,
            test_hr=None if test is None else test.hr,
            test_ndcg=None if test is None else test.ndcg,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """A line of the journal, without its sums of metrics.

    Attributes:
        fields: the event's own.
    """

    sequence: int
    unix_seconds: float
    kind: str
    round: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What happened after some event.

    Attributes:
        whole: whether it is everything that is known, in place of what a page had.
        last: the number of the last event.
    """

    whole: bool
    last: int
    rounds: tuple[RoundPoint, ...]
    events: tuple[Happening, ...]

    def to_json(self) -> str:
        """Return the rounds and events as a JSON object."""
        return json.dumps(
            {
                "rounds": [asdict(point) for point in self.rounds],
                "events": [asdict(event) for event in self.events],
            }
        )


class RunHistory:
    """Put together from the journal, entry by entry."""

    def __init__(self) -> None:
        self.last = 0
        self._forgotten = 0
        self._rounds: dict[int, RoundPoint] = {}
        self._events: deque[Happening] = deque()

    def take(self, entry: Entry) -> None:
        """Note the next entry of the journal."""
        self.last = entry.sequence
        if entry.kind == _UPDATE:
            return
        fields = json.loads(entry.fields_json)
        metrics = fields.pop("metrics", None)
        if entry.kind == "round published":
            # In a damaged row the name of a field may be another.
            with suppress(KeyError):
                self._rounds[entry.round] = RoundPoint(
                    sequence=entry.sequence,
                    round=entry.round,
                    kind=fields["kind"],
                    unix_seconds=entry.unix_seconds,
                    counted=fields["counted"],
                    bytes_received=fields["bytes_received"],
                    bytes_published=fields["bytes_published"],
                    seconds=fields["seconds"],
                )
        if metrics and entry.round in self._rounds:
            self._rounds[entry.round] = self._rounds[entry.round].measuring(self.last, metrics)
        self._events.append(
            Happening(
                sequence=entry.sequence,
                unix_seconds=entry.unix_seconds,
                kind=entry.kind,
                round=entry.round,
                fields=fields,
            )
        )
        if len(self._events) > KEPT_EVENTS:
            self._forgotten = self._events.popleft().sequence

    def since(self, sequence: int) -> News:
        """Return what came after an event, or everything where events in between are forgotten.

        Args:
            sequence: the last event that a page has; below 0 for a page that has nothing, and
                above the last one where the run's folder is older than the page.
        """
        whole = not self._forgotten <= sequence <= self.last
        after = -1 if whole else sequence
        return News(
            whole=whole,
            last=self.last,
            rounds=tuple(p for p in self._rounds.values() if p.sequence > after),
            events=tuple(e for e in self._events if e.sequence > after),
        )
