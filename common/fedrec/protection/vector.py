"""Describe the vector to sum: one flat vector of integers on the grid, in segments.

Values wider than a slot are split into limbs before the sum, and joined exactly after it. A value v
becomes n limbs of w bits by arithmetic shifting. All but the last are unsigned, and the last
carries the sign:

    v = l_0 + 2^w l_1 + ... + 2^(w(n-1)) l_(n-1),    0 <= l_i < 2^w for i < n-1

With K messages whose |v| sum to at most B in a slot, and S = w(n-1):

- every lower limb sums to at most K (2^w - 1), which w is chosen to keep within the slot
- the last limb is floor(v / 2^S), so the absolute values sum to at most B / 2^S + K

The key holder sees the sums of the limbs. They reveal more than the sum of the values, namely the
number of carries in the messages. Noise in the values isn't proven to hide that, so noisy segments
stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import MalformedUpdate, RevealRefused, SettingsError
from fedrec.ids import digest

Integers = NDArray[np.int64]
Packed = NDArray[np.signedinteger]
"""Integers with their type in a message."""

MAX_BOUND = 2**62 - 1
"""The largest bound of a segment, so that two of them add up in int64."""
MAX_LENGTH = 2**31
MAX_SUMMANDS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpec:
    """One tensor, or one kind of counter, inside the flat vector.

    Attributes:
        name: the segment's name in errors and price tables.
        length: the number of values.
        max_abs_sum: the bound, in grid units, on the sum of the absolute values in any one of its
            slots, over all users of all clients, such as users x clip. It also bounds every single
            message.
        signed: whether values may be negative.
        whole: whether values must not be split into limbs. Their noise is proven to hide users in
            the sum of values, but not in sums of limbs.
        entries: the number of values in a message, each with its index in the clear, while the
            others are zero. 0 if all have fixed places. Only sets that protect values one by one
            allow this.
    """

    name: str
    length: int
    max_abs_sum: int
    signed: bool = True
    whole: bool = False
    entries: int = 0

    def __post_init__(self) -> None:
        problems = []
        if not self.name:
            problems.append("a segment has no name")
        if not 1 <= self.length <= MAX_LENGTH:
            problems.append(f"segment {self.name!r} has length {self.length}, not 1..{MAX_LENGTH}")
        if not 1 <= self.max_abs_sum <= MAX_BOUND:
            problems.append(
                f"segment {self.name!r} has max_abs_sum {self.max_abs_sum}, not 1..{MAX_BOUND}"
            )
        if not 0 <= self.entries <= self.length:
            problems.append(
                f"segment {self.name!r} of {self.length} values has {self.entries} entries"
            )
        if problems:
            raise SettingsError(
                "; ".join(problems) + ".",
                remedy="Use a coarser grid, a smaller clip or fewer users.",
                problems=tuple(problems),
            )

    @property
    def smallest(self) -> int:
        """The smallest value of a slot, in a message and in the sum."""
        return -self.max_abs_sum if self.signed else 0

    def check(self, low: int, high: int) -> None:
        """Refuse values between ``low`` and ``high`` if they may leave the bounds.

        Raises:
            MalformedUpdate: a value may leave the bounds. The error names the segment but no value,
                because values are private.
        """
        if low < self.smallest or high > self.max_abs_sum:
            raise MalformedUpdate(
                f"Segment {self.name!r} has a value outside {self.smallest}..{self.max_abs_sum}.",
                remedy="Clip every user's contribution before it is summed.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSpec:
    """The flat vector of a federation: its segments, and the maximum number of messages in a sum.

    Attributes:
        segments: the segments in their order in the vector.
        max_summands: the largest number of messages, one for each client, in one sum.
        tagged: whether messages carry linear tags (`tags`), because key holders don't add this many
            messages up themselves, or because members don't have the key.
    """

    segments: tuple[SegmentSpec, ...]
    max_summands: int
    tagged: bool = False

    def __post_init__(self) -> None:
        names = [segment.name for segment in self.segments]
        problems = []
        if not names:
            problems.append("a vector needs at least one segment")
        if len(set(names)) < len(names):
            problems.append(f"segment names repeat: {names}")
        if sum(segment.entries > 0 for segment in self.segments) > 1:
            problems.append("only one segment can travel as entries with their indices")
        if not 1 <= self.max_summands <= MAX_SUMMANDS:
            problems.append(f"max_summands is {self.max_summands}, not 1..{MAX_SUMMANDS}")
        if problems:
            raise SettingsError("; ".join(problems) + ".", problems=tuple(problems))

    @property
    def length(self) -> int:
        """The number of values in all segments."""
        return sum(segment.length for segment in self.segments)

    @property
    def entered(self) -> SegmentSpec | None:
        """The segment that travels as entries with their indices, or None if all are whole."""
        return next((segment for segment in self.segments if segment.entries), None)

    def fingerprint(self) -> str:
        """Return the SHA-256, in hexadecimal, of the whole description."""
        parts: list[str | int] = [self.max_summands]
        for segment in self.segments:
            parts += [segment.name, segment.length, segment.max_abs_sum, int(segment.signed)]
            if segment.entries:
                parts += ["entries", segment.entries]
            if segment.whole:
                parts.append("whole")
        if self.tagged:
            parts.append("tagged")
        return digest("fedrec.protection.vector.v1", *parts).hex()

    def check_part_of(self, largest: VectorSpec) -> None:
        """Refuse a vector that isn't a part of the largest one, for which keys were planned.

        Raises:
            SettingsError: some segments aren't part of it. The error names all of them.
        """
        known = {segment.name: segment for segment in largest.segments}
        problems = [
            f"segment {segment.name!r} has {segment.length} values"
            for segment in self.segments
            if segment.name not in known
            or segment.length > known[segment.name].length
            or segment.entries > known[segment.name].entries
            or bool(segment.entries) != bool(known[segment.name].entries)
            or _kind(segment) != _kind(known[segment.name])
        ]
        if (self.max_summands, self.tagged) != (largest.max_summands, largest.tagged):
            problems.append(f"{self.max_summands} messages in a sum, tagged: {self.tagged}")
        if problems:
            raise SettingsError(
                "The vector isn't a part of the one that keys were planned for: "
                f"{'; '.join(problems)}.",
                remedy="Make the epoch's keys for the federation's present settings and catalogue.",
                problems=tuple(problems),
            )

    def pieces(self, vector: Integers) -> Iterator[tuple[SegmentSpec, Integers]]:
        """Yield each segment with its part of ``vector``, a view of shape (length,)."""
        start = 0
        for segment in self.segments:
            yield segment, vector[start : start + segment.length]
            start += segment.length

    def validated(self, vector: Integers) -> Integers:
        """Return ``vector`` if it is int64 of the right shape with every value in bounds.

        Raises:
            MalformedUpdate: values leave their bounds. The error names the segment but no value,
                because values are private.
        """
        if not isinstance(vector, np.ndarray) or vector.dtype != np.int64:
            kind = getattr(vector, "dtype", type(vector).__name__)
            raise MalformedUpdate(f"The vector is {kind}, not a numpy array of int64.")
        if vector.shape != (self.length,):
            raise MalformedUpdate(f"The vector has shape {vector.shape}, not ({self.length},).")
        for segment, values in self.pieces(vector):
            segment.check(values.min(), values.max())
        return vector


def _kind(segment: SegmentSpec) -> SegmentSpec:
    """Return the description that two segments share if only their lengths differ."""
    return replace(segment, length=1, entries=0)


MAX_LIMBS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LimbLayout:
    """The number of limbs of each segment, and their number of bits.

    Attributes:
        limb_bits: the width w of an unsigned limb, or 0 if no segment is split.
        limbs: the number of limbs of each segment.
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
        """Return the number of slots of the whole vector."""
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
        """Return the limbs of a valid vector, segment after segment, low limb first."""
        mask = (1 << self.limb_bits) - 1
        parts: list[Integers] = []
        for (_, values), count in zip(spec.pieces(vector), self.limbs, strict=True):
            parts += [(values >> (self.limb_bits * i)) & mask for i in range(count - 1)]
            parts.append(values >> (self.limb_bits * (count - 1)))
        return np.concatenate(parts)

    def join(self, spec: VectorSpec, sums: Integers, n_summands: int) -> Integers:
        """Return the vector whose limbs sum to ``sums`` over ``n_summands`` messages.

        Raises:
            RevealRefused: honest messages can't add up to a limb or a value.
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
            f"The sum of segment {segment.name!r} is outside the bounds of honest messages.",
            remedy="A contribution is poisoned or made with a different key. Abandon the round.",
        )
