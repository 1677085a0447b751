"""The messages to a browser: the run's history once, then each change."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedrec.errors import FedrecError
from fedrec.ids import RoundId
from fedrec.plan.cautions import explained, marked
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.privacy import trust_statement
from fedrec.plan.schema import Plan
from fedrec.wire.admin_link import RunEvent, RunStatus
from fedrec_server.engine import Engine
from fedrec_server.run.figures import ModelQuality
from fedrec_server.run.work import Waiters
from fedrec_server.run_status import status_of
from fedrec_server.store.store import Entry

KEPT_EVENTS = 300
_UPDATE = "update counted"
"""Events that occur for every client and round. The page counts but does not list them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPoint:
    """A published round.

    Attributes:
        sequence: the number of the last event about it.
        counted: updates in its sum.
        bytes_received: bytes of all updates together.
        bytes_published: bytes of the sum.
        loss, validation_hr, validation_ndcg, test_hr, test_ndcg: its metrics, or None if they were
            not measured.
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
        """Return the round with the rates of its metric sums."""
        found = ModelQuality().after(RoundId(self.round), metrics)
        return replace(self, sequence=sequence, **found.figures())


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """The changes after an event.

    Attributes:
        whole: whether it replaces all that a page had.
        last: the number of the last event.
        events: the events, without their metric sums.
    """

    whole: bool
    last: int
    rounds: tuple[RoundPoint, ...]
    events: tuple[RunEvent, ...]

    def to_json(self) -> str:
        """Return the rounds and events as a JSON object."""
        return json.dumps(
            {
                "rounds": [asdict(point) for point in self.rounds],
                "events": [asdict(event) for event in self.events],
            }
        )


class RunHistory:
    """The history of a run, built from the journal entry by entry."""

    def __init__(self) -> None:
        self.last = 0
        self._forgotten = 0
        self._rounds: dict[int, RoundPoint] = {}
        self._events: deque[RunEvent] = deque()

    def take(self, entry: Entry) -> None:
        """Add the next entry of the journal."""
        self.last = entry.sequence
        if entry.kind == _UPDATE:
            return
        fields = json.loads(entry.fields_json)
        metrics = fields.pop("metrics", None)
        if entry.kind == "round published":
            # In a damaged row, even the name of a field may be wrong.
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
            RunEvent(
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
        """Return the changes after an event, or everything if events in between were dropped.

        Args:
            sequence: the last event that a page has. It is below 0 for a page without events, and
                above the last one if the run's folder is older than the page.
        """
        whole = not self._forgotten <= sequence <= self.last
        after = -1 if whole else sequence
        return News(
            whole=whole,
            last=self.last,
            rounds=tuple(p for p in self._rounds.values() if p.sequence > after),
            events=tuple(e for e in self._events if e.sequence > after),
        )


PAGE = 500
IDLE_SECONDS = 1.0
"""How often to look for changes without an event, such as awaited clients and the time left."""
PAUSE_SECONDS = 0.2
"""The time between two looks at the journal, and between two messages to a browser.
"""
RETRY_MILLISECONDS = 1000
_WATCH_SECONDS = 300.0


class Feed:
    """Follow a run and send its changes to browsers.

    Args:
        engine: the run.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._history = RunHistory()
        self._news: Waiters[str] = Waiters()
        self._n_streams = 0
        self._closed = False
        self._has_read = asyncio.Event()

    @property
    def n_streams(self) -> int:
        """The number of connected browsers."""
        return self._n_streams

    async def follow(self) -> None:
        """Follow the journal until `close`."""
        run = self._engine.run
        with run.watchers.listening("page") as news:
            while not self._closed:
                news.forget()
                pause, entries = _WATCH_SECONDS, []
                try:
                    entries = await run.work.in_thread(run.store.entries, self._history.last, PAGE)
                except FedrecError:
                    # The store may be full or busy. The next look reads the rest.
                    pause = IDLE_SECONDS
                for entry in entries:
                    self._history.take(entry)
                if len(entries) == PAGE:
                    continue
                self._has_read.set()
                self._news.wake_all()
                await asyncio.sleep(PAUSE_SECONDS)
                if not run.stopping:
                    await news.wait(pause)

    def close(self) -> None:
        """Stop all streams."""
        self._closed = True
        self._has_read.set()
        self._news.wake_all()

    async def stream(self, last_id: str) -> AsyncGenerator[bytes, None]:
        """Yield messages for one browser until `close`. There is at least one a second.

        Args:
            last_id: the id of its last message, or empty.
        """
        self._n_streams += 1
        try:
            seen = self._position(last_id)
            yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
            yield _message("about", json.dumps(_about(self._engine.run.federation.plan)))
            # A coordinator that has just restarted would seem to have no history.
            await self._has_read.wait()
            with self._news.listening("browsers") as more:
                while not self._closed:
                    more.forget()
                    news = self._history.since(seen)
                    if news.whole or news.rounds or news.events:
                        yield self._message_of(news)
                    seen = news.last
                    yield _message("status", json.dumps(self._status()))
                    await asyncio.sleep(PAUSE_SECONDS)
                    await more.wait(IDLE_SECONDS)
        finally:
            self._n_streams -= 1

    def _message_of(self, news: News) -> bytes:
        kind = "history" if news.whole else "news"
        return _message(kind, news.to_json(), f"{self._engine.run.name}:{news.last}")

    def _position(self, last_id: str) -> int:
        """Return the last event of this run that a browser knows, or -1."""
        run, _, number = last_id.rpartition(":")
        known = run == self._engine.run.name and number.isascii() and number.isdecimal()
        return int(number) if known and len(number) < 19 else -1

    def _status(self) -> dict[str, Any]:
        engine = self._engine
        found = RunStatus.of(status_of(engine, last_event=self._history.last))
        return {
            **asdict(found),
            "under": marked(found.protocol, found.caution),
            "under_words": explained(found.protocol, found.caution),
            "noisy_sums": engine.run.state.charged,
        }


def _about(plan: Plan) -> dict[str, Any]:
    """Return the facts that do not change during a run."""
    mechanism = mechanism_of(plan)
    budget = None
    if mechanism is not None:
        budget = {
            "mechanism": mechanism.kind,
            "epsilon": mechanism.epsilon,
            "delta": mechanism.delta,
            # The budget limits releases, not the sums that are parts of one.
            "most_sums": None if mechanism.in_parts else mechanism.most_sums,
            "rounds_per_user": min(mechanism.rounds_per_user, plan.rounds.total),
        }
    return {
        "federation": plan.federation.name,
        "algorithm": plan.algorithm.name,
        "update": plan.update.structure,
        "protection": plan.protection.name,
        "authority_opens": plan.authority_opens,
        "who_reads": trust_statement(plan),
        "budget": budget,
        "at": plan.evaluation.at,
    }


def _message(kind: str, data: str, number: str = "") -> bytes:
    head = f"id: {number}\n" if number else ""
    return f"{head}event: {kind}\ndata: {data}\n\n".encode()
