"""Messages of rounds under masks: those that wait together share a transaction, as updates do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedrec.errors import FedrecError, ProtocolError, StorageError
from fedrec.wire.messages import MaskMessage
from fedrec_server.mask_collection import MaskCollection
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.events import MaskHeard
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.store.spool import DurabilityLost

if TYPE_CHECKING:
    from fedrec_server.engine import Engine

__all__ = ["Hearing"]


@dataclass(slots=True, kw_only=True, eq=False)
class _Arrival:
    """A message that waits; `answer` tells whether it was kept before."""

    message: MaskMessage
    answer: asyncio.Future[bool]
    duplicate: bool = False
    refusal: Exception | None = None


class Hearing:
    """Hands messages to the collection and commits them, as many as wait at a time.

    Each is refused for itself; a commit that fails refuses all that it was for. What follows from
    messages, such as the end of a step, is looked at once for all of them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arrived: list[_Arrival] = []

    @property
    def waiting(self) -> int:
        """How many messages wait to be kept."""
        return len(self._arrived)

    async def hear(self, message: MaskMessage) -> bool:
        """Keep an admitted message; True when it was kept before.

        Raises:
            FedrecError: when it is not kept.
        """
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._arrived.append(_Arrival(message=message, answer=answer))
        async with self._engine.lock:
            # Whoever had the lock before may have taken this one along.
            if not answer.done():
                group, self._arrived = self._arrived, []
                await self._decide(group)
        return answer.result()

    async def _decide(self, group: list[_Arrival]) -> None:
        engine = self._engine
        failure: Exception | None = None
        try:
            state, changes = await engine.work.in_thread(self._take_all, group)
            await engine.settle(state, changes)
        except Exception as error:
            # They may be in the collector but not in the store.
            engine.aggregation.forget()
            failure = error
        for arrival in group:
            found = arrival.refusal or failure
            if found is None:
                arrival.answer.set_result(arrival.duplicate)
            else:
                arrival.answer.set_exception(found)
        engine.work.background(engine.advance())

    def _take_all(self, group: list[_Arrival]) -> tuple[State, tuple[Change, ...]]:
        """Hand the group to the collection and return what to commit; the lock is held."""
        state = self._engine.state
        changes: list[Change] = []
        for arrival in group:
            try:
                state, found = self._take(state, arrival)
                changes += found
            except (StorageError, DurabilityLost):
                raise
            except FedrecError as error:
                arrival.refusal = error
            except Exception as error:
                # Nobody else pays for one message that breaks the collector, which is made again.
                self._engine.aggregation.forget()
                arrival.refusal = error
        return state, tuple(changes)

    def _take(self, state: State, arrival: _Arrival) -> tuple[State, tuple[Change, ...]]:
        event = MaskHeard(now=self._engine.clock.now(), message=arrival.message)
        after, changes = step(state, event)
        arrival.duplicate = all(isinstance(change, AlreadyCounted) for change in changes)
        collection, round_ = self._engine.aggregation, state.current
        if not isinstance(collection, MaskCollection) or round_ is None:
            raise ProtocolError("The federation's protection takes no messages of this kind.")
        if not arrival.duplicate:
            collection.hear(round_, arrival.message)
        return after, changes
