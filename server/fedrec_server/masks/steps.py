"""Rounds under masks in the living run: messages in, steps closed, and what clients fetch."""

from __future__ import annotations

from fedrec.errors import DamagedFile, FedrecError, ProtocolError, RoundClosed, StorageError
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import MaskMessage, MaskStep
from fedrec_server.masks.collection import MaskCollection
from fedrec_server.masks.message_commit import MaskMessageCommit
from fedrec_server.membership.admission import Admission
from fedrec_server.rounds.endings import reason_of
from fedrec_server.rounds.events import MaskStepClosed
from fedrec_server.rounds.mask_steps import STEP_OF
from fedrec_server.rounds.state import Round
from fedrec_server.run.live_run import LiveRun
from fedrec_server.uploads.group_commit import Collection

__all__ = ["MaskSteps"]


class MaskSteps:
    """Takes in the messages of a round's steps and closes them.

    Args:
        collection: of the round; under other protections it takes no messages.
    """

    def __init__(self, run: LiveRun, collection: Collection, admission: Admission) -> None:
        self._run = run
        self._collection = collection
        self._admission = admission
        self.messages = MaskMessageCommit(run, collection)

    async def hear(self, message: MaskMessage) -> bool:
        """Keep a client's message of one step; True when it was kept before.

        Raises:
            FedrecError: when it is not kept.
        """
        self._run.presence.heard(message.client_id)
        await self._run.work.beside(self._admission.check_mask_message, message)
        return await self._run.work.uninterrupted(self._keep(message))

    async def _keep(self, message: MaskMessage) -> bool:
        duplicate = await self.messages.commit(message)
        if not duplicate:
            self._run.failpoint("masks.ack")
        return duplicate

    async def material(self, client_id: ClientId, round_id: RoundId, wanted: MaskStep) -> bytes:
        """Return what a participant needs for a step.

        Raises:
            ProtocolError: the federation's protection has no steps.
            RoundError: when the step is not the present one, or not for this client.
        """
        run = self._run
        async with run.lock:
            collection, round_ = self._collection, run.state.current
            if not isinstance(collection, MaskCollection):
                raise ProtocolError("The federation's protection takes no messages of this kind.")
            if round_ is None or round_.number != round_id:
                raise RoundClosed(f"Round {round_id} is over.")
            return await run.work.in_thread(collection.material, round_, client_id, wanted)

    async def close_due(self, round_: Round) -> bool:
        """Close the present step if it is over; the caller holds the lock.

        Returns:
            Whether the round moved on, or ended.
        """
        run, collection = self._run, self._collection
        if not isinstance(collection, MaskCollection) or round_.phase not in STEP_OF:
            return False
        try:
            if not await run.work.in_thread(collection.is_due, round_, run.clock.now()):
                return False
            left_out = await run.work.in_thread(collection.close, round_)
        except FedrecError as error:
            if isinstance(error, StorageError) and not isinstance(error, DamagedFile):
                raise
            collection.forget()
            await run.fail(round_.number, reason_of(error), error)
            return True
        closed = MaskStepClosed(
            now=run.clock.now(), round=round_.number, phase=round_.phase, left_out=left_out
        )
        try:
            await run.apply(closed)
        except BaseException:
            collection.forget()
            raise
        run.failpoint("masks.closed")
        return True
