"""Masks among the other protections: the same plan and context, but no message without a round.

A message is masked by its client together with the other clients of one round
(`fedrec.protection.masks.participant`), and a sum is unmasked with their help
(`fedrec.protection.masks.collector`). So nobody protects a vector alone, and nobody holds a key.
"""

from __future__ import annotations

from typing import ClassVar

from fedrec.protection.masks.terms import STEPS
from fedrec.protection.masks.words import plan_masks
from fedrec.protection.protection import Protection, SteppedProtection
from fedrec.protection.protection_plan import ProtectionPlan
from fedrec.protection.round_protocol import RoundProtocol, Steps
from fedrec.protection.settings import ProtectionSettings
from fedrec.protection.vector import VectorSpec


class Masks(SteppedProtection):
    """Words of 32 bits under masks that cancel in the sum of a round."""

    name: ClassVar[str] = "masks"
    steps: ClassVar[Steps] = STEPS

    def round_protocol(self, settings: ProtectionSettings) -> RoundProtocol:
        """Return both sides of a round's five steps."""
        # Settings are read, and `fedrec --help` is answered, without protocol buffers.
        from fedrec.protection.masks.rounds import MaskRounds

        return MaskRounds(settings.tolerance)

    @classmethod
    def _plan(
        cls, spec: VectorSpec, preset: str, largest: Protection | None = None
    ) -> ProtectionPlan:
        return plan_masks(spec, preset)
