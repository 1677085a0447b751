"""Clients' updates of the round in progress: admitted, received, counted, acknowledged.

What waits together shares a transaction. A commit waits for the disk, whatever it commits: while
one goes on, more gathers for the next. Each is refused for itself; a commit that fails refuses all
that it was for.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Generic, TypeVar

from fedrec.errors import ConflictingUpload, DamagedFile, FedrecError, RoundClosed, StorageError
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import ByteChunk
from fedrec.wire.messages import UploadHeader, UploadStatus
from fedrec_server.peers.admission import Admission
from fedrec_server.rounds.by_client import Counted
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.collecting import is_counted
from fedrec_server.rounds.events import Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import DurabilityLost, update_name
from fedrec_server.uploads.incoming import Incoming, StreamTurns
from fedrec_server.uploads.round_sum import Collection

What = TypeVar("What")


@dataclass(slots=True, kw_only=True, eq=False)
class _Arrival(Generic[What]):
    """Something that waits; `answer` tells whether it was taken before."""

    what: What
    answer: asyncio.Future[bool]
    duplicate: bool = False
    refusal: Exception | None = None


class GroupCommit(ABC, Generic[What]):
    """Takes what arrives into the round's collection and commits that it is there."""

    def __init__(self, run: LiveRun, collection: Collection) -> None:
        self._run = run
        self._collection = collection
        self._arrived: list[_Arrival[What]] = []

    async def commit(self, what: What) -> bool:
        """Return once it is durable; True when it was before.

        Raises:
            FedrecError: when it is not taken.
        """
        run, answer = self._run, asyncio.get_running_loop().create_future()
        self._arrived.append(_Arrival(what=what, answer=answer))
        async with run.lock:
            # The holder of the lock before may have taken this one along.
            if answer.done():
                return bool(answer.result())
            group, self._arrived = self._arrived, []
            failure: Exception | None = None
            try:
                await run.commit_what(partial(self._take_all, group))
            except Exception as error:
                # They are in the collection but not in the store.
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

    def _take_all(self, group: list[_Arrival[What]]) -> tuple[State, tuple[Change, ...]]:
        """Take the group in and return what to commit; the lock is held."""
        state = self._run.state
        changes: list[Change] = []
        for arrival in group:
            try:
                state, found = self._take(state, arrival.what)
                arrival.duplicate = any(isinstance(change, AlreadyCounted) for change in found)
                changes += found
            except (StorageError, DurabilityLost):
                raise
            except FedrecError as error:
                arrival.refusal = error
            except Exception as error:
                # Nobody else pays for one that breaks the collection; it may be half changed, so it
                # is made again from what is durable.
                self._collection.forget()
                arrival.refusal = error
        return state, tuple(changes)

    @abstractmethod
    def _take(self, state: State, what: What) -> tuple[State, tuple[Change, ...]]:
        """Return the state with it and what to commit; in the store's thread.

        Raises:
            FedrecError: when it does not fit; nothing is changed.
        """

    async def _failure_of(self, error: Exception) -> Exception:
        """Return what to tell everybody whose commit failed."""
        return error

    def _decided(self) -> None:
        """Do what follows from a group; the lock is held."""


Update = tuple[UploadHeader, Callable[[], BinaryIO]]
"""An admitted header, and what opens its bytes; called in the store's thread."""


class Updates(GroupCommit[Update]):
    """Takes in updates and adds them to the sum; those that wait together are committed together.

    Args:
        turns: two streams into one draft would destroy each other.
    """

    def __init__(
        self, run: LiveRun, collection: Collection, admission: Admission, turns: StreamTurns
    ) -> None:
        super().__init__(run, collection)
        self._admission = admission
        self._turns = turns

    async def receive(self, header: UploadHeader, chunks: AsyncIterator[ByteChunk]) -> bool:
        """Take in an update once it is durable and counted; True when it was before.

        Raises:
            FedrecError: before anything is written where the header is refused, else when the
                bytes are not the announced ones or the round does not take them.
        """
        run = self._run
        self._admission.check_header(header)
        async with self._turns.turn(header.client_id):
            run.presence.heard(header.client_id)
            if await self.is_duplicate(header):
                return True
            # Begun, or gone on with: what an earlier try left is read and hashed.
            incoming = await run.work.beside(IncomingUpdate, run, self, header)
            return await self._turns.take(incoming, chunks)

    async def status(
        self, name: str, round_id: RoundId, client_id: ClientId, digest: bytes
    ) -> UploadStatus:
        """Return how much of an upload is durable.

        Args:
            name: of the run.
        """
        run = self._run
        self._admission.check_run(name)
        self._admission.check_member(client_id)
        run.presence.heard(client_id)
        counted = await self.counted(round_id, client_id)
        if counted is not None and counted.digest == digest:
            return UploadStatus(offset=counted.length, accepted=True)
        offset = await run.work.beside(run.store.spool.uploaded, round_id, client_id, digest)
        return UploadStatus(offset=offset, accepted=False)

    async def is_duplicate(self, header: UploadHeader) -> bool:
        """Tell whether the same update is counted, in this round or an earlier one.

        Raises:
            RoundError: when the round does not take the update.
        """
        try:
            return is_counted(self._run.state, header)
        except RoundClosed:
            counted = await self.counted(header.round, header.client_id)
            if counted is None:
                raise
            if counted.digest != header.digest:
                raise ConflictingUpload(
                    f"Another update of this client is counted in round {header.round}."
                ) from None
            return True

    async def counted(self, round_id: RoundId, client_id: ClientId) -> UploadHeader | None:
        """Return a client's counted update of a round; the one in progress is in memory."""
        run, round_ = self._run, self._run.state.current
        if round_ is not None and round_.number == round_id:
            return round_.accepted.get(client_id)
        return await run.work.in_thread(run.store.counted, round_id, client_id)

    def _take(self, state: State, what: Update) -> tuple[State, tuple[Change, ...]]:
        header, opened = what
        counted = state.current.accepted if state.current is not None else Counted()
        after, changes = step(state, Uploaded(now=self._run.clock.now(), header=header))
        if not any(isinstance(change, AlreadyCounted) for change in changes):
            with opened() as message:
                self._collection.add(counted, header, message)
        return after, changes

    async def _failure_of(self, error: Exception) -> Exception:
        """Abandon the round where its sum cannot be made any more, and return what to tell."""
        run = self._run
        if not isinstance(error, DamagedFile) or run.state.current is None:
            return error
        number = run.state.current.number
        try:
            await run.fail(number, "a stored update is damaged", error)
        except Exception as failure:
            return failure
        return RoundClosed(f"Round {number} was abandoned.")


class IncomingUpdate(Incoming):
    """One client's update of the round in progress; an interrupted one can go on later."""

    def __init__(self, run: LiveRun, updates: Updates, header: UploadHeader) -> None:
        draft = run.store.spool.upload(header.round, header.client_id, header.blob)
        super().__init__(run, draft, header.blob)
        self._updates = updates
        self._header = header
        self._name = update_name(header.round, header.client_id)
        self._kept = False

    async def _count(self) -> bool:
        run, header = self._run, self._header
        if await self._updates.is_duplicate(header):
            await run.work.beside(self._draft.discard)
            return True
        # Synced and durable under its name before its turn to be counted, so that nobody waits for
        # this disk access and only what counts goes one after another: the client's turn keeps
        # others from the name, and without a row the file is an orphan.
        try:
            await run.work.beside(self._draft.keep, self._name)
        except FileNotFoundError:
            # The round ended meanwhile and took its unfinished uploads along.
            raise RoundClosed(f"Round {header.round} is over.") from None
        self._kept = True
        duplicate = await self._updates.commit((header, self._draft.opened))
        run.failpoint("update.ack")
        return duplicate

    async def _refused(self) -> None:
        await super()._refused()
        run, header = self._run, self._header
        # Whatever the error says, no row may lose its file.
        if self._kept and await self._updates.counted(header.round, header.client_id) is None:
            await run.work.beside(run.store.spool.delete, self._name)
