"""Values wider than a slot: split into limbs before the sum, joined exactly after it.

A value v becomes n limbs of w bits. All but the last are unsigned, the last carries the sign:
v = l_0 + 2^w l_1 + ... + 2^(w(n-1)) l_(n-1), 0 <= l_i < 2^w for i < n-1, which is arithmetic
shifting. With K messages of which none has |v| summing above B in a slot, and S = w(n-1):

- every lower limb sums to at most K (2^w - 1), which w is chosen to keep within the slot;
- the last limb is floor(v / 2^S), so the absolute values sum to at most B / 2^S + K.

Who holds the key sees the sums of the limbs, which say more than the sum of the values: how many
carries the messages made. Noise in the values is not proven to hide that, so noisy segments stay
whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.errors import RevealRefused
from fedrec.protection.vector import Integers, SegmentSpec, VectorSpec

MAX_LIMBS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LimbLayout:
    """How many limbs each segment takes, and of how many bits.

    Attributes:
        limb_bits: width w of an unsigned limb; 0 when no segment is split.
        limbs: number of limbs of each segment.
    """

    limb_bits: int
    limbs: tuple[int, ...]

    @classmethod
    def fit(cls, spec: VectorSpec, capacity: int) -> LimbLayout | None:
        """Return the layout with the fewest limbs whose sums stay within ±capacity, if any."""
        width = (capacity // spec.max_summands + 1).bit_length() - 1
        limbs = []
        for segment in spec.segments:
            count = 1
            while _last_limb_bound(segment, spec.max_summands, count, width) > capacity:
                count += 1
                if segment.whole or width < 1 or count > MAX_LIMBS:
                    return None
            limbs.append(count)
        split = any(count > 1 for count in limbs)
        return cls(limb_bits=width if split else 0, limbs=tuple(limbs))

    def n_slots(self, spec: VectorSpec) -> int:
        """Return how many slots the whole vector takes."""
        pairs = zip(spec.segments, self.limbs, strict=True)
        return sum(segment.length * count for segment, count in pairs)

    def largest_sum(self, spec: VectorSpec) -> int:
        """Return the bound on the absolute value of any limb's sum."""
        bounds = [
            _last_limb_bound(segment, spec.max_summands, count, self.limb_bits)
            for segment, count in zip(spec.segments, self.limbs, strict=True)
        ]
        if self.limb_bits:
            bounds.append(spec.max_summands * (2**self.limb_bits - 1))
        return max(bounds)

    def split(self, spec: VectorSpec, vector: Integers) -> Integers:
        """Return the limbs of a valid vector: segment after segment, low limb first."""
        mask = (1 << self.limb_bits) - 1
        parts: list[Integers] = []
        for (_, values), count in zip(spec.pieces(vector), self.limbs, strict=True):
            parts += [(values >> (self.limb_bits * i)) & mask for i in range(count - 1)]
            parts.append(values >> (self.limb_bits * (count - 1)))
        return np.concatenate(parts)

    def join(self, spec: VectorSpec, sums: Integers, n_summands: int) -> Integers:
        """Return the vector whose limbs, summed over ``n_summands`` messages, are ``sums``.

        Raises:
            RevealRefused: when a limb or a value is outside what honest messages can sum to.
        """
        parts: list[Integers] = []
        start = 0
        for segment, count in zip(spec.segments, self.limbs, strict=True):
            stop = start + count * segment.length
            limbs = sums[start:stop].reshape(count, segment.length)
            start = stop
            parts.append(self._join_segment(segment, limbs, n_summands))
        return np.concatenate(parts)

    def _join_segment(self, segment: SegmentSpec, limbs: Integers, n_summands: int) -> Integers:
        count = len(limbs)
        last_bound = _last_limb_bound(segment, n_summands, count, self.limb_bits)
        _refuse_outside(segment, limbs[-1], -last_bound, last_bound)
        _refuse_outside(segment, limbs[:-1], 0, n_summands * ((1 << self.limb_bits) - 1))
        shifts = self.limb_bits * np.arange(count, dtype=np.int64)
        values: Integers = (limbs << shifts[:, None]).sum(axis=0, dtype=np.int64)
        _refuse_outside(segment, values, segment.smallest, segment.max_abs_sum)
        return values


def _last_limb_bound(segment: SegmentSpec, n_summands: int, count: int, width: int) -> int:
    if count == 1:
        return segment.max_abs_sum
    return (segment.max_abs_sum >> (width * (count - 1))) + n_summands


def _refuse_outside(segment: SegmentSpec, values: Integers, low: int, high: int) -> None:
    if values.size and (values.min() < low or values.max() > high):
        raise RevealRefused(
            f"The sum of segment {segment.name!r} leaves the bounds that honest messages keep.",
            remedy="A contribution is poisoned, or made with another key: abandon the round.",
        )
