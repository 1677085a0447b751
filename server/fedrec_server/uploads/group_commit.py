"""Commit items that wait together in one transaction.

A commit waits for the disk whatever its size. During one commit, more items gather for the next.
Each item is checked on its own. If the commit fails, all its items are rejected.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from fedrec.errors import FedrecError, StorageError
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.state import State
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import DurabilityLost
from fedrec_server.uploads.round_sum import Collection

Item = TypeVar("Item")


@dataclass(slots=True, kw_only=True, eq=False)
class _Arrival(Generic[Item]):
    """A waiting item. `answer` becomes true if it was taken before."""

    item: Item
    answer: asyncio.Future[bool]
    duplicate: bool = False
    refusal: Exception | None = None


class GroupCommit(ABC, Generic[Item]):
    """Adds arrivals to the round's collection and commits them in groups."""

    def __init__(self, run: LiveRun, collection: Collection) -> None:
        self._run = run
        self._collection = collection
        self._arrived: list[_Arrival[Item]] = []

    async def commit(self, item: Item) -> bool:
        """Return once the item is durable. The result is true if it was durable before.

        Raises:
            FedrecError: if the item is not accepted.
        """
        run, answer = self._run, asyncio.get_running_loop().create_future()
        self._arrived.append(_Arrival(item=item, answer=answer))
        async with run.lock:
            # The previous holder of the lock may have committed this item too.
            if answer.done():
                return bool(answer.result())
            group, self._arrived = self._arrived, []
            failure: Exception | None = None
            try:
                await run.decide_and_commit(partial(self._take_all, group))
            except Exception as error:
                # The items are in the collection but not in the store.
                self._collection.forget()
                failure = await self._failure_of(error)
            for arrival in group:
                found = arrival.refusal or failure
                if found is None:
                    arrival.answer.set_result(arrival.duplicate)
                else:
                    arrival.answer.set_exception(found)
            self._decided()
        return bool(answer.result())

    def _take_all(self, group: list[_Arrival[Item]]) -> tuple[State, tuple[Change, ...]]:
        """Take the whole group and return the changes to commit. The caller holds the lock."""
        state = self._run.state
        changes: list[Change] = []
        for arrival in group:
            try:
                state, found = self._take(state, arrival.item)
                arrival.duplicate = any(isinstance(change, AlreadyCounted) for change in found)
                changes += found
            except (StorageError, DurabilityLost):
                raise
            except FedrecError as error:
                arrival.refusal = error
            except Exception as error:
                # The other items must not suffer from one that breaks the collection. It may be
                # half changed, so it is rebuilt from the store.
                self._collection.forget()
                arrival.refusal = error
        return state, tuple(changes)

    @abstractmethod
    def _take(self, state: State, item: Item) -> tuple[State, tuple[Change, ...]]:
        """Return the state with the item and the changes to commit. Runs in the store's thread.

        Raises:
            FedrecError: if the item is inconsistent with the state. The state is unchanged.
        """

    async def _failure_of(self, error: Exception) -> Exception:
        """Return the error for every item whose commit failed."""
        return error

    def _decided(self) -> None:
        """Do what follows from a group. The caller holds the lock."""
