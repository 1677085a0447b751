"""What a browser is sent: the past once, and then whatever happens, as server-sent events.

The journal is followed by one task for all browsers, and where the run stands is what `fedrec
status` tells. Each event's id is that of the last journal entry before it, so that a browser that
lost the connection is sent what it missed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

from fedrec.config.noise import mechanism_of
from fedrec.config.schema import Plan
from fedrec.errors import FedrecError
from fedrec.planning.cautions import explained, marked
from fedrec.planning.statements import trust_statement
from fedrec.wire.admin_link import RunStatus
from fedrec_server.engine import Engine
from fedrec_server.page.history import News, RunHistory
from fedrec_server.run.waiters import Waiters
from fedrec_server.run_status import status_of

__all__ = ["Feed"]

PAGE = 500
IDLE_SECONDS = 1.0
"""Who is awaited, and what is left of a deadline, change without an event."""
PAUSE_SECONDS = 0.2
"""Between two looks at the journal, and between two messages to a browser: many clients that
upload at once are one piece of news."""
RETRY_MILLISECONDS = 1000
_WATCH_SECONDS = 300.0


class Feed:
    """Follows a run, and tells browsers.

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
        """How many browsers are told."""
        return self._n_streams

    async def follow(self) -> None:
        """Read the journal, now and whenever it grows, until `close`."""
        run = self._engine.run
        with run.watchers.listening("page") as news:
            while not self._closed:
                news.forget()
                pause, entries = _WATCH_SECONDS, []
                try:
                    entries = await run.work.in_thread(run.store.entries, self._history.last, PAGE)
                except FedrecError:
                    # The store may be full or busy; what is there is read a moment later.
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
        """Tell browsers nothing more."""
        self._closed = True
        self._has_read.set()
        self._news.wake_all()

    async def stream(self, last_id: str) -> AsyncGenerator[bytes, None]:
        """Yield messages for one browser, one a second at least, until `close`.

        Args:
            last_id: of the last message that it got; empty for none.
        """
        self._n_streams += 1
        try:
            seen = self._position(last_id)
            yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
            yield _message("about", json.dumps(_about(self._engine.run.federation.plan)))
            # A coordinator that was just started again would seem to have forgotten everything.
            await self._has_read.wait()
            with self._news.listening("browsers") as more:
                while not self._closed:
                    more.forget()
                    news = self._history.since(seen)
                    if news.whole or news.rounds or news.events:
                        yield self._told(news)
                    seen = news.last
                    yield _message("status", json.dumps(self._status()))
                    await asyncio.sleep(PAUSE_SECONDS)
                    await more.wait(IDLE_SECONDS)
        finally:
            self._n_streams -= 1

    def _told(self, news: News) -> bytes:
        kind = "history" if news.whole else "news"
        return _message(kind, news.to_json(), f"{self._engine.run.name}:{news.last}")

    def _position(self, last_id: str) -> int:
        """Return the last event that a browser knows of this run; -1 for none."""
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
    """Return what does not change during a run."""
    mechanism = mechanism_of(plan)
    budget = None
    if mechanism is not None:
        budget = {
            "mechanism": mechanism.kind,
            "epsilon": mechanism.epsilon,
            "delta": mechanism.delta,
            "most_sums": mechanism.most_sums,
            "rounds_per_user": mechanism.rounds_per_user,
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
