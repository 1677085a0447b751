"""Several values in one large integer, slot by slot, or some values alone, each with its index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from fedrec.errors import MalformedUpdate, RevealRefused, SettingsError
from fedrec.protection.protection_plan import INDEX_BYTES
from fedrec.protection.slot_widths import (
    COUNTER_BITS,
    HALF_TAG,
    HALF_TAG_BITS,
    N_TAGS,
    TAG_BITS,
    SlotWidths,
    entry_widths,
    slot_bits,
    tail_spec,
)
from fedrec.protection.vector import Integers, SegmentSpec, VectorSpec


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


class EntryLayout:
    """Writes vectors into entries and blocks, and reads their sums.

    Args:
        spec: the vector; without a segment of entries all of it has fixed places.
        key_bits: of the modulus.
    """

    def __init__(self, spec: VectorSpec, key_bits: int) -> None:
        widths = entry_widths(key_bits)
        self._spec = spec
        self._tail = SlotLayout(tail_spec(spec), widths)
        self._capacity = widths.capacity_bits
        self._entered = spec.entered
        self.n_entries = 0 if self._entered is None else self._entered.entries
        self.n_tail = self._tail.n_blocks
        self.n_tags, self.most_values = N_TAGS if spec.tagged else 0, spec.length
        if self._entered is not None and slot_bits(self._entered) > self._capacity:
            raise SettingsError(f"Segment {self._entered.name!r} is wider than a block.")

    # What a message is.

    def rows(self, vector: Integers) -> Integers:
        """Return the values that are tagged together, (1, length): all of them."""
        return vector[None]

    def of_message(
        self, vector: Integers, tags: Sequence[Sequence[int]] | None = None
    ) -> tuple[list[int], list[mpz]]:
        """Return the indices of a valid vector's entries, and all blocks, entries first.

        Args:
            tags: of the whole vector, (1, n_tags), not negative; None where it has none.

        Raises:
            MalformedUpdate: more values are not zero than a message carries.
        """
        values, fixed = self._split(vector)
        index = self._indices(values)
        counter = mpz(1) << self._capacity
        blocks = [counter + value for value in values[index].tolist()]
        own = [tag for row in tags or () for tag in row]
        halves = [part for tag in own for part in (tag & HALF_TAG, tag >> HALF_TAG_BITS)]
        rest = np.concatenate([fixed, np.array(halves, dtype=np.int64)])
        return index.tolist(), blocks + self._tail.pack(rest)

    def _split(self, vector: Integers) -> tuple[Integers, Integers]:
        """Return the segment of entries, empty where there is none, and the others."""
        entered: Integers = np.zeros(0, dtype=np.int64)
        fixed = []
        for segment, values in self._spec.pieces(vector):
            if segment.entries:
                entered = values
            else:
                fixed.append(values)
        return entered, np.concatenate(fixed) if fixed else np.zeros(0, dtype=np.int64)

    def _indices(self, values: Integers) -> NDArray[np.int64]:
        """Return which values travel, ascending, as many as every message has."""
        index = np.flatnonzero(values)
        if len(index) > self.n_entries:
            raise MalformedUpdate(
                f"The vector has more than {self.n_entries} values that are not zero, which is "
                "all that a message with indices in the clear carries.",
                remedy="A client is one user there; set update.indices to hidden for silos.",
            )
        # Of equal values Top-K keeps those with the lowest indices, and all that is left is zero.
        free = np.setdiff1d(np.arange(self.n_entries), index, assume_unique=True)
        return np.sort(np.concatenate([index, free[: self.n_entries - len(index)]]))

    def read_indices(self, raw: memoryview) -> list[int]:
        """Return the indices of a message or a sum.

        Raises:
            MalformedUpdate: unless they ascend, without a repetition, within the segment.
        """
        found = np.frombuffer(raw, dtype="<u4").astype(np.int64)
        length = 0 if self._entered is None else self._entered.length
        if (np.diff(found) <= 0).any() or (len(found) and found[-1] >= length):
            raise MalformedUpdate(
                f"Indices must ascend, each once, below {length}; these do not.",
                remedy="Send the indices of a message in order.",
            )
        indices: list[int] = found.tolist()
        return indices

    def entries_of(self, body: memoryview, frame_bytes: int, n_summands: int) -> int:
        """Return how many entries a sum of that length has.

        Raises:
            MalformedUpdate: no sum of so many messages has that length.
        """
        n_bytes = len(body) - self.n_tail * frame_bytes
        found, rest = divmod(n_bytes, INDEX_BYTES + frame_bytes)
        length = 0 if self._entered is None else self._entered.length
        most = min(length, n_summands * self.n_entries)
        if rest or not self.n_entries <= found <= most:
            raise MalformedUpdate(
                f"A sum of {n_summands} messages has {self.n_entries} to {most} entries; "
                f"{len(body)} bytes are none of these."
            )
        return found

    # What a sum says.

    def of_sum(
        self, index: Sequence[int], blocks: Sequence[mpz], modulus: mpz, n_summands: int
    ) -> tuple[Integers, NDArray[Any]]:
        """Return the vector whose sum over ``n_summands`` messages this is, and its tags.

        Args:
            blocks: a plaintext for each index, and those of the rest; known up to multiples of
                the modulus.

        Returns:
            The vector, and the tags, Python integers of shape (1, n_tags).

        Raises:
            RevealRefused: when a counter or a value is what no honest messages sum to.
        """
        rest, _ = self._tail.unpack(blocks[len(index) :], modulus, n_summands)
        entered = self._entered
        values = np.zeros(0 if entered is None else entered.length, dtype=np.int64)
        if entered is not None:
            found = [
                self._read(entered, block, modulus, n_summands) for block in blocks[: len(index)]
            ]
            values[np.array(index, dtype=np.int64)] = found
        parts, start = [], 0
        for segment in self._spec.segments:
            if segment.entries:
                parts.append(values)
                continue
            parts.append(rest[start : start + segment.length])
            start += segment.length
        halves = [int(half) for half in rest[start:]]
        pairs = zip(halves[::2], halves[1::2], strict=True)
        tags = np.array([[low + (high << HALF_TAG_BITS) for low, high in pairs]], dtype=object)
        return np.concatenate(parts), tags

    def _read(self, segment: SegmentSpec, block: mpz, modulus: mpz, n_summands: int) -> int:
        """Return one entry's sum."""
        unsigned = (block - segment.smallest) % modulus
        if not 1 <= unsigned >> self._capacity <= n_summands:
            raise RevealRefused(
                "The counter inside an entry of the sum disagrees with its number of summands.",
                remedy="A contribution is damaged, or made with another key: abandon the round.",
            )
        value = unsigned & gmpy2.bit_mask(self._capacity)
        if value > segment.max_abs_sum - segment.smallest:
            raise RevealRefused(
                "A value of the sum leaves the bounds that honest messages keep.",
                remedy="A contribution is poisoned, or made with another key: abandon the round.",
            )
        return int(value) + segment.smallest
