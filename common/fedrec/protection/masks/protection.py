"""Masks among the other protections: the same plan and context, but no message without a round.

A message is masked by its client together with the other clients of one round
(`fedrec.protection.masks.participant`), and a sum is unmasked with their help
(`fedrec.protection.masks.collector`). So nobody protects a vector alone, and nobody holds a key.
"""

from __future__ import annotations

from typing import ClassVar

from fedrec.errors import RoundError
from fedrec.protection.envelope import Envelope
from fedrec.protection.masks.words import plan_masks
from fedrec.protection.plan import ProtectionPlan
from fedrec.protection.protection import Accumulator, Member, Protection
from fedrec.protection.secret import SecretKey
from fedrec.protection.vector import Integers, VectorSpec

__all__ = ["Masks"]


class Masks(Protection):
    """Words of 32 bits under masks that cancel in the sum of a round."""

    name: ClassVar[str] = "masks"
    summary: ClassVar[str] = (
        "exact integers under masks that clients agree on for one round, 4 bytes a value; no "
        "shared key, the coordinator reads the sums"
    )
    needs_reveal: ClassVar[bool] = False
    is_interactive: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("default",)

    @classmethod
    def statement(cls) -> str:
        """Return that sums are open, and who must collude to open more."""
        return (
            "Under masks the coordinator reads every round's sum, and of single messages random "
            "words; as many of a client's neighbours as the threshold who collude with it open "
            "that client's message."
        )

    @classmethod
    def _plan(cls, spec: VectorSpec, preset: str) -> ProtectionPlan:
        return plan_masks(spec, preset)

    def generate(self) -> tuple[bytes, SecretKey]:
        """Return a context that names no key, and a secret in which there is none."""
        return Envelope.new_context(self.chosen, keyed=False), SecretKey._holding(b"none")

    def accumulator(self, context: bytes) -> Accumulator:
        """Refuse: a sum of masked messages is a `Collector`'s, of one round."""
        raise _without_round()

    def member(self, context: bytes, secret: bytes | SecretKey, *, tag_key: bytes = b"") -> Member:
        """Return a client's half outside a round, which can do nothing."""
        self._envelope(context)
        return _Alone()


class _Alone(Member):
    """A client outside a round: without the others there is nothing to protect with."""

    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Refuse; see `Participant.mask`."""
        raise _without_round()

    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Refuse; see `Collector.unmask`."""
        raise _without_round()

    def over(self, protection: Protection) -> Member:
        """Return itself, which can do nothing with any vector."""
        return self

    def close(self) -> None:
        """Do nothing: there is no key."""


def _without_round() -> RoundError:
    return RoundError("Under masks messages are made and summed by the clients of one round.")
