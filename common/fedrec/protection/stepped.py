"""What protections have in common whose messages are made and summed in rounds of several steps."""

from __future__ import annotations

from typing import ClassVar

from fedrec.errors import RoundError
from fedrec.protection.envelope import Envelope
from fedrec.protection.protection import Accumulator, Member, Protection
from fedrec.protection.secret import SecretKey
from fedrec.protection.vector import Integers


class SteppedProtection(Protection):
    """A protection of which there is nothing outside a round, and of which nobody holds a key."""

    needs_reveal: ClassVar[bool] = False
    views: ClassVar[tuple[str, str]] = (
        "masked updates, their sums, the model",
        "interactions, any update",
    )
    presets: ClassVar[tuple[str, ...]] = ("default",)

    def generate(self) -> tuple[bytes, SecretKey]:
        """Return a context that names no key, and a secret in which there is none."""
        return Envelope.new_context(self.chosen, keyed=False), SecretKey._holding(b"none")

    def accumulator(self, context: bytes) -> Accumulator:
        """Refuse: a sum is that of one round, a `CoordinatorSide`'s."""
        raise self._without_round()

    def member(self, context: bytes, secret: bytes | SecretKey, *, tag_key: bytes = b"") -> Member:
        """Return a client's half outside a round, which can do nothing."""
        self._envelope(context)
        return _Alone(self._without_round())

    def _without_round(self) -> RoundError:
        return RoundError(
            f"Under {self.name} messages are made and summed by the clients of one round."
        )


class _Alone(Member):
    """A client outside a round: without the others there is nothing to protect with."""

    def __init__(self, refusal: RoundError) -> None:
        self._refusal = refusal

    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Refuse; see `ClientSide.protect`."""
        raise self._refusal

    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Refuse; see `CoordinatorSide.finish`."""
        raise self._refusal

    def over(self, protection: Protection) -> Member:
        """Return itself, which can do nothing with any vector."""
        return self

    def close(self) -> None:
        """Do nothing: there is no key."""
