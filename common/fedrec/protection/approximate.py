"""CKKS in approximate mode: fewer bytes, and sums that are only near the exact ones.

Segments of counts are encoded far above the noise and come out exact. Those of real values, which
are on a grid anyway, are encoded as high as the modulus allows: what is revealed is the nearest
grid point to a noisy value, off by at most the plan's ``error_bound``. That rounding does **not**
take the noise away, so the revealed integers give the secret key away to whoever is no key holder
(`tests/scenarios/test_scenario_02_key_recovery.py` computes it from them). They stay among the
members of the epoch: sealed on the way, never in a statement to the coordinator, and in an
exported model only under flooding (`flooding`).

All key holders must reveal the same integers from the same sum. Decryption is integer arithmetic;
decoding is made canonical by `embedding`, so they do, whatever their processors are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import RevealRefused
from fedrec.protection.blocks import BlockMember
from fedrec.protection.embedding import canonical_slots
from fedrec.protection.envelope import Envelope
from fedrec.protection.plan import ProtectionPlan
from fedrec.protection.tags import Tagging
from fedrec.protection.tenseal_blocks import BlockCipher
from fedrec.protection.vector import Integers, VectorSpec

__all__ = ["ApproximateMember"]

MAX_RESIDUE = 0.25
_REMEDY = "A contribution is damaged, or made with another key: abandon the round."


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlotTable:
    """What is known of each slot, all of shape (n_blocks, n_slots).

    Attributes:
        unit: as what a grid unit is encoded, a power of two.
        low, high: bounds of an honest sum.
        tolerance: how far noise may carry it; 0 where the slot is exact.
    """

    unit: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    tolerance: NDArray[np.float64]

    @classmethod
    def of(cls, spec: VectorSpec, plan: ProtectionPlan, n_slots: int) -> Self:
        """Lay the segments out as `LimbLayout.split` and `BlockMember.protect` do."""
        *units, counter_unit = plan.unit_bits
        columns = []
        for segment, count, bits in zip(spec.segments, plan.limbs, units, strict=True):
            free = segment.real and not plan.exact
            edge = float(segment.max_abs_sum) if free else np.inf
            low = float(segment.smallest) if free else -np.inf
            tolerance = float(plan.largest_error) if free else 0.0
            columns += [[[2.0**bits, low, edge, tolerance]] * (segment.length * count)]
        outside = [2.0**counter_unit, -np.inf, np.inf, 0.0]
        per_block = n_slots - 1
        table = np.full((plan.n_blocks * per_block, 4), outside)
        table[: plan.n_slots] = np.concatenate([np.array(column) for column in columns])
        whole = np.full((plan.n_blocks, n_slots, 4), outside)
        whole[:, :-1] = table.reshape(plan.n_blocks, per_block, 4)
        unit, low_, high, allowed = np.moveaxis(whole, 2, 0)
        return cls(unit=unit, low=low_, high=high, tolerance=allowed)


class ApproximateMember(BlockMember):
    """Encodes each segment in its own unit, and rounds every slot to the nearest grid point."""

    def __init__(
        self,
        spec: VectorSpec,
        plan: ProtectionPlan,
        envelope: Envelope,
        cipher: BlockCipher,
        tagging: Tagging | None,
        *,
        opens: bool = True,
    ) -> None:
        super().__init__(spec, plan, envelope, cipher, tagging, opens=opens)
        self._slots = _SlotTable.of(spec, plan, self._open_cipher().n_slots)
        self._scale = 2.0 ** (plan.scale_bits or 0)

    def encoded(self, rows: Integers) -> list[list[float]]:
        """Return the values whose encoding at the plan's scale is in each slot's unit."""
        # Powers of two: nothing is rounded.
        values: list[list[float]] = (rows * (self._slots.unit / self._scale)).tolist()
        return values

    def whole(self, values: list[list[float]]) -> Integers:
        """Return the nearest grid points, the same ones on every machine.

        Raises:
            RevealRefused: for slots that honest messages do not sum to.
        """
        found = [canonical_slots(np.array(block) * self._scale) for block in values]
        if any(block is None for block in found):
            raise RevealRefused("The sum does not decrypt to a sum of messages.", remedy=_REMEDY)
        real = np.stack([block for block in found if block is not None]) / self._slots.unit
        rounded = np.rint(real)
        slots = self._slots
        near = (slots.tolerance > 0) | (np.abs(real - rounded) <= MAX_RESIDUE)
        inside = (rounded >= slots.low - slots.tolerance) & (
            rounded <= slots.high + slots.tolerance
        )
        if not (near & inside).all():
            raise RevealRefused("The sum does not decrypt to a sum of messages.", remedy=_REMEDY)
        return np.clip(rounded, slots.low, slots.high).astype(np.int64)
