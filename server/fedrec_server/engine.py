"""The live run: its parts, and what happens automatically.

The engine does not depend on gRPC. Every part changes the run through `LiveRun`, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from fedrec.clock import Clock
from fedrec.errors import DamagedFile, FedrecError, StorageError, SumOutOfBounds
from fedrec.ids import ClientId, RoundId
from fedrec.plan.sizing import KEPT_SUMS
from fedrec_server.federation import Federation
from fedrec_server.peers.admission import Admission, Applications
from fedrec_server.peers.key_rotation import KeyRotation, newest
from fedrec_server.peers.member_states import MissingClients
from fedrec_server.peers.remembered_updates import RememberedUpdates
from fedrec_server.polling import TaskPolls, log_unfit
from fedrec_server.reveals import Reveals
from fedrec_server.rounds.changes import (
    Change,
    CollectingEnded,
    EpochBegan,
    RoundAbandoned,
    RoundPublished,
    StepEnded,
    UpdatesRefused,
)
from fedrec_server.rounds.endings import reason_of
from fedrec_server.rounds.events import (
    Restarted,
    Resumed,
    StopRequested,
    Summed,
    Tick,
    Untrainable,
    UpdatesUnfit,
)
from fedrec_server.rounds.state import Round, State
from fedrec_server.run.figures import CountedUpdates, LatestQuality
from fedrec_server.run.live_run import LiveRun
from fedrec_server.snapshots import SnapshotExchange, Snapshots
from fedrec_server.stepped_rounds import RunningSteps, StepCollection
from fedrec_server.store.durable_files import Failpoint, no_failpoint, sum_name, update_name
from fedrec_server.store.store import Store
from fedrec_server.uploads.incoming import StreamTurns
from fedrec_server.uploads.round_sum import Collection, RoundSum, RunningSum, accumulator_of
from fedrec_server.uploads.updates import Updates


class Engine:
    """One run on one store.

    Args:
        federation: the constant part.
        store: an open store, which `close` closes.
        clock: the source of the time.
        maximum_upload_bytes: the operator's limit of an upload.
        failpoint: called before an update is acknowledged.

    Attributes:
        run: the run's state, and the only way to change it.
        collection: the counted updates of the round in progress.
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
        run = self.run = LiveRun(federation, store, clock=clock, failpoint=failpoint)
        turns = StreamTurns(run.work)
        self.admission = Admission(run, maximum_upload_bytes)
        self.rollbacks = RememberedUpdates(run, self.admission)
        self.rotation = KeyRotation(run, self.rollbacks)
        self.applications = Applications(store, run.work)
        self.collection = self._collection()
        self.updates = Updates(run, self.collection, self.admission, turns)
        self.steps = RunningSteps(run, self.collection, self.admission)
        self.reveals = Reveals(run, self.admission, turns)
        self.snapshots = Snapshots(run)
        self.exchange = SnapshotExchange(run, self.snapshots, self.admission, turns)
        self.polls = TaskPolls(run, self.admission, self.snapshots, self.rollbacks)
        self.quality = LatestQuality()
        self.counted = CountedUpdates()
        self.finished = asyncio.Event()
        self._sum = RoundSum(run, self.collection)
        self.own_models = self._sum.own_models
        self._missing = MissingClients()
        self._superfluous = SuperfluousFiles(run)
        run.advance = self.advance
        run.listeners += [
            self.rollbacks.on_commit,
            self.quality.on_commit,
            self.counted.on_commit,
            self.snapshots.on_commit,
            self.polls.on_commit,
            self._on_commit,
            self._superfluous.on_commit,
        ]

    def _collection(self) -> Collection:
        """Return an empty collection for a round's updates."""
        run = self.run
        if run.federation.protection.steps.are_several:
            return StepCollection(run)
        return RunningSum(lambda: accumulator_of(run), run.read_update)

    async def start(self, *, resume: bool = False) -> None:
        """Clean up after the last process and continue from its state."""
        run = self.run
        swept = await run.work.in_thread(run.store.sweep)
        run.work.background(self._superfluous.empty_own_models())
        await run.work.in_thread(self.quality.read, run.store)
        await run.work.in_thread(self.counted.read, run.store)
        log = structlog.get_logger().bind(run=run.name)
        log.info("coordinator started", published_round=run.state.published, files_swept=swept)
        if run.state.ending is not None and not resume:
            self.finished.set()
        async with run.lock:
            await run.apply(Restarted(now=run.clock.now()))
            if resume:
                await run.apply(Resumed(now=run.clock.now()))
        await self.tick()

    async def tick(self) -> None:
        """Let time pass: check deadlines, and open rounds."""
        await self.run.work.uninterrupted(self.advance())

    async def stop_run(self, *, at_once: bool) -> None:
        """End the run at the operator's request."""
        await self.run.work.uninterrupted(self._stop_run(at_once))

    async def _stop_run(self, at_once: bool) -> None:
        async with self.run.lock:
            await self.run.apply(StopRequested(now=self.run.clock.now(), at_once=at_once))

    def stop_waiting(self) -> None:
        """Answer all long polls, because the process is about to end."""
        self.run.stopping = True
        self.polls.waiters.wake_all()
        self.run.watchers.wake_all()

    async def close(self) -> None:
        """Finish started work and close the store."""
        run = self.run
        self.stop_waiting()
        await run.work.settled()
        async with run.lock:
            await run.work.in_thread(run.store.close)
        run.work.close()

    async def advance(self) -> None:
        """Do all automatic steps: sum a closed round, open the next one, check deadlines."""
        run = self.run
        async with run.lock:
            try:
                while await self._advance_once():
                    pass
            except StorageError:
                # The run's log and status report it, and a later tick retries.
                pass
        run.look_at_disk()
        self._missing.notice(run.name, run.state, run.federation.keys.roster, run.presence)

    async def _advance_once(self) -> bool:
        run = self.run
        if await self.rotation.begin():
            return True
        round_ = run.state.current
        if round_ is not None and await self.steps.close_due(round_):
            return True
        if round_ is None and await self._end_untrainable():
            return True
        if round_ is None or round_.phase != "summing":
            presence = run.presence
            # This runs after every update. While a round collects, it must not look at all clients.
            live = presence.live() if round_ is None else frozenset()
            tick = Tick(now=presence.now(), live=live, gone=presence.gone())
            return bool(await run.apply(tick))
        try:
            made = await self._sum.make(round_)
        except FedrecError as error:
            if isinstance(error, StorageError) and not isinstance(error, DamagedFile):
                raise
            if isinstance(error, SumOutOfBounds) and await self._leave_out_unfit(round_):
                return True
            self.collection.forget()
            await run.fail(round_.number, reason_of(error), error)
            return True
        if made is None:
            return False
        now, (total, metrics, rows) = run.clock.now(), made
        await run.apply(
            Summed(now=now, round=round_.number, total=total, metrics=metrics, rows=rows)
        )
        return True

    async def _leave_out_unfit(self, round_: Round) -> bool:
        """Refuse single updates if they are readable. Return whether any was refused."""
        run = self.run
        unfit = await run.work.in_thread(self._sum.unfit, round_)
        if not unfit:
            return False
        log_unfit(run.name, round_.number, run.federation.keys.roster, unfit)
        clients = frozenset(client_id for client_id, _ in unfit)
        await run.apply(UpdatesUnfit(now=run.clock.now(), round=round_.number, clients=clients))
        return True

    async def _end_untrainable(self) -> bool:
        """End the run if nothing can be trained after the count round."""
        run, state = self.run, self.run.state
        if state.rows is None or not state.counted or state.ending is not None:
            return False
        reason = run.federation.problem_with(state.rows)
        if not reason:
            return False
        await run.apply(Untrainable(now=run.clock.now(), reason=reason))
        return True

    def _on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Start the next round with an empty collection, and note the end of the run."""
        ended = RoundPublished | RoundAbandoned | EpochBegan
        if any(isinstance(change, ended) for change in changes):
            self.collection.forget()
        if any(isinstance(change, RoundPublished) for change in changes):
            # It is durable. Clients that fetch it need not wait for further safety copies.
            self.run.work.background(self.run.work.beside(self.run.store.settle))
        if self.run.state.ending is not None:
            self.finished.set()


class SuperfluousFiles:
    """Deletes files that changes of a run make superfluous."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Start to delete the files that are superfluous after some changes."""
        background = self._run.work.background
        for change in changes:
            match change:
                case RoundPublished() if change.reports_until is not None:
                    background(self._forget_sums())
                case CollectingEnded() | StepEnded() | UpdatesRefused() if change.left_out:
                    background(self._delete_updates(change.round, change.left_out))
                case EpochBegan():
                    background(self.empty_own_models())
        round_ = before.current
        if round_ is not None and any(isinstance(change, RoundPublished) for change in changes):
            background(self._forget_own_models(round_))
        ended = any(isinstance(change, RoundPublished | RoundAbandoned) for change in changes)
        if ended and before.current is not None:
            background(self._delete_round(before.current, changes))

    async def _delete_round(self, round_: Round, changes: tuple[Change, ...]) -> None:
        kept = {c.blob.digest for c in changes if isinstance(c, RoundPublished)}
        names = [update_name(round_.number, client_id) for client_id in round_.accepted]
        if round_.total is not None and round_.total.digest not in kept:
            names.append(sum_name(round_.number))
        await self._delete(round_.number, names, partials=True)

    async def _forget_own_models(self, round_: Round) -> None:
        """Delete what counted clients received before: they had it before they trained."""
        spool = self._run.store.spool
        rounds = range(round_.number)
        await self._run.work.in_thread(spool.delete_own_models, rounds, round_.accepted)

    async def empty_own_models(self) -> None:
        """Empty the models of parties that left: none of their calls is answered any more."""
        run = self._run
        await run.work.in_thread(run.store.spool.empty_own_models, run.state.roster)

    async def _forget_sums(self) -> None:
        """Delete ciphertext sums that a snapshot replaces."""
        run = self._run
        names = await run.work.in_thread(run.store.forget_sums, KEPT_SUMS)
        await self._delete(run.state.published, names)

    async def _delete_updates(self, round_id: RoundId, clients: frozenset[ClientId]) -> None:
        """Delete updates that a closed round left out."""
        await self._delete(round_id, [update_name(round_id, client) for client in sorted(clients)])

    async def _delete(
        self, round_id: RoundId, names: Iterable[str], *, partials: bool = False
    ) -> None:
        spool = self._run.store.spool

        def delete() -> None:
            for name in names:
                spool.delete(name)
            if partials:
                spool.delete_partials(round_id)

        try:
            await self._run.work.in_thread(delete)
        except OSError as error:
            log = structlog.get_logger().bind(run=self._run.name, round=round_id)
            log.warning("files left", why=error.strerror)
