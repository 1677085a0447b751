"""What adds up a round: the interface, and the sum of rounds of one message for each client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import BinaryIO

from fedrec.errors import ProtocolError
from fedrec.ids import ClientId
from fedrec.protection import Accumulator
from fedrec.wire.messages import StepMessage, UploadHeader
from fedrec_server.rounds.by_client import Counted
from fedrec_server.rounds.state import Round


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
