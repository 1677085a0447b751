"""One run on one store: its state, and the only way to change it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from fedrec.clock import Clock
from fedrec.durable import DiskFull
from fedrec.errors import FedrecError, StorageError
from fedrec.ids import RoundId
from fedrec.protection import Protection
from fedrec.wire.messages import RoundKind, UploadHeader
from fedrec_server.federation import Federation
from fedrec_server.rounds.changes import VOLATILE, Change
from fedrec_server.rounds.endings import Step
from fedrec_server.rounds.events import Event, Failed
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.run.journal import entry_of, log_entry
from fedrec_server.run.presence import Presence
from fedrec_server.run.work import Waiters, Work
from fedrec_server.store.durable_files import Failpoint, no_failpoint, update_name
from fedrec_server.store.store import Entry, Store

FULL_SECONDS = 30.0
"""Seconds without a refused write, while clients retried, after which the disk is assumed to have
space.
"""
REFUSED_EVERY_SECONDS = 60.0
"""Seconds between two log lines about a full disk."""
Listener = Callable[[State, tuple[Change, ...]], None]
"""A function that is called with the previous state and the committed changes."""


class LiveRun:
    """The state of a run, shared by all parts of a coordinator.

    All state changes go through `step` and one transaction, one after another. Database and sum
    belong to a single worker thread.

    Attributes:
        federation: the constant part, in the key epoch of `state`.
        state: the run's current state.
        presence: the members that are present.
        lock: the caller that changes the state holds it.
        work: threads for blocking work, and work that outlives its call.
        listeners: called with every change once it is durable.
        advance: does what follows automatically from a change. The engine sets it.
        stopping: the process is about to end.
        watchers: woken when the journal grows.
        halted: no change is allowed any more, because of `problem`, and the process must end.
    """

    def __init__(
        self,
        federation: Federation,
        store: Store,
        *,
        clock: Clock,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self.federation = federation
        self.store = store
        self.clock = clock
        self.failpoint = failpoint
        self.state = store.load(federation.rules(store.run), federation.roster)
        self.presence = Presence(clock)
        self.work = Work()
        self.lock = asyncio.Lock()
        self.listeners: list[Listener] = [self.presence.on_commit]
        self.advance: Callable[[], Coroutine[Any, Any, None]] = _nothing
        self.stopping = False
        self.watchers: Waiters[str] = Waiters()
        self.halted = asyncio.Event()
        self.problem: FedrecError | None = None
        self.work.on_refused = self._note_refused
        self._full: tuple[float, str] | None = None
        self._refusal_reported = float("-inf")

    @property
    def name(self) -> str:
        """Return the run's name."""
        return self.store.run

    def protection_of(self, kind: RoundKind) -> Protection:
        """Return the protection of a round's vector, over the rows that currently travel."""
        return self.federation.protection_of(kind, self.state.rows_of(kind))

    def read_update(self, header: UploadHeader) -> bytes:
        """Return a counted update's bytes.

        Raises:
            DamagedFile: the update is no longer readable.
        """
        name = update_name(header.round, header.client_id)
        return self.store.spool.read(name, header.blob)

    @property
    def disk_full(self) -> str:
        """The last write that failed on a full disk, or an empty string if writes succeed."""
        return "" if self._full is None else self._full[1]

    def look_at_disk(self) -> None:
        """Forget a full disk once no write has failed for a while."""
        if self._full is not None and self.clock.now() >= self._full[0] + FULL_SECONDS:
            self._full = None
            structlog.get_logger().info("disk takes what is written", run=self.name)

    def _note_refused(self, error: StorageError) -> None:
        now, is_full = self.clock.now(), isinstance(error, DiskFull)
        if is_full:
            self._full = (now, error.message)
        if now >= self._refusal_reported + REFUSED_EVERY_SECONDS:
            self._refusal_reported = now
            log = structlog.get_logger().bind(run=self.name)
            event = "disk full" if is_full else "storage refused"
            log.warning(event, why=error.message, remedy=error.remedy)

    def halt(self, problem: FedrecError) -> None:
        """Allow no further changes."""
        self.problem = problem
        self.halted.set()

    def advance_soon(self) -> None:
        """Advance in the background."""
        self.work.background(self.advance())

    async def apply(self, event: Event) -> tuple[Change, ...]:
        """Step, commit, then call the listeners. The caller holds `lock`.

        Raises:
            FedrecError: the state is unchanged.
        """
        state, changes = step(self.state, event)
        await self.commit(state, changes)
        return changes

    async def commit(
        self, state: State, changes: tuple[Change, ...], *, federation: Federation | None = None
    ) -> None:
        """Commit the decisions of steps in one transaction. The caller holds `lock`.

        Args:
            federation: the federation in the new state's key epoch, if one begins.

        Raises:
            FedrecError: the state is unchanged.
        """
        self._check_store()
        lasts = any(not isinstance(change, VOLATILE) for change in changes)
        entries = await self.work.in_thread(self._write, changes) if lasts else []
        self.federation = federation or self.federation
        self._go_on(state, changes, entries)

    async def decide_and_commit(self, take: Callable[[], Step]) -> None:
        """Decide and commit in one go in the store's thread. The caller holds `lock`.

        Args:
            take: returns the next state and the changes, given the current state.

        Raises:
            FedrecError: the state is unchanged.
        """
        self._check_store()

        def commit() -> tuple[State, tuple[Change, ...], list[Entry]]:
            state, changes = take()
            return state, changes, self._write(changes)

        self._go_on(*await self.work.in_thread(commit))

    def _check_store(self) -> None:
        if self.work.lost.is_set():
            raise StorageError("The store failed, so the coordinator stops.")
        if self.problem is not None:
            raise self.problem

    def _write(self, changes: tuple[Change, ...]) -> list[Entry]:
        """Make changes durable. Return their journal lines. Runs in the store's thread."""
        now = self.clock.now()
        entries = [entry for change in changes if (entry := entry_of(change, now))]
        durable = [change for change in changes if not isinstance(change, VOLATILE)]
        if durable:
            self.store.commit(durable, entries)
        return entries

    def _go_on(self, state: State, changes: tuple[Change, ...], entries: list[Entry]) -> None:
        """Continue from the durable state."""
        before, self.state = self.state, state
        for entry in entries:
            log_entry(self.name, entry, published=state.published)
        if entries:
            self.watchers.wake_all()
        for listener in self.listeners:
            listener(before, changes)

    async def fail(self, round_id: RoundId, reason: str, error: FedrecError) -> None:
        """Abandon the round in progress. The caller holds `lock`."""
        log = structlog.get_logger().bind(run=self.name, round=round_id)
        log.error("round failed", reason=reason, why=error.message)
        await self.apply(Failed(now=self.clock.now(), round=round_id, reason=reason))


async def _nothing() -> None:
    """Do nothing, because no engine surrounds the run yet."""
