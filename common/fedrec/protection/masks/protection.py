"""Masks among the other protections: the same plan and context, but no message without a round.

A message is masked by its client together with the other clients of one round
(`fedrec.protection.masks.participant`), and a sum is unmasked with their help
(`fedrec.protection.masks.collector`). So nobody protects a vector alone, and nobody holds a key.
"""

from __future__ import annotations

from typing import ClassVar

from fedrec.protection.asked_round import AskedRound, Price
from fedrec.protection.masks.terms import MAX_CLIENTS, STEPS, parameters_for
from fedrec.protection.masks.words import mask_price, mask_warnings, plan_masks
from fedrec.protection.protection import SteppedProtection
from fedrec.protection.protection_plan import ProtectionPlan
from fedrec.protection.round_protocol import RoundProtocol, Steps
from fedrec.protection.settings import ProtectionSettings
from fedrec.protection.vector import VectorSpec

_EVERY_SIZE_TO = 128
"""Above, what a graph withstands no longer depends on how shares of its size are rounded."""


class Masks(SteppedProtection):
    """Words of 32 bits under masks that cancel in the sum of a round."""

    name: ClassVar[str] = "masks"
    summary: ClassVar[str] = (
        "exact integers under masks that clients agree on for one round, 4 bytes a value; no "
        "shared key, the coordinator reads the sums"
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
    def steps_price(cls, asked: AskedRound) -> Price:
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
