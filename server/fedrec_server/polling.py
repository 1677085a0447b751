"""The tasks of polling clients, given at once or when news arrives. Refusals are told once."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import structlog

from fedrec.errors import FedrecError, StorageError, SumOutOfBounds
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import NOTHING, Finished, Remembered, Reveal, StepTask, Task, Train, Wait
from fedrec_server.peers.admission import Admission
from fedrec_server.peers.remembered_updates import RememberedUpdates
from fedrec_server.rounds.changes import (
    Change,
    ClientJoined,
    RoundAbandoned,
    StepEnded,
    SumKept,
    UpdatesRefused,
)
from fedrec_server.rounds.endings import OUT_OF_BOUNDS, REFUSED
from fedrec_server.rounds.events import Polled
from fedrec_server.rounds.selection import has_room
from fedrec_server.rounds.state import Round, Rules, State
from fedrec_server.rounds.steps import arrived, task_of
from fedrec_server.run.live_run import LiveRun
from fedrec_server.run.work import Waiters
from fedrec_server.snapshots import Snapshots

_LEFT_OUT = "this client's update has values that no honest client sends, and was left out"


def log_unfit(
    run: str, round_id: RoundId, roster: Roster, unfit: Collection[tuple[ClientId, FedrecError]]
) -> None:
    """Log the clients whose updates were refused, for operators."""
    log = structlog.get_logger().bind(run=run, round=round_id)
    for client_id, error in unfit:
        name = roster.member(client_id).label or client_id[:16]
        # The message about values contains an item id.
        why = "out of bounds" if isinstance(error, SumOutOfBounds) else error.message
        log.error("update refused", client=name, why=why)


def _is_announced(change: RoundAbandoned) -> bool:
    return change.reason == OUT_OF_BOUNDS or change.reason.startswith(REFUSED)


MAX_WAIT_SECONDS = 300.0


class TaskPolls:
    """Long polls of all clients."""

    def __init__(
        self,
        run: LiveRun,
        admission: Admission,
        snapshots: Snapshots,
        rollbacks: RememberedUpdates,
    ) -> None:
        self._run = run
        self._admission = admission
        self._snapshots = snapshots
        self._rollbacks = rollbacks
        self._notices: dict[ClientId, Wait] = {}
        self._sent_epochs: dict[ClientId, int] = {}
        self._idle: set[ClientId] = set()
        self.waiters: Waiters[ClientId] = Waiters()

    async def next_task(
        self,
        client_id: ClientId,
        run: str,
        version: RoundId,
        wait_seconds: float,
        remembered: Remembered = NOTHING,
    ) -> Task:
        """Return the client's next task. Wait for one if needed.

        If the client remembers a different last update than this coordinator, it is told at once.
        """
        self._admission.check_run(run)
        self._admission.check_member(client_id)
        # A client that fetched a round while the next epoch began does not know the epoch yet
        # either.
        epoch = self._sent_epochs.get(client_id, self._run.state.rules.epoch)
        await self._rollbacks.compare(client_id, remembered)
        if version > self._run.state.published:
            # No round opens for a client that knows of later rounds.
            self._note_ahead(client_id, version)
            task = self._wait(Wait())
        else:
            if self._rollbacks.differs(client_id, remembered):
                wait_seconds = 0.0
            task = await self._next_task(client_id, version, epoch, wait_seconds)
        if isinstance(task.task, Finished):
            self._run.presence.takes_end(client_id)
        self._sent_epochs[client_id] = task.epoch
        return replace(task, latest=await self._rollbacks.answer(client_id, remembered))

    def _note_ahead(self, client_id: ClientId, version: RoundId) -> None:
        """Tell operators at once that this folder is older than the run."""
        run = self._run
        if run.presence.reports(client_id, version):
            structlog.get_logger().error(
                "folder is older than the run",
                run=run.name,
                client=run.federation.keys.roster.holder(client_id).label or client_id[:16],
                its_round=version,
                published_round=run.state.published,
            )

    async def _next_task(
        self, client_id: ClientId, version: RoundId, epoch: int, wait_seconds: float
    ) -> Task:
        """Return the client's next task, or why it has none.

        Args:
            epoch: the last key epoch that the client knows.
        """
        run = self._run
        loop = asyncio.get_running_loop()
        until = loop.time() + min(max(wait_seconds, 0.0), MAX_WAIT_SECONDS)
        here = run.presence.waiting(client_id, version)
        with here, self.waiters.listening(client_id) as news:
            while True:
                news.forget()
                if run.presence.goodbye_of(client_id) is not None:
                    return self._wait(Wait())
                if run.state.rules.epoch != epoch:
                    # A removed client learns it here. All others enrol again.
                    self._admission.check_member(client_id)
                    return self._wait(Wait(reason="the key epoch changed"))
                await self._offer(client_id)
                task = await self._task_now(client_id, version)
                if task is not None:
                    return task
                self._idle.add(client_id)
                try:
                    woken = not run.stopping and await news.wait(until - loop.time())
                finally:
                    self._idle.discard(client_id)
                if not woken:
                    reason = "the coordinator stops" if run.stopping else ""
                    return self._wait(Wait(reason=reason))

    def end(self, client_id: ClientId, code: str) -> None:
        """Record that a client ended. Answer its waiting calls.

        Args:
            code: the code of the error that ended it, or empty.
        """
        holder = self._run.federation.keys.roster.holder(client_id)
        self._run.presence.ended(client_id, code)
        self.waiters.wake((client_id,))
        log = structlog.get_logger().bind(run=self._run.name)
        why = {"code": code} if code else {}
        log.info("client stopped", client=holder.label or client_id[:16], **why)

    async def _task_now(self, client_id: ClientId, version: RoundId) -> Task | None:
        """Return the client's task or notice, or None if it must wait."""
        state = self._run.state
        task = task_for(state, client_id, version, self._run.clock.now())
        if task is None:
            if self._snapshots.wants(client_id, state.published):
                await self._ask({client_id}, state.published)
            task = self._snapshots.task_for(client_id, state.published)
        elif version < state.published and self._snapshots.may_miss(client_id, version):
            await self._miss_snapshot(client_id, version)
        if task is None and (notice := self._notices.pop(client_id, None)) is not None:
            task = self._wait(notice)
        return task

    def _wait(self, wait: Wait) -> Task:
        state = self._run.state
        return Task(published_round=state.published, task=wait, epoch=state.rules.epoch)

    async def _offer(self, client_id: ClientId) -> None:
        """Open a round, or let the client join one, if its arrival makes that possible."""
        run = self._run
        try:
            if run.state.current is None and run.state.ending is None:
                if not run.presence.reaches(run.state.rules.needed):
                    return
                await run.work.uninterrupted(run.advance())
            # A round that was opening when this client arrived does not include it.
            round_ = run.state.current
            if round_ is None or round_.phase != "collecting" or client_id in round_.asked:
                return
            if not has_room(run.state.rules, round_):
                # With a full round, ten thousand waiting clients need not be checked one by one.
                return
            # In cells, a client only joins together with the present members of its cell.
            live = run.presence.live() if run.state.rules.partition.cell_size else frozenset()
            async with run.lock:
                await run.apply(Polled(now=run.clock.now(), client_id=client_id, live=live))
        except StorageError:
            # The run's log and status report it.
            pass

    async def _miss_snapshot(self, client_id: ClientId, version: RoundId) -> None:
        """Ask a client for a snapshot if it serves this late joiner better."""
        run = self._run
        if await run.work.in_thread(self._snapshots.worth_making, version):
            self.waiters.wake(await self._ask(self._idle - {client_id}, run.state.published))

    async def _ask(self, idle: set[ClientId], published: RoundId) -> frozenset[ClientId]:
        run = self._run
        members = run.state.roster.intersection(idle)
        return await run.work.in_thread(self._snapshots.ask, members, published)

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Wake the clients that changes affect, and remember the notices for them."""
        state, round_ = self._run.state, before.current
        news = (before.published, before.ending, before.rules.epoch)
        refused: dict[ClientId, Wait] = {}
        for change in changes:
            if isinstance(change, UpdatesRefused):
                left_out = Wait(reason=_LEFT_OUT, about=change.round)
                refused |= dict.fromkeys(change.left_out, left_out)
            if isinstance(change, RoundAbandoned) and round_ is not None and _is_announced(change):
                given_up = Wait(reason=change.reason, about=change.round)
                refused |= dict.fromkeys(round_.asked - refused.keys(), given_up)
        self._notices |= refused
        if news != (state.published, state.ending, state.rules.epoch):
            self.waiters.wake_all()
            return
        self.waiters.wake(refused)
        for change in changes:
            if isinstance(change, SumKept) and state.rules.revealer is not None:
                self.waiters.wake((state.rules.revealer,))
            if isinstance(change, ClientJoined):
                self.waiters.wake((change.client_id,))
        was = None if round_ is None else round_.number
        moved_on = any(isinstance(change, StepEnded) for change in changes)
        if state.current is not None and (moved_on or was != state.current.number):
            self.waiters.wake(state.current.asked)


def task_for(state: State, client_id: ClientId, version: RoundId, now: float) -> Task | None:
    """Return the client's task, or None if it must wait.

    A client that is behind only gets a notice: it catches up first.

    Raises:
        RoundError: if the client's model is newer than the run.
    """
    if version > state.published:
        # One of the two was restored from a backup. The client sees which one, and waits.
        return _task(state, Wait(reason="the coordinator knows fewer rounds than this client"))
    if version < state.published:
        return _task(state, Wait(reason="catch up"))
    if state.ending is not None:
        return _task(state, Finished(reason=state.ending.reason, failed=state.ending.failed))
    if state.current is None:
        return None
    rules, round_ = state.rules, state.current
    task = task_of(rules, round_, client_id) or _in_round(rules, round_, client_id, now)
    return None if task is None else _task(state, task)


def _task(state: State, task: Wait | Train | StepTask | Reveal | Finished) -> Task:
    return Task(published_round=state.published, task=task, epoch=state.rules.epoch)


def _in_round(
    rules: Rules, round_: Round, client_id: ClientId, now: float
) -> Train | Reveal | None:
    if round_.phase == "collecting":
        if client_id not in round_.asked or client_id in arrived(rules, round_):
            return None
        return Train(
            round=round_.number,
            kind=round_.kind,
            base_round=round_.base_round,
            seconds_left=max(0.0, round_.deadline_at - now),
            epoch=round_.epoch,
        )
    if round_.phase != "revealing" or client_id != rules.revealer or round_.total is None:
        return None
    ordered = sorted(round_.accepted.values(), key=lambda header: header.client_id)
    return Reveal(
        round=round_.number,
        kind=round_.kind,
        base_round=round_.base_round,
        contributions=tuple(ordered),
        sum=round_.total,
        epoch=round_.epoch,
    )
