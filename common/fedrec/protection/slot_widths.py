"""Count the slots of a block without making any, to price a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedrec.errors import SettingsError
from fedrec.protection.vector import MAX_LENGTH, SegmentSpec, VectorSpec

COUNTER_BITS = 64
"""The width of the counter above the slots. The number of summands takes at most 31 bits of it."""

TAG_MODULUS = 2**61 - 1
"""A prime. Sums of tags below it are whole numbers, and the party that checks them reduces them."""
TAG_BITS = 96
"""The width of a tag's field above the counter: 61 bits, and room for 2^31 summands."""
N_TAGS = 2
"""A forgery passes with probability 2^-122."""

HALF_TAG_BITS = 31
HALF_TAG = 2**HALF_TAG_BITS - 1
"""With entries, a tag travels as two values of this many bits, whose sums fit a slot."""


def slot_bits(segment: SegmentSpec) -> int:
    """Return the width of a slot: the bits of the range of the segment's sum."""
    return (segment.max_abs_sum - segment.smallest).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWidths:
    """The room in a block.

    Attributes:
        capacity_bits: the number of bits for slots, below the counter.
        most_values: the largest number of values in a block.
        n_tags: the number of tags of a block, above the counter, or 0 if key holders add all
            messages up.
    """

    capacity_bits: int
    most_values: int = MAX_LENGTH
    n_tags: int = 0

    @classmethod
    def of(cls, key_bits: int, *, single: bool, tagged: bool = False) -> SlotWidths:
        """Return the room in a plaintext below a modulus of exactly ``key_bits`` bits.

        Such a modulus is at least 2^(key_bits - 1), so that key_bits - 1 bits can be used.
        """
        n_tags = N_TAGS if tagged else 0
        return cls(
            capacity_bits=key_bits - 1 - COUNTER_BITS - n_tags * TAG_BITS,
            most_values=1 if single else MAX_LENGTH,
            n_tags=n_tags,
        )

    def n_blocks(self, spec: VectorSpec) -> int:
        """Return the number of blocks of a vector. No slot spans two blocks."""
        if self.most_values == 1:
            return spec.length
        blocks, free = 0, 0
        for segment in spec.segments:
            width = slot_bits(segment)
            rest = segment.length - free // width
            if rest <= 0:
                free -= segment.length * width
                continue
            per_block = self.capacity_bits // width
            added = -(-rest // per_block)
            blocks += added
            free = self.capacity_bits - (rest - (added - 1) * per_block) * width
        return blocks


def entry_widths(key_bits: int) -> SlotWidths:
    """Return the room in a block with entries, in which tags are values like others."""
    return SlotWidths.of(key_bits, single=False)


def tail_spec(spec: VectorSpec) -> VectorSpec:
    """Return the parts of a message of entries with fixed places, tags included.

    Raises:
        SettingsError: no part has fixed places.
    """
    fixed = [segment for segment in spec.segments if not segment.entries]
    if spec.tagged:
        most = spec.max_summands * HALF_TAG
        fixed.append(
            SegmentSpec(name="sum tags", length=2 * N_TAGS, max_abs_sum=most, signed=False)
        )
    if not fixed:
        raise SettingsError("A vector of entries also needs a segment of fixed places.")
    return replace(spec, segments=tuple(fixed), tagged=False)
