"""Packed slots: many bounded integers in one large integer, which adds up slot by slot.

A slot of segment s is as wide as the range of its *sum*: for values whose sum stays in
[smallest, B] it has bits(B - smallest) bits. The bound covers all users of all clients, so that
the bits for the number of summands (security.md calls them value bits + log2 K) are in it
already. A message carries its values as they are, signed; the offset that makes them unsigned is
added once, when the sum is read, not once in each message. Above the slots every block carries a
counter: 1 in a message, n in a sum of n, in a field so wide that an integer which is no sum of
messages of this layout shows there but for a chance of 2^-64.

Slots do not protect each other: a value outside its bounds carries into the next slot. That is
what `unpack` refuses as far as it shows; what does not show could have been sent as values
within their bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from fedrec.errors import RevealRefused
from fedrec.protection.slot_widths import COUNTER_BITS, TAG_BITS, SlotWidths, slot_bits
from fedrec.protection.vector import Integers, VectorSpec

__all__ = ["SlotLayout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Neighbouring values of one segment in one block.

    Attributes:
        shift: bit of the first.
        first: how many values stand before them in the block.
    """

    block: int
    shift: int
    first: int
    width: int
    start: int
    stop: int
    smallest: int
    largest: int

    @property
    def offset(self) -> mpz:
        """What makes every slot of this run unsigned when it is added."""
        ones = ((mpz(1) << (self.width * (self.stop - self.start))) - 1) // (
            (mpz(1) << self.width) - 1
        )
        return (-self.smallest * ones) << self.shift


class SlotLayout:
    """Writes vectors into blocks, and reads the sums of blocks.

    Args:
        spec: the vector.
        widths: how many bits of a block hold slots, and whether one value fills a block.
    """

    def __init__(self, spec: VectorSpec, widths: SlotWidths) -> None:
        self._runs = tuple(_runs(spec, widths))
        self._length = spec.length
        self._capacity = widths.capacity_bits
        self.n_tags = widths.n_tags
        self.n_blocks = widths.n_blocks(spec)
        self.most_values = max(run.first + run.stop - run.start for run in self._runs)

    def rows(self, vector: Integers) -> Integers:
        """Return a vector's values block by block, shape (n_blocks, most_values)."""
        table = np.zeros((self.n_blocks, self.most_values), dtype=np.int64)
        for run in self._runs:
            values = vector[run.start : run.stop]
            table[run.block, run.first : run.first + len(values)] = values
        return table

    def pack(self, vector: Integers, tags: Sequence[Sequence[int]] | None = None) -> list[mpz]:
        """Return the positive integers that carry a valid vector as one message.

        Args:
            tags: of each block, not negative; None where blocks have none.
        """
        blocks = [mpz(1) << self._capacity for _ in range(self.n_blocks)]
        for run in self._runs:
            values = (vector[run.start : run.stop] - run.smallest).tolist()
            blocks[run.block] += (gmpy2.pack(values, run.width) << run.shift) - run.offset
        for block, of_block in enumerate(tags or ()):
            for place, tag in enumerate(of_block):
                blocks[block] += mpz(tag) << self._tag_shift(place)
        return blocks

    def of_message(
        self, vector: Integers, tags: Sequence[Sequence[int]] | None = None
    ) -> tuple[list[int], list[mpz]]:
        """Return the indices of a message's entries, of which there are none, and its blocks."""
        return [], self.pack(vector, tags)

    def of_sum(
        self, index: Sequence[int], blocks: Sequence[mpz], modulus: mpz, n_summands: int
    ) -> tuple[Integers, NDArray[Any]]:
        """Return what the blocks of a sum without entries say; see `unpack`."""
        return self.unpack(blocks, modulus, n_summands)

    def _tag_shift(self, place: int) -> int:
        return self._capacity + COUNTER_BITS + TAG_BITS * place

    def unpack(
        self, blocks: Sequence[mpz], modulus: mpz, n_summands: int
    ) -> tuple[Integers, NDArray[Any]]:
        """Return the vector whose blocks, summed over ``n_summands`` messages, these are.

        Returns:
            The vector, and the sums of its blocks' tags, Python integers of shape
            (n_blocks, n_tags).

        Args:
            modulus: blocks are known up to multiples of it.

        Raises:
            RevealRefused: when a counter is not ``n_summands``, an unused bit is set, or a value
                is outside what honest messages can sum to.
        """
        unsigned = [mpz(block) for block in blocks]
        for run in self._runs:
            unsigned[run.block] += run.offset
        unsigned = [block % modulus for block in unsigned]
        tags = np.empty((self.n_blocks, self.n_tags), dtype=object)
        for place in reversed(range(self.n_tags)):
            shift = self._tag_shift(place)
            for index, block in enumerate(unsigned):
                tags[index, place] = int(block >> shift)
                unsigned[index] = block & gmpy2.bit_mask(shift)
        if any(block >> self._capacity != n_summands for block in unsigned):
            raise RevealRefused(
                "The counters inside the sum disagree with its number of summands.",
                remedy="A contribution is damaged, or made with another key: abandon the round.",
            )
        values = np.empty(self._length, dtype=np.int64)
        rest = [block - (n_summands << self._capacity) for block in unsigned]
        for run in self._runs:
            count = run.stop - run.start
            field = gmpy2.bit_mask(run.width * count) & (rest[run.block] >> run.shift)
            rest[run.block] -= field << run.shift
            found = np.zeros(count, dtype=np.int64)
            digits = gmpy2.unpack(field, run.width)
            found[: len(digits)] = [int(digit) for digit in digits]
            _refuse_outside(run, found)
            values[run.start : run.stop] = found + run.smallest
        if any(rest):
            raise RevealRefused(
                "The sum has bits where no message has any.",
                remedy="A contribution is poisoned: abandon the round.",
            )
        return values, tags


def _runs(spec: VectorSpec, widths: SlotWidths) -> Iterator[_Run]:
    block, used, held, start = 0, 0, 0, 0
    for segment in spec.segments:
        width, at = slot_bits(segment), 0
        while at < segment.length:
            room = min((widths.capacity_bits - used) // width, widths.most_values - held)
            if room <= 0:
                block, used, held = block + 1, 0, 0
                continue
            count = min(room, segment.length - at)
            yield _Run(
                block=block,
                shift=used,
                first=held,
                width=width,
                start=start + at,
                stop=start + at + count,
                smallest=segment.smallest,
                largest=segment.max_abs_sum,
            )
            at, used, held = at + count, used + width * count, held + count
        start += segment.length


def _refuse_outside(run: _Run, unsigned: Integers) -> None:
    if unsigned.max() > run.largest - run.smallest:
        raise RevealRefused(
            "A value of the sum leaves the bounds that honest messages keep.",
            remedy="A contribution is poisoned, or made with another key: abandon the round.",
        )
