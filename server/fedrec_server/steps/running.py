"""Rounds of several steps in the living run: messages in, steps closed, what clients fetch."""

from __future__ import annotations

from fedrec.errors import DamagedFile, FedrecError, RoundClosed, StorageError
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import StepMessage
from fedrec_server.peers.admission import Admission
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.endings import reason_of
from fedrec_server.rounds.events import StepClosed, StepHeard
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import Round, State
from fedrec_server.run.live_run import LiveRun
from fedrec_server.uploads.group_commit import GroupCommit
from fedrec_server.uploads.round_collection import Collection


class RunningSteps(GroupCommit[StepMessage]):
    """Takes in the messages of a round's steps and closes them.

    What follows from messages, such as the end of a step, is looked at once for all of a group.

    Args:
        collection: of the round; where rounds have one step it takes no messages.
    """

    def __init__(self, run: LiveRun, collection: Collection, admission: Admission) -> None:
        super().__init__(run, collection)
        self._admission = admission

    async def hear(self, message: StepMessage) -> bool:
        """Keep a client's message of one step; True when it was kept before.

        Raises:
            FedrecError: when it is not kept.
        """
        self._run.presence.heard(message.client_id)
        await self._run.work.beside(self._admission.check_step_message, message)
        return await self._run.work.uninterrupted(self._keep(message))

    async def _keep(self, message: StepMessage) -> bool:
        duplicate = await self.commit(message)
        if not duplicate:
            self._run.failpoint("masks.ack")
        return duplicate

    async def material(self, client_id: ClientId, round_id: RoundId, wanted: str) -> bytes:
        """Return what a participant needs for a step.

        Raises:
            ProtocolError: the federation's protection has no steps.
            RoundError: when the step is not the present one, or not for this client.
        """
        run = self._run
        async with run.lock:
            collection, round_ = self._collection, run.state.current
            if round_ is None or round_.number != round_id:
                raise RoundClosed(f"Round {round_id} is over.")
            return await run.work.in_thread(collection.material, round_, client_id, wanted)

    async def close_due(self, round_: Round) -> bool:
        """Close the present step if it is over; the caller holds the lock.

        Returns:
            Whether the round moved on, or ended.
        """
        run, collection = self._run, self._collection
        if not run.state.rules.steps.are_several:
            # Spares a round of one step the way to another thread and back.
            return False
        try:
            now, gone = run.clock.now(), run.presence.gone()
            if not await run.work.in_thread(collection.is_due, round_, now, gone):
                return False
            left_out = await run.work.in_thread(collection.close, round_)
        except FedrecError as error:
            if isinstance(error, StorageError) and not isinstance(error, DamagedFile):
                raise
            collection.forget()
            await run.fail(round_.number, reason_of(error), error)
            return True
        closed = StepClosed(
            now=run.clock.now(), round=round_.number, phase=round_.phase, left_out=left_out
        )
        try:
            await run.apply(closed)
        except BaseException:
            collection.forget()
            raise
        run.failpoint("masks.closed")
        return True

    def _take(self, state: State, what: StepMessage) -> tuple[State, tuple[Change, ...]]:
        after, changes = step(state, StepHeard(now=self._run.clock.now(), message=what))
        collection, round_ = self._collection, state.current
        if round_ is None:
            raise RoundClosed(f"Round {what.round} is over.")
        if not any(isinstance(change, AlreadyCounted) for change in changes):
            collection.hear(round_, what)
        return after, changes

    def _decided(self) -> None:
        self._run.advance_soon()
