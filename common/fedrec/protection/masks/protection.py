"""Masks among the other protections: the same plan and context, but no message without a round.

A message is masked by its client together with the other clients of one round
(`fedrec.protection.masks.participant`), and a sum is unmasked with their help
(`fedrec.protection.masks.collector`). So nobody protects a vector alone, and nobody holds a key.
"""

from __future__ import annotations

from typing import ClassVar

from fedrec.errors import RoundError
from fedrec.protection.asked_round import AskedRound, StepsPrice
from fedrec.protection.envelope import Envelope
from fedrec.protection.masks.parameters import MAX_CLIENTS, parameters_for
from fedrec.protection.masks.price import mask_price, mask_warnings
from fedrec.protection.masks.steps import STEPS
from fedrec.protection.masks.words import plan_masks
from fedrec.protection.plan import ProtectionPlan
from fedrec.protection.protection import Accumulator, Member, Protection
from fedrec.protection.round_protocol import RoundProtocol, Steps
from fedrec.protection.secret import SecretKey
from fedrec.protection.settings import ProtectionSettings
from fedrec.protection.vector import Integers, VectorSpec

__all__ = ["Masks"]

_EVERY_SIZE_TO = 128
"""Above, what a graph withstands no longer depends on how shares of its size are rounded."""


class Masks(Protection):
    """Words of 32 bits under masks that cancel in the sum of a round."""

    name: ClassVar[str] = "masks"
    summary: ClassVar[str] = (
        "exact integers under masks that clients agree on for one round, 4 bytes a value; no "
        "shared key, the coordinator reads the sums"
    )
    needs_reveal: ClassVar[bool] = False
    views: ClassVar[tuple[str, str]] = (
        "masked updates, their sums, the model",
        "interactions, any update",
    )
    steps: ClassVar[Steps] = STEPS
    own_settings: ClassVar[tuple[str, ...]] = (
        "protection.corrupt_share",
        "protection.dropout_share",
        "protection.coordinator",
        "rounds.mask_step_seconds",
    )
    most_clients: ClassVar[int | None] = MAX_CLIENTS
    without_entries: ClassVar[str] = (
        "these only cancel where all clients of a round add values at the same places"
    )
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
    def fewest_clients(
        cls, settings: ProtectionSettings, minimum_summands: int, n_members: int
    ) -> int:
        """Return how many keys a list has at least; see `Tolerance.fewest_listed`."""
        return settings.tolerance.fewest_listed(minimum_summands, n_members)

    @classmethod
    def check_sizes(cls, least: int, most: int, settings: ProtectionSettings) -> None:
        """Check that there is a graph for every size."""
        for count in (*range(least, min(most, _EVERY_SIZE_TO) + 1), most):
            parameters_for(count, settings.tolerance)

    @classmethod
    def steps_price(cls, asked: AskedRound) -> StepsPrice:
        """Return what keys, shares, signatures and answers cost."""
        return mask_price(asked)

    @classmethod
    def warnings(cls, asked: AskedRound) -> list[str]:
        """Return who must collude, how many may drop out, and what makes values longer."""
        return mask_warnings(asked)

    def round_protocol(self, settings: ProtectionSettings) -> RoundProtocol:
        """Return both sides of a round's five steps."""
        # Settings are read, and `fedrec --help` is answered, without protocol buffers.
        from fedrec.protection.masks.rounds import MaskRounds

        return MaskRounds(settings.tolerance)

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
