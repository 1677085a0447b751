"""Add up a round in groups of arrivals, and read its sum and item counts if the coordinator can."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Generic, TypeVar

import numpy as np

from fedrec.errors import (
    FedrecError,
    ProtocolError,
    RoundClosed,
    StorageError,
    SumOutOfBounds,
)
from fedrec.ids import ClientId, RoundId
from fedrec.model.state import SharedState
from fedrec.protection import Accumulator
from fedrec.protection.protection import in_one_step
from fedrec.training.round_vectors import COUNTS
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import StepMessage, UploadHeader
from fedrec_server.federation import HolderCounts
from fedrec_server.rounds.by_client import Counted
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.state import Round, State
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import DurabilityLost, sum_name
from fedrec_server.uploads.own_models import OwnModels

Item = TypeVar("Item")


class Collection(ABC):
    """The sum of the round in progress, which follows the store's content.

    By default a round has one step, in which each client sends its vector.
    """

    @abstractmethod
    def forget(self) -> None:
        """Start again from the store's content."""

    @abstractmethod
    def add(self, counted: Counted, header: UploadHeader, message: BinaryIO) -> None:
        """Add a client's vector, stored in a file, to the sum of the counted ones.

        Raises:
            FedrecError: the vector is inconsistent with the round. The sum is unchanged.
        """

    @abstractmethod
    def finish(self, counted: Counted) -> bytes:
        """Return the sum of exactly the counted vectors.

        Raises:
            FedrecError: the sum cannot be computed.
        """

    def hear(self, round_: Round, message: StepMessage) -> None:
        """Take a message of a step that the state machine admits.

        Args:
            round_: the round without the message.

        Raises:
            FedrecError: if the message is inconsistent with the round. The collection is unchanged.
        """
        raise _no_steps()

    def material(self, round_: Round, client_id: ClientId, step: str) -> bytes:
        """Return the data that a participant needs for the current step.

        Raises:
            RoundClosed: if the step is not the current one, or not for this client.
        """
        raise _no_steps()

    def is_due(self, round_: Round, now: float, gone: frozenset[ClientId]) -> bool:
        """Return whether the current step is over and `close` has to end it."""
        return False

    def close(self, round_: Round) -> frozenset[ClientId]:
        """Close the current step. Return the clients that it leaves out.

        Raises:
            FedrecError: if the remaining clients cannot finish the round.
        """
        raise _no_steps()


class RunningSum(Collection):
    """An accumulator that remembers the clients in it and rebuilds itself from the spool.

    Adding is not idempotent, so the sum must follow the store, never the other way round. After a
    crash or a failed commit, the sum is computed again from the stored files.

    Args:
        make: returns an empty accumulator of the round in progress.
        read: returns a counted update's bytes.
    """

    def __init__(
        self, make: Callable[[], Accumulator], read: Callable[[UploadHeader], bytes]
    ) -> None:
        self._make = make
        self._read = read
        self.forget()

    def forget(self) -> None:
        """Start again with the next update."""
        self._folded = Counted()
        # Created with the first update, because the round is unknown before.
        self._accumulator: Accumulator | None = None

    def add(self, counted: Counted, header: UploadHeader, message: BinaryIO) -> None:
        """Add an update to the sum of those counted so far.

        Raises:
            MalformedUpdate: if the update is malformed. The sum is unchanged.
            DamagedFile: if a counted update is no longer readable.
        """
        self._follow(counted)
        self._made().add_from(message)
        self._folded = counted.with_update(header)

    def finish(self, counted: Counted) -> bytes:
        """Return the sum of exactly the counted updates, and release its memory.

        Raises:
            DamagedFile: if a counted update is no longer readable.
        """
        self._follow(counted)
        total = self._made().finish()
        # A second request computes it again. Until the next round it would only take memory.
        self.forget()
        return total

    def _made(self) -> Accumulator:
        if self._accumulator is None:
            self._accumulator = self._make()
        return self._accumulator

    def _follow(self, counted: Counted) -> None:
        if self._folded == counted:
            return
        self.forget()
        if not counted:
            return
        total = self._make()
        for _, header in sorted(counted.items()):
            total.add(self._read(header))
        self._accumulator, self._folded = total, counted


def _no_steps() -> ProtocolError:
    return ProtocolError("The federation's protection does not use messages of this kind.")


@dataclass(slots=True, kw_only=True, eq=False)
class _Arrival(Generic[Item]):
    """A waiting item. `answer` becomes true if it was taken before."""

    item: Item
    answer: asyncio.Future[bool]
    duplicate: bool = False
    refusal: Exception | None = None


class GroupCommit(ABC, Generic[Item]):
    """Adds arrivals to the round's collection, and commits those that wait in one transaction.

    A commit waits for the disk whatever its size. During one commit, more items gather for the
    next. Each item is checked on its own. If the commit fails, all its items are rejected.
    """

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


class ItemHolders:
    """Reads published count rounds, each once. Only the store's thread uses it."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._seen = RoundId(0)
        self._found: HolderCounts | None = None

    def known(self) -> HolderCounts | None:
        """Return the item counts of the published count rounds.

        Returns:
            None before the first one, or if the layout of vectors is unknown.

        Raises:
            DamagedFile: a count round's sum is no longer readable.
        """
        vectors = self._run.federation.vectors
        if vectors.layouts is None:
            return None
        while (record := self._run.store.next_published(self._seen)) is not None:
            if record.kind == "count":
                rows = StatedRows.whole(vectors.n_items)
                total = self._run.store.spool.read(record.name, record.blob)
                parts = self._run.federation.parts_of_sum(
                    "count", rows, total, len(record.contributions)
                )
                last = parts[COUNTS].astype(np.int64)
                first = last if self._found is None else self._found.first
                self._found = HolderCounts(first=first, last=last)
            self._seen = record.round
        return self._found


def accumulator_of(run: LiveRun) -> Accumulator:
    """Return an empty sum of the round in progress."""
    round_ = run.state.current
    protection = run.protection_of("train" if round_ is None else round_.kind)
    return in_one_step(protection).accumulator(run.federation.keys.server_context)


Read = tuple[bytes, StatedRows | None]
"""A sum's metrics and, after a count, the travelling rows, if the coordinator can read it."""


class RoundSum:
    """Computes and reads sums, in the store's thread.

    Args:
        collection: the counted updates of the round in progress.

    Attributes:
        own_models: the models of single clients.
    """

    def __init__(self, run: LiveRun, collection: Collection) -> None:
        self._run = run
        self._collection = collection
        self._holders = ItemHolders(run)
        self._making: tuple[RoundId, asyncio.Task[bytes | None], Read] | None = None
        self.own_models = OwnModels(run)

    async def make(self, round_: Round) -> tuple[Blob, bytes, StatedRows | None] | None:
        """Write the sum of a round's counted updates, and models of single clients.

        The caller holds the run's lock. Models of thousands of users take minutes, so they are made
        in the background, and the run advances once they are done. Meanwhile the run can change.

        Returns:
            Its file and, if the coordinator can read it, its metrics and after a count the
            travelling rows. None while models are being made.

        Raises:
            SumOutOfBounds: no honest updates add up to it.
            FedrecError: the sum cannot be computed.
        """
        run = self._run
        if self._making is None or self._making[0] != round_.number:
            total, read = await run.work.in_thread(self._add_up, round_)
            before = await run.work.in_thread(self.own_models.version_before, round_)
            if before is not None:
                task = run.work.background(self._with_models(round_, total, before))
                task.add_done_callback(lambda _: run.advance_soon())
                self._making = round_.number, task, read
                return None
        else:
            _, task, read = self._making
            if not task.done():
                return None
            if task.exception() is not None:
                # A later call tries again.
                self._making = None
            made = task.result()
            if made is None:
                return None
            total = made
        blob = await run.work.in_thread(run.store.spool.write, sum_name(round_.number), total)
        return blob, *read

    async def _with_models(self, round_: Round, total: bytes, before: SharedState) -> bytes | None:
        """Write the models. Return what is published of a round, or None if it is not needed."""
        run, number = self._run, round_.number
        with suppress(RoundClosed):
            made = await run.work.beside(self.own_models.publication, round_, total, before)
            # It may have been abandoned while the last models were written.
            if run.state.current is not None and run.state.current.number == number:
                return made
        delete = run.store.spool.delete_own_models
        await run.work.in_thread(delete, range(number, number + 1), round_.accepted)
        return None

    def _add_up(self, round_: Round) -> tuple[bytes, Read]:
        run = self._run
        total = self._collection.finish(round_.accepted)
        metrics, rows = b"", None
        if not run.federation.protection.needs_reveal:
            metrics, rows = self._read(round_, total, round_.accepted.keys())
        if run.state.rules.shares_key:
            # A party that did not add the updates up cannot test which ones are in the sum.
            total = accumulator_of(run).refreshed(total)
        return total, (metrics, rows)

    def unfit(self, round_: Round) -> list[tuple[ClientId, FedrecError]]:
        """Return the clients whose updates have values that no honest client sends.

        If single updates are unreadable, return none.
        """
        found: list[tuple[ClientId, FedrecError]] = []
        if self._run.federation.protection.hides_updates:
            return found
        for client_id, header in sorted(round_.accepted.items()):
            total = accumulator_of(self._run)
            total.add(self._run.read_update(header))
            try:
                self._read(round_, total.finish(), (client_id,))
            except SumOutOfBounds as error:
                found.append((client_id, error))
        return found

    def _read(self, round_: Round, total: bytes, clients: Iterable[ClientId]) -> Read:
        """Return the content of a readable sum of these clients' updates.

        See `Federation.read_sum`.
        """
        run = self._run
        return run.federation.read_sum(
            round_.kind,
            run.state.rows_of(round_.kind),
            total,
            tuple(clients),
            run.name,
            counted=self._holders.known(),
            trained=run.state.trained,
        )
