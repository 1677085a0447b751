"""Adapt masks to the interface of protections. A message exists only within a round.

A client masks its message together with the other clients of one round
(`fedrec.protection.masks.participant`). Those clients also help to unmask the sum
(`fedrec.protection.masks.collector`). No client can therefore protect a vector alone, and no party
has a key.
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
        # Reading settings and `fedrec --help` must not import protocol buffers.
        from fedrec.protection.masks.rounds import MaskRounds

        return MaskRounds(settings.tolerance)

    @classmethod
    def _plan(
        cls, spec: VectorSpec, preset: str, largest: Protection | None = None
    ) -> ProtectionPlan:
        return plan_masks(spec, preset)
