"""The living run: events in, durable state out, and whoever has news is woken.

The engine knows no gRPC. All state changes go through `step` and one transaction, one after
another; database and sum belong to a single worker thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

import structlog

from fedrec.clock import Clock
from fedrec.errors import DamagedFile, FedrecError, RoundError, StorageError, SumOutOfBounds
from fedrec.ids import ClientId, RoundId
from fedrec.protection import Accumulator
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import (
    NOTHING,
    Remembered,
    RevealStatement,
    Task,
    UploadHeader,
    Wait,
)
from fedrec.wire.stated_rows import StatedRows
from fedrec_server.federation import Federation
from fedrec_server.masks.collection import MaskCollection
from fedrec_server.masks.message_commit import MaskMessageCommit
from fedrec_server.masks.steps import close_due, reason_of
from fedrec_server.membership.admission import Admission
from fedrec_server.membership.applications import Applications
from fedrec_server.membership.key_rotation import KeyRotation, newest
from fedrec_server.membership.missing_clients import MissingClients
from fedrec_server.membership.presence import Presence
from fedrec_server.membership.refusal_notices import RefusalNotices, log_unfit
from fedrec_server.membership.rollback_detection import RollbackDetection
from fedrec_server.rounds.changes import (
    VOLATILE,
    Change,
    ClientJoined,
    CollectingEnded,
    MaskStepEnded,
    RoundAbandoned,
    RoundPublished,
    SumKept,
    UpdatesRefused,
)
from fedrec_server.rounds.events import (
    Event,
    Failed,
    Polled,
    Restarted,
    Resumed,
    Shown,
    StopRequested,
    Summed,
    Tick,
    Unfit,
    Untrainable,
)
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.selection import has_room
from fedrec_server.rounds.state import Round, State
from fedrec_server.rounds.tasks import task_for
from fedrec_server.run.journal import entry_of, log_entry
from fedrec_server.run.model_quality import LatestQuality
from fedrec_server.run.waiters import Turns, Waiters
from fedrec_server.run.work import Work
from fedrec_server.service.stream_limits import Places
from fedrec_server.snapshots.snapshots import Snapshots
from fedrec_server.store.failpoints import Failpoint, no_failpoint
from fedrec_server.store.spool import (
    sum_name,
    update_name,
)
from fedrec_server.store.store import Store
from fedrec_server.uploads.item_holders import ItemHolders
from fedrec_server.uploads.running_sum import RunningSum
from fedrec_server.uploads.update_counting import UpdateCounting

__all__ = ["Engine", "Listener"]

MAX_WAIT_SECONDS = 300.0
KEPT_SUMS = 20
"""Ciphertext sums of so many rounds are there for who is behind; before them, copies of the model.
"""


Listener = Callable[[State, tuple[Change, ...]], None]
"""Hears of the state before, and of what was just committed."""


class Engine:
    """One run on one store.

    Args:
        federation: the constant part.
        store: open; closed by `close`.
        clock: tells the time.
        maximum_upload_bytes: the operator's limit.
        failpoint: called before an update is acknowledged.
    """

    def __init__(
        self,
        federation: Federation,
        store: Store,
        *,
        clock: Clock,
        maximum_upload_bytes: int,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        federation = newest(federation, store, clock.now())
        self.federation = federation
        self.store = store
        self.clock = clock
        self.failpoint = failpoint
        self._maximum_upload_bytes = maximum_upload_bytes
        self.presence = Presence(clock)
        self._absences = MissingClients()
        self._refusals = RefusalNotices()
        self.waiters: Waiters[ClientId] = Waiters()
        self.watchers: Waiters[str] = Waiters()
        self.uploads: Turns[ClientId] = Turns()
        self.places = Places()
        self.state = store.load(federation.rules(store.run), federation.roster)
        self.admission = self._admission()
        self.aggregation = self._empty_sum()
        self.snapshots = self._new_snapshots()
        self.counting = UpdateCounting(self)
        self.hearing = MaskMessageCommit(self)
        self.holders = ItemHolders(lambda: self.federation, store)
        self.lock = asyncio.Lock()
        self.stopping = False
        self.finished = asyncio.Event()
        self.journal_version = 0
        self.work = Work()
        self.memories = RollbackDetection(store, self.work)
        self.rotation = KeyRotation(self)
        self.applications = Applications(store, self.work)
        self.measured = LatestQuality()
        self.listeners: list[Listener] = []

    @property
    def run(self) -> str:
        """Return the run's name."""
        return self.store.run

    async def start(self, *, resume: bool = False) -> None:
        """Clean up after the last process and go on where it ended."""
        swept = await self.work.in_thread(self.store.sweep)
        await self.work.in_thread(self.measured.read, self.store)
        log = structlog.get_logger().bind(run=self.run)
        log.info("coordinator started", published_round=self.state.published, files_swept=swept)
        if self.state.ending is not None and not resume:
            self.finished.set()
        async with self.lock:
            await self.apply(Restarted(now=self.clock.now()))
            if resume:
                await self.apply(Resumed(now=self.clock.now()))
        await self.tick()

    def use(self, federation: Federation) -> None:
        """Go on in another key epoch; `state` is in it already."""
        self.federation = federation
        self.aggregation = self._empty_sum()
        self.admission = self._admission()
        self.snapshots = self._new_snapshots()

    def _new_snapshots(self) -> Snapshots:
        lacks_rounds = self.state.begins_at is not None
        return Snapshots(self.federation, self.store, self.clock, lacks_rounds=lacks_rounds)

    def _admission(self) -> Admission:
        return Admission(
            self.federation,
            self.run,
            self._maximum_upload_bytes,
            lambda kind: self.state.rows_of(kind),
        )

    def _accumulator(self) -> Accumulator:
        """Return an empty sum of the round in progress."""
        round_ = self.state.current
        kind = "train" if round_ is None else round_.kind
        protection = self.federation.protection_of(kind, self.state.rows_of(kind))
        return protection.accumulator(self.federation.keys.server_context)

    def _empty_sum(self) -> RunningSum | MaskCollection:
        """Return what adds updates up, empty; under masks it asks more of them."""
        if self.federation.protection.is_interactive:
            return MaskCollection(
                lambda: self.federation,
                lambda: self.state.rules,
                self._read_update,
                lambda: self.state.current,
                lambda kind: self.state.rows_of(kind),
            )
        return RunningSum(self._accumulator, self._read_update)

    async def tick(self) -> None:
        """Let time pass: deadlines and openings."""
        await self.work.uninterrupted(self.advance())

    async def next_task(
        self,
        client_id: ClientId,
        run: str,
        version: RoundId,
        wait_seconds: float,
        remembered: Remembered = NOTHING,
    ) -> Task:
        """Return what the client can do, waiting for it if need be.

        Where the client remembers another last update than this coordinator, it is told at once.
        """
        self.admission.check_run(run)
        self.admission.check_member(client_id)
        if remembered.statement is not None:
            await self._hear(client_id, remembered.statement)
        if remembered.header is not None:
            await self._recall(client_id, remembered.header)
        if version > self.state.published:
            # Nothing is opened for somebody who knows better how far the run is.
            return replace(self._wait(""), latest=await self.memories.answer(client_id, remembered))
        if self.memories.differs(client_id, remembered):
            wait_seconds = 0.0
        task = await self._next_task(client_id, version, wait_seconds)
        return replace(task, latest=await self.memories.answer(client_id, remembered))

    async def _hear(self, client_id: ClientId, statement: RevealStatement) -> None:
        """Look at the key authority's word on a round that a member has and this folder may not.

        A folder that was just made anew goes on from there; any other is older than the run.
        """
        if not self.memories.is_news(client_id, statement, self.state, self.admission):
            return
        if self.state.may_learn:
            await self.work.uninterrupted(self._learn(statement))
        if statement.round > self.state.published:
            self.memories.note_outdated(statement.round, self.state.published)

    async def _learn(self, statement: RevealStatement) -> None:
        async with self.lock:
            with suppress(RoundError):
                await self.apply(Shown(now=self.clock.now(), statement=statement))
                self.snapshots = self._new_snapshots()

    async def _recall(self, client_id: ClientId, header: UploadHeader) -> None:
        """Keep a member's last update that a folder which was made anew does not know of."""
        if self.memories.is_forgotten(client_id, header, self.state, self.admission):
            async with self.lock:
                await self.work.in_thread(self.store.keep_latest, header)
            self.memories.recall(header)

    async def _next_task(self, client_id: ClientId, version: RoundId, wait_seconds: float) -> Task:
        epoch = self.state.rules.epoch
        loop = asyncio.get_running_loop()
        until = loop.time() + min(max(wait_seconds, 0.0), MAX_WAIT_SECONDS)
        with self.presence.waiting(client_id):
            while True:
                if self.state.rules.epoch != epoch:
                    # Whoever was removed is told so; all others enrol again.
                    self.admission.check_member(client_id)
                    return self._wait("the key epoch changed")
                await self._offer(client_id)
                task = task_for(self.state, client_id, version, self.clock.now())
                if task is None:
                    task = self.snapshots.task_for(client_id, self.state.published)
                elif version < self.state.published and self.snapshots.may_miss(client_id, version):
                    await self._miss_snapshot(client_id, version)
                if task is None and (told := self._refusals.tell(client_id)) is not None:
                    task = self._waiting(told)
                if task is not None:
                    return task
                if self.stopping or not await self.waiters.wait(client_id, until - loop.time()):
                    reason = "the coordinator stops" if self.stopping else ""
                    return self._wait(reason)

    def _wait(self, reason: str) -> Task:
        return self._waiting(Wait(reason=reason))

    def _waiting(self, wait: Wait) -> Task:
        published, epoch = self.state.published, self.state.rules.epoch
        return Task(published_round=published, task=wait, epoch=epoch)

    async def stop_run(self, *, at_once: bool) -> None:
        """End the run on the operator's word."""
        await self.work.uninterrupted(self._stop_run(at_once))

    async def _stop_run(self, at_once: bool) -> None:
        async with self.lock:
            await self.apply(StopRequested(now=self.clock.now(), at_once=at_once))

    def stop_waiting(self) -> None:
        """Answer all long polls: the process is about to end."""
        self.stopping = True
        self.waiters.wake_all()
        self.watchers.wake_all()

    async def close(self) -> None:
        """Finish what was begun and close the store."""
        self.stop_waiting()
        await self.work.settled()
        async with self.lock:
            await self.work.in_thread(self.store.close)
        self.work.close()

    async def apply(self, event: Event) -> tuple[Change, ...]:
        """Step, commit, then move on; the caller holds `lock`.

        Raises:
            FedrecError: the state is as before.
        """
        state, changes = step(self.state, event)
        await self.settle(state, changes)
        return changes

    async def settle(self, state: State, changes: tuple[Change, ...]) -> None:
        """Commit what steps decided in one transaction, then move on; the caller holds `lock`.

        Raises:
            FedrecError: the state is as before.
        """
        if self.work.lost.is_set():
            raise StorageError("The store failed; the coordinator stops.")
        if self.memories.outdated.is_set():
            raise self.memories.problem()
        now = self.clock.now()
        entries = [entry for change in changes if (entry := entry_of(change, now))]
        durable = [change for change in changes if not isinstance(change, VOLATILE)]
        if durable:
            await self.work.in_thread(self.store.commit, durable, entries)
        self.memories.note(changes)
        self.measured.note(changes)
        before, self.state = self.state, state
        for listener in self.listeners:
            listener(before, changes)
        for entry in entries:
            log_entry(self.run, entry, published=state.published)
        await self._follow(before, changes)

    async def advance(self) -> None:
        """Do what follows by itself: sum a closed round, open the next, heed deadlines."""
        async with self.lock:
            try:
                while await self._advance_once():
                    pass
            except StorageError as error:
                structlog.get_logger().warning("storage refused", run=self.run, why=error.message)
        self._absences.notice(self.run, self.state, self.federation.keys.roster, self.presence)

    async def _advance_once(self) -> bool:
        if await self.rotation.begin():
            return True
        round_ = self.state.current
        if round_ is not None and await close_due(self, round_):
            return True
        if round_ is None and await self._end_untrainable():
            return True
        if round_ is None or round_.phase != "summing":
            live = self.presence.live()
            return bool(await self.apply(Tick(now=self.clock.now(), live=live)))
        try:
            total, metrics, rows = await self.work.in_thread(self._sum, round_)
        except FedrecError as error:
            if isinstance(error, StorageError) and not isinstance(error, DamagedFile):
                raise
            if isinstance(error, SumOutOfBounds) and await self._leave_out_unfit(round_):
                return True
            await self.fail(round_.number, reason_of(error), error)
            return True
        now = self.clock.now()
        summed = Summed(now=now, round=round_.number, total=total, metrics=metrics, rows=rows)
        await self.apply(summed)
        return True

    async def _leave_out_unfit(self, round_: Round) -> bool:
        """Refuse single updates, where they can be read; tell whether there were any to refuse."""
        if self.federation.protection.is_interactive:
            return False
        unfit = await self.work.in_thread(self._unfit, round_)
        if not unfit:
            return False
        log_unfit(self.run, round_.number, self.federation.keys.roster, unfit)
        clients = frozenset(client_id for client_id, _ in unfit)
        await self.apply(Unfit(now=self.clock.now(), round=round_.number, clients=clients))
        return True

    def _unfit(self, round_: Round) -> list[tuple[ClientId, FedrecError]]:
        """Return whose updates hold by themselves what no honest client sends."""
        found: list[tuple[ClientId, FedrecError]] = []
        for client_id, header in sorted(round_.accepted.items()):
            total = self._accumulator()
            total.add(self._read_update(header))
            try:
                self._read_sum(round_, total.finish(), (client_id,))
            except SumOutOfBounds as error:
                found.append((client_id, error))
        return found

    async def _end_untrainable(self) -> bool:
        """End the run where its count left nothing that could be trained."""
        state = self.state
        if state.rows is None or not state.counted or state.ending is not None:
            return False
        reason = self.federation.problem_with(state.rows)
        if not reason:
            return False
        await self.apply(Untrainable(now=self.clock.now(), reason=reason))
        return True

    async def fail(self, round_id: RoundId, reason: str, error: FedrecError) -> None:
        """Give the round in progress up; the caller holds `lock`."""
        log = structlog.get_logger().bind(run=self.run, round=round_id)
        log.error("round failed", reason=reason, why=error.message)
        self.aggregation.forget()
        await self.apply(Failed(now=self.clock.now(), round=round_id, reason=reason))

    def _sum(self, round_: Round) -> tuple[Blob, bytes, StatedRows | None]:
        total = self.aggregation.finish(round_.accepted)
        metrics, rows = b"", None
        if not self.federation.protection.needs_reveal:
            metrics, rows = self._read_sum(round_, total, round_.accepted.keys())
        if self.state.rules.shares_key:
            # Whoever did not add the updates up cannot try which ones are in the sum.
            protection = self.federation.protection_of(round_.kind, self.state.rows_of(round_.kind))
            total = protection.refreshed(self.federation.keys.server_context, total)
        return self.store.spool.write(sum_name(round_.number), total), metrics, rows

    def _read_sum(
        self, round_: Round, total: bytes, clients: Collection[ClientId]
    ) -> tuple[bytes, StatedRows | None]:
        """Return what a readable sum of these clients' updates says; see `Federation.read_sum`."""
        return self.federation.read_sum(
            round_.kind,
            self.state.rows_of(round_.kind),
            total,
            clients,
            self.run,
            counted=self.holders.known(),
            trained=self.state.trained,
        )

    def _read_update(self, header: UploadHeader) -> bytes:
        name = update_name(header.round, header.client_id)
        return self.store.spool.read(name, header.blob)

    async def _miss_snapshot(self, client_id: ClientId, version: RoundId) -> None:
        """Ask somebody for a snapshot, where this late joiner is better off with one."""
        if await self.work.in_thread(self.snapshots.worth_making, version):
            waiting = (self.presence.waiters & self.state.roster) - {client_id}
            published = self.state.published
            self.waiters.wake(await self.work.in_thread(self.snapshots.ask, waiting, published))

    async def _offer(self, client_id: ClientId) -> None:
        """Open a round or let the client join one, if its coming makes that possible."""
        round_ = self.state.current
        joins = round_ is not None and round_.phase == "collecting"
        opens = round_ is None and self.state.ending is None
        try:
            if joins and round_ is not None and client_id not in round_.asked:
                if not has_room(self.state.rules, round_):
                    # Ten thousand that wait beside a full round need not be looked at one by one.
                    return
                # Who is here matters where clients come with those that they are summed with.
                live = self.presence.live() if self.state.rules.partition.cell_size else ()
                polled = Polled(now=self.clock.now(), client_id=client_id, live=frozenset(live))
                async with self.lock:
                    await self.apply(polled)
            elif opens and self.presence.reaches(self.state.rules.needed):
                await self.work.uninterrupted(self.advance())
        except StorageError as error:
            structlog.get_logger().warning("storage refused", run=self.run, why=error.message)

    async def _follow(self, before: State, changes: tuple[Change, ...]) -> None:
        """Wake who has news and delete what the changes made superfluous."""
        ended = False
        for change in changes:
            if isinstance(change, RoundPublished | RoundAbandoned):
                ended = True
            if isinstance(change, RoundAbandoned) and before.current is not None:
                # Asked again at once, a client that was killed would cost round after round.
                missed = before.current.asked - before.current.accepted.keys()
                self.presence.silent(missed)
            if isinstance(change, RoundPublished) and change.reports_until is not None:
                self.work.background(self._forget_sums())
            if isinstance(change, SumKept) and self.state.rules.revealer is not None:
                self.waiters.wake((self.state.rules.revealer,))
            parts_with = CollectingEnded | MaskStepEnded | UpdatesRefused
            if isinstance(change, parts_with) and change.left_out:
                self.work.background(self._delete_updates(change.round, change.left_out))
            if isinstance(change, ClientJoined):
                self.waiters.wake((change.client_id,))
            if isinstance(change, MaskStepEnded) and self.state.current is not None:
                self.waiters.wake(self.state.current.asked)
        self.waiters.wake(self._refusals.note(before.current, changes))
        if changes:
            self.journal_version += 1
            self.watchers.wake_all()
        if ended and before.current is not None:
            self.aggregation.forget()
            self.work.background(self._delete_files(before.current, changes))
        opened = self.state.current is not None and (
            before.current is None or before.current.number != self.state.current.number
        )
        if opened and self.state.current is not None:
            self.waiters.wake(self.state.current.asked)
        if self.state.ending is not None:
            self.finished.set()
        news = (before.published, before.ending, before.rules.epoch)
        if news != (self.state.published, self.state.ending, self.state.rules.epoch):
            self.waiters.wake_all()

    async def _delete_files(self, round_: Round, changes: tuple[Change, ...]) -> None:
        """Delete a round's files; whatever fails is swept at the next start."""
        kept = {c.blob.digest for c in changes if isinstance(c, RoundPublished)}
        names = [update_name(round_.number, client_id) for client_id in round_.accepted]
        if round_.total is not None and round_.total.digest not in kept:
            names.append(sum_name(round_.number))

        await self._delete(round_.number, names, partials=True)

    async def _forget_sums(self) -> None:
        """Delete ciphertext sums of which a copy of the model takes the place."""
        names = await self.work.in_thread(self.store.forget_sums, KEPT_SUMS)
        await self._delete(self.state.published, names)

    async def _delete_updates(self, round_id: RoundId, clients: frozenset[ClientId]) -> None:
        """Delete updates that a round was closed without."""
        await self._delete(round_id, [update_name(round_id, client) for client in sorted(clients)])

    async def _delete(self, round_id: RoundId, names: list[str], *, partials: bool = False) -> None:
        def delete() -> None:
            for name in names:
                self.store.spool.delete(name)
            if partials:
                self.store.spool.delete_partials(round_id)

        try:
            await self.work.in_thread(delete)
        except OSError as error:
            log = structlog.get_logger().bind(run=self.run, round=round_id)
            log.warning("files left", why=error.strerror)
