"""What adds up a round, its sum, and where the coordinator reads it how many hold each item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import BinaryIO

import numpy as np

from fedrec.errors import FedrecError, ProtocolError, SumOutOfBounds
from fedrec.ids import ClientId, RoundId
from fedrec.protection import Accumulator
from fedrec.training.round_vectors import COUNTS
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import StepMessage, UploadHeader
from fedrec_server.federation import HolderCounts
from fedrec_server.rounds.by_client import Counted
from fedrec_server.rounds.state import Round
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import sum_name


class Collection(ABC):
    """The sum of the round in progress, which follows what the store holds of it.

    By default a round has one step, in which each client sends its vector.
    """

    @abstractmethod
    def forget(self) -> None:
        """Start anew with what the store has."""

    @abstractmethod
    def add(self, counted: Counted, header: UploadHeader, message: BinaryIO) -> None:
        """Add a client's vector, which a file holds, to the sum of those counted so far.

        Raises:
            FedrecError: it does not fit; the sum is as before.
        """

    @abstractmethod
    def finish(self, counted: Counted) -> bytes:
        """Return the sum of exactly the counted vectors.

        Raises:
            FedrecError: there is none.
        """

    def hear(self, round_: Round, message: StepMessage) -> None:
        """Take a message of a step that the state machine lets pass.

        Args:
            round_: without the message.

        Raises:
            FedrecError: when it does not fit; nothing is changed.
        """
        raise _no_steps()

    def material(self, round_: Round, client_id: ClientId, step: str) -> bytes:
        """Return what a participant needs for the present step.

        Raises:
            RoundClosed: when the step is not the present one, or not for this client.
        """
        raise _no_steps()

    def is_due(self, round_: Round, now: float, gone: frozenset[ClientId]) -> bool:
        """Tell whether the present step is over, and `close` is to end it."""
        return False

    def close(self, round_: Round) -> frozenset[ClientId]:
        """Close the present step; return who is left out of it.

        Raises:
            FedrecError: when those who are left cannot bring the round to its end.
        """
        raise _no_steps()


class RunningSum(Collection):
    """An accumulator that remembers whose updates are in it and rebuilds itself from the spool.

    Adding is not idempotent, so that what is in the sum has to follow the store, never the
    other way round: after a crash, or where an update was added but could not be committed, the
    sum is made again from the stored files.

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
        """Start anew with the next update."""
        self._folded = Counted()
        # Made with the first update: before it nobody knows which round it will be of.
        self._accumulator: Accumulator | None = None

    def add(self, counted: Counted, header: UploadHeader, message: BinaryIO) -> None:
        """Add an update to the sum of those counted so far.

        Raises:
            MalformedUpdate: when it is malformed; the sum is as before.
            DamagedFile: when a counted update cannot be read any more.
        """
        self._follow(counted)
        self._made().add_from(message)
        self._folded = counted.with_update(header)

    def finish(self, counted: Counted) -> bytes:
        """Return the sum of exactly the counted updates, and keep none of it.

        Raises:
            DamagedFile: when one of them cannot be read any more.
        """
        self._follow(counted)
        total = self._made().finish()
        # Asked for again it is made again; until the next round it would only take memory.
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
    return ProtocolError("The federation's protection takes no messages of this kind.")


class ItemHolders:
    """Reads published count rounds, each once; to be used in the store's thread."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._seen = RoundId(0)
        self._found: HolderCounts | None = None

    def known(self) -> HolderCounts | None:
        """Return what the published count rounds say.

        Returns:
            None before it, or where nobody knows how vectors lie.

        Raises:
            DamagedFile: it cannot be read any more.
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
    return protection.accumulator(run.federation.keys.server_context)


class RoundSum:
    """Makes and reads sums; everything here runs in the store's thread.

    Args:
        collection: what was counted of the round in progress.
    """

    def __init__(self, run: LiveRun, collection: Collection) -> None:
        self._run = run
        self._collection = collection
        self._holders = ItemHolders(run)

    def make(self, round_: Round) -> tuple[Blob, bytes, StatedRows | None]:
        """Write the sum of a round's counted updates.

        Returns:
            Its file; where the coordinator can read it, its metrics, and the rows that travel after
            a count.

        Raises:
            SumOutOfBounds: no honest clients add up to it.
            FedrecError: the sum cannot be made.
        """
        run = self._run
        total = self._collection.finish(round_.accepted)
        metrics, rows = b"", None
        if not run.federation.protection.needs_reveal:
            metrics, rows = self._read(round_, total, round_.accepted.keys())
        if run.state.rules.shares_key:
            # A party that did not add the updates up cannot try which ones are in the sum.
            total = accumulator_of(run).refreshed(total)
        return run.store.spool.write(sum_name(round_.number), total), metrics, rows

    def unfit(self, round_: Round) -> list[tuple[ClientId, FedrecError]]:
        """Return whose updates hold by themselves what no honest client sends.

        Nobody's, where single updates cannot be read.
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

    def _read(
        self, round_: Round, total: bytes, clients: Iterable[ClientId]
    ) -> tuple[bytes, StatedRows | None]:
        """Return what a readable sum of these clients' updates says; see `Federation.read_sum`."""
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
