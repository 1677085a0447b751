"""Counting updates that lie durable in the spool: those that wait together share a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedrec.errors import FedrecError, RoundClosed, StorageError
from fedrec.wire.messages import UploadHeader
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.events import Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.store.spool import DamagedFile, DurabilityLost

if TYPE_CHECKING:
    from fedrec_server.engine import Engine

__all__ = ["Counting"]


@dataclass(slots=True, kw_only=True, eq=False)
class _Arrival:
    """An update that waits; `answer` tells whether it was counted before."""

    header: UploadHeader
    read: Callable[[], bytes]
    answer: asyncio.Future[bool]
    duplicate: bool = False
    refusal: Exception | None = None


class Counting:
    """Adds updates to the sum and commits that they are in it, as many as wait at a time.

    A commit waits for the disk, whatever it commits: while one goes on, updates gather for the
    next. Each is refused for itself; a commit that fails refuses all that it was for.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arrived: list[_Arrival] = []

    @property
    def waiting(self) -> int:
        """How many updates wait to be counted."""
        return len(self._arrived)

    async def count(self, header: UploadHeader, read: Callable[[], bytes]) -> bool:
        """Count an update whose file is durable; True when it was counted before.

        Args:
            header: was admitted.
            read: returns the update's bytes; called in the store's thread.

        Raises:
            FedrecError: when it is not counted.
        """
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._arrived.append(_Arrival(header=header, read=read, answer=answer))
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
            state, changes = await engine.work.in_thread(self._add_up, group)
            await engine.settle(state, changes)
        except Exception as error:
            # They are in the sum but not in the store.
            engine.aggregation.forget()
            failure = await self._give_up(error) if isinstance(error, DamagedFile) else error
        for arrival in group:
            found = arrival.refusal or failure
            if found is None:
                arrival.answer.set_result(arrival.duplicate)
            else:
                arrival.answer.set_exception(found)

    def _add_up(self, group: list[_Arrival]) -> tuple[State, tuple[Change, ...]]:
        """Add the group's updates and return what to commit; the lock is held."""
        state = self._engine.state
        changes: tuple[Change, ...] = ()
        for arrival in group:
            try:
                state, found = self._add(state, arrival)
                changes += found
            except (StorageError, DurabilityLost):
                raise
            except FedrecError as error:
                arrival.refusal = error
            except Exception as error:
                # Nobody else pays for one update that breaks the adding; the sum may be half
                # changed, so it is made again from the files, which all are durable.
                self._engine.aggregation.forget()
                arrival.refusal = error
        return state, changes

    def _add(self, state: State, arrival: _Arrival) -> tuple[State, tuple[Change, ...]]:
        engine, header = self._engine, arrival.header
        counted = state.current.accepted if state.current is not None else {}
        after, changes = step(state, Uploaded(now=engine.clock.now(), header=header))
        arrival.duplicate = any(isinstance(change, AlreadyCounted) for change in changes)
        if not arrival.duplicate:
            engine.aggregation.add(counted, header, arrival.read())
        return after, changes

    async def _give_up(self, error: DamagedFile) -> Exception:
        """Abandon the round, whose sum cannot be made any more, and return what to tell."""
        engine = self._engine
        if engine.state.current is None:
            return error
        number = engine.state.current.number
        try:
            await engine.fail(number, "a stored update is damaged", error)
        except Exception as failure:
            return failure
        return RoundClosed(f"Round {number} was abandoned.")
