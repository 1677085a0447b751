"""Rounds under masks in the living run: messages in, steps closed, and what clients fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.errors import (
    DamagedFile,
    FedrecError,
    KeysError,
    ProtocolError,
    RevealRefused,
    RoundClosed,
    RoundError,
    SettingsError,
    StorageError,
    SumOutOfBounds,
)
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import MaskMessage, MaskStep
from fedrec_server.masks.collection import MaskCollection
from fedrec_server.rounds.endings import OUT_OF_BOUNDS
from fedrec_server.rounds.events import MaskStepClosed
from fedrec_server.rounds.mask_steps import STEP_OF
from fedrec_server.rounds.state import Round

if TYPE_CHECKING:
    from fedrec_server.engine import Engine

__all__ = ["close_due", "hear", "material", "reason_of"]


async def hear(engine: Engine, message: MaskMessage) -> bool:
    """Keep a client's message of one step; True when it was kept before.

    Raises:
        FedrecError: when it is not kept.
    """
    engine.presence.heard(message.client_id)
    await engine.work.beside(engine.admission.check_mask_message, message)
    return await engine.work.uninterrupted(_keep(engine, message))


async def _keep(engine: Engine, message: MaskMessage) -> bool:
    duplicate = await engine.hearing.commit(message)
    if not duplicate:
        engine.failpoint("masks.ack")
    return duplicate


async def material(
    engine: Engine, client_id: ClientId, round_id: RoundId, wanted: MaskStep
) -> bytes:
    """Return what a participant needs for a step.

    Raises:
        RoundError: when the step is not the present one, or not for this client.
    """
    async with engine.lock:
        collection, round_ = _open(engine, round_id)
        return await engine.work.in_thread(collection.material, round_, client_id, wanted)


def _open(engine: Engine, round_id: RoundId) -> tuple[MaskCollection, Round]:
    """Return the round in progress, if that is the one, and what was collected of it."""
    collection, round_ = engine.aggregation, engine.state.current
    if not isinstance(collection, MaskCollection):
        raise ProtocolError("The federation's protection takes no messages of this kind.")
    if round_ is None or round_.number != round_id:
        raise RoundClosed(f"Round {round_id} is over.")
    return collection, round_


async def close_due(engine: Engine, round_: Round) -> bool:
    """Close the present step if it is over; the caller holds the lock.

    Returns:
        Whether the round moved on, or ended.
    """
    collection = engine.aggregation
    if not isinstance(collection, MaskCollection) or round_.phase not in STEP_OF:
        return False
    try:
        if not await engine.work.in_thread(collection.is_due, round_, engine.clock.now()):
            return False
        left_out = await engine.work.in_thread(collection.close, round_)
    except FedrecError as error:
        if isinstance(error, StorageError) and not isinstance(error, DamagedFile):
            raise
        await engine.fail(round_.number, reason_of(error), error)
        return True
    closed = MaskStepClosed(
        now=engine.clock.now(), round=round_.number, phase=round_.phase, left_out=left_out
    )
    try:
        await engine.apply(closed)
    except BaseException:
        collection.forget()
        raise
    engine.failpoint("masks.closed")
    return True


def reason_of(error: FedrecError) -> str:
    """Return why a round was given up, for operators."""
    if isinstance(error, SumOutOfBounds):
        # The message names an item.
        return OUT_OF_BOUNDS
    if isinstance(error, RoundError | RevealRefused | KeysError | SettingsError):
        return error.message.rstrip(".")
    return "a stored update is damaged"
