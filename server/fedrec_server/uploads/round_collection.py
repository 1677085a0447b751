"""The interface of what adds up a round: a message for each client, or several steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from fedrec.errors import ProtocolError
from fedrec.ids import ClientId
from fedrec.wire.messages import StepMessage, UploadHeader
from fedrec_server.rounds.state import Round

__all__ = ["Collection"]


class Collection(ABC):
    """The sum of the round in progress, which follows what the store holds of it.

    By default a round has one step, in which each client sends its vector.
    """

    @abstractmethod
    def forget(self) -> None:
        """Start anew with what the store has."""

    @abstractmethod
    def add(
        self, counted: Mapping[ClientId, UploadHeader], header: UploadHeader, payload: bytes
    ) -> None:
        """Add a client's vector to the sum of those counted so far.

        Raises:
            FedrecError: it does not fit; the sum is as before.
        """

    @abstractmethod
    def finish(self, counted: Mapping[ClientId, UploadHeader]) -> bytes:
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

    def is_due(self, round_: Round, now: float) -> bool:
        """Tell whether the present step is over, and `close` is to end it."""
        return False

    def close(self, round_: Round) -> frozenset[ClientId]:
        """Close the present step; return who is left out of it.

        Raises:
            FedrecError: when those who are left cannot bring the round to its end.
        """
        raise _no_steps()


def _no_steps() -> ProtocolError:
    return ProtocolError("The federation's protection takes no messages of this kind.")
