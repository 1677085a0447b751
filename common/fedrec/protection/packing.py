"""Pack several values into one large integer, slot by slot, or some values with their indices."""

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
        shift: the first value's bit.
        first: the number of values before them in the block.
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
        """The number that makes every slot of this run nonnegative when it is added."""
        ones = ((mpz(1) << (self.width * (self.stop - self.start))) - 1) // (
            (mpz(1) << self.width) - 1
        )
        return (-self.smallest * ones) << self.shift


class SlotLayout:
    """Write vectors into blocks, and read the sums of blocks.

    Args:
        spec: the vector.
        widths: the number of bits for slots in a block, and whether one value fills a block.
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
        """Return the positive integers that encode a valid vector as one message.

        Args:
            tags: the nonnegative tags of each block, or None if blocks have none.
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
        """Return a message's blocks, with an empty list of indices."""
        return [], self.pack(vector, tags)

    def of_sum(
        self, index: Sequence[int], blocks: Sequence[mpz], modulus: mpz, n_summands: int
    ) -> tuple[Integers, NDArray[Any]]:
        """Return the contents of the blocks of a sum without entries (see `unpack`)."""
        return self.unpack(blocks, modulus, n_summands)

    def _tag_shift(self, place: int) -> int:
        return self._capacity + COUNTER_BITS + TAG_BITS * place

    def unpack(
        self, blocks: Sequence[mpz], modulus: mpz, n_summands: int
    ) -> tuple[Integers, NDArray[Any]]:
        """Return the vector from its blocks, summed over ``n_summands`` messages.

        Returns:
            The vector, and the sums of its blocks' tags, Python integers of shape (n_blocks,
            n_tags).

        Args:
            modulus: the blocks are known up to multiples of this modulus.

        Raises:
            RevealRefused: a counter isn't ``n_summands``, an unused bit is set, or honest messages
                can't add up to a value.
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
                "The counters inside the sum don't match its number of summands.",
                remedy="A contribution is damaged or made with a different key. Abandon the round.",
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
                "The sum has bits that no message has.",
                remedy="A contribution is poisoned. Abandon the round.",
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
            "A value of the sum is outside the bounds of honest messages.",
            remedy="A contribution is poisoned or made with a different key. Abandon the round.",
        )


class EntryLayout:
    """Write vectors into entries and blocks, and read their sums.

    Args:
        spec: the vector. Without a segment of entries, all its places are fixed.
        key_bits: the number of bits of the modulus.
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

    # Messages.

    def rows(self, vector: Integers) -> Integers:
        """Return the values that are tagged together, (1, length), which are all of them."""
        return vector[None]

    def of_message(
        self, vector: Integers, tags: Sequence[Sequence[int]] | None = None
    ) -> tuple[list[int], list[mpz]]:
        """Return the indices of a valid vector's entries, and all blocks, entries first.

        Args:
            tags: the nonnegative tags of the whole vector, (1, n_tags), or None if it has none.

        Raises:
            MalformedUpdate: the vector has more nonzero values than a message carries.
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
        """Return the segment of entries, which may be empty, and the other segments."""
        entered: Integers = np.zeros(0, dtype=np.int64)
        fixed = []
        for segment, values in self._spec.pieces(vector):
            if segment.entries:
                entered = values
            else:
                fixed.append(values)
        return entered, np.concatenate(fixed) if fixed else np.zeros(0, dtype=np.int64)

    def _indices(self, values: Integers) -> NDArray[np.int64]:
        """Return the ascending indices of the values that travel, as many as every message has."""
        index = np.flatnonzero(values)
        if len(index) > self.n_entries:
            raise MalformedUpdate(
                f"The vector has more than {self.n_entries} nonzero values, the most that a "
                "message with indices in the clear can carry.",
                remedy="Such a client has one user. For silos, set update.indices to hidden.",
            )
        # Of equal values, Top-K keeps those with the lowest indices, and the remaining ones are
        # zero.
        free = np.setdiff1d(np.arange(self.n_entries), index, assume_unique=True)
        return np.sort(np.concatenate([index, free[: self.n_entries - len(index)]]))

    def read_indices(self, raw: memoryview) -> list[int]:
        """Return the indices of a message or a sum.

        Raises:
            MalformedUpdate: the indices don't ascend, repeat, or leave the segment.
        """
        found = np.frombuffer(raw, dtype="<u4").astype(np.int64)
        length = 0 if self._entered is None else self._entered.length
        if (np.diff(found) <= 0).any() or (len(found) and found[-1] >= length):
            raise MalformedUpdate(
                f"Indices must ascend without duplicates and be below {length}.",
                remedy="Send the indices of a message in ascending order.",
            )
        indices: list[int] = found.tolist()
        return indices

    def entries_of(self, body: memoryview, frame_bytes: int, n_summands: int) -> int:
        """Return the number of entries in a sum of this length.

        Raises:
            MalformedUpdate: no sum of this number of messages has that length.
        """
        n_bytes = len(body) - self.n_tail * frame_bytes
        found, rest = divmod(n_bytes, INDEX_BYTES + frame_bytes)
        length = 0 if self._entered is None else self._entered.length
        most = min(length, n_summands * self.n_entries)
        if rest or not self.n_entries <= found <= most:
            raise MalformedUpdate(
                f"A sum of {n_summands} messages has {self.n_entries} to {most} entries, but "
                f"{len(body)} bytes match no such number."
            )
        return found

    # Sums.

    def of_sum(
        self, index: Sequence[int], blocks: Sequence[mpz], modulus: mpz, n_summands: int
    ) -> tuple[Integers, NDArray[Any]]:
        """Return the vector and its tags from a sum over ``n_summands`` messages.

        Args:
            blocks: a plaintext for each index, and those of the rest, known up to multiples of the
                modulus.

        Returns:
            The vector, and the tags, Python integers of shape (1, n_tags).

        Raises:
            RevealRefused: honest messages can't add up to a counter or a value.
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
                "The counter inside an entry of the sum doesn't match its number of summands.",
                remedy="A contribution is damaged or made with a different key. Abandon the round.",
            )
        value = unsigned & gmpy2.bit_mask(self._capacity)
        if value > segment.max_abs_sum - segment.smallest:
            raise RevealRefused(
                "A value of the sum is outside the bounds of honest messages.",
                remedy="A contribution is poisoned or has a different key. Abandon the round.",
            )
        return int(value) + segment.smallest
