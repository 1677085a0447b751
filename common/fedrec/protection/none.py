"""No protection: the coordinator reads every message.

This protection hides nothing. Messages are packed integers, and the coordinator sees each client's
vector. Only transport encryption keeps it from others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

import numpy as np

from fedrec.errors import KeysError, MalformedUpdate
from fedrec.identity.secret import SecretKey, exported
from fedrec.protection.protection import (
    Accumulator,
    EnvelopedSum,
    Member,
    OneStepProtection,
    Protection,
    check_count,
)
from fedrec.protection.protection_plan import HEADER_BYTES, Envelope, ProtectionPlan
from fedrec.protection.vector import Integers, Packed, SegmentSpec, VectorSpec

_PIECE_BYTES = 1 << 20


class NoProtection(OneStepProtection):
    """Little-endian integers, with four bytes if a segment's sum fits them, else eight."""

    name: ClassVar[str] = "none"
    needs_reveal: ClassVar[bool] = False
    hides_updates: ClassVar[bool] = False
    presets: ClassVar[tuple[str, ...]] = ("default",)

    @classmethod
    def _plan(
        cls, spec: VectorSpec, preset: str, largest: Protection | None = None
    ) -> ProtectionPlan:
        n_bytes = sum(segment.length * _kind(segment).itemsize for segment in spec.segments)
        return ProtectionPlan(
            protection=cls.name,
            preset=preset,
            spec_fingerprint=spec.fingerprint(),
            n_values=spec.length,
            n_slots=spec.length,
            n_blocks=1,
            frame_bytes=n_bytes,
            message_bytes=HEADER_BYTES + n_bytes,
            max_summands=spec.max_summands,
            limbs=(1,) * len(spec.segments),
        )

    def generate(self) -> tuple[bytes, SecretKey]:
        """Return a context and a secret without a key."""
        return super().generate()

    def packed_sum(self, total: Integers, n_summands: int) -> bytes:
        """Return a sum that was made elsewhere in the format of this protection.

        Raises:
            MalformedUpdate: the type or shape is wrong, or a value is outside its bound.
        """
        context, _ = self.generate()
        body = _pack(self.spec, self.spec.validated(total))
        return Envelope.of(self.chosen, context).close_sum(body, n_summands)

    def parts_of_sum(self, total: bytes, n_summands: int) -> dict[str, Packed]:
        """Return the segments of a sum by name, as views of its bytes.

        Raises:
            MalformedUpdate: the length is wrong, or values are out of bounds.
            RevealRefused: the number of summands is wrong.
        """
        context, _ = self.generate()
        pieces = _opened(self.spec, self.envelope(context), total, n_summands)
        return {
            segment.name: values for segment, values in zip(self.spec.segments, pieces, strict=True)
        }

    def accumulator(self, context: bytes) -> Accumulator:
        """Return the coordinator's half, empty."""
        return PlainAccumulator(self.spec, self.envelope(context))

    def member(
        self, context: bytes, secret: bytes | SecretKey = b"none", *, tag_key: bytes = b""
    ) -> Member:
        """Return a client's half. The secret must be the word none."""
        if exported(secret) != b"none":
            raise KeysError("Without protection, there is no secret key, but one was given.")
        return PlainMember(self.spec, self.envelope(context))


class PlainAccumulator(EnvelopedSum):
    """Add plain vectors, and refuse values that leave their bounds.

    Sums have the same types as messages. They fit while their values keep their bounds.
    """

    def __init__(self, spec: VectorSpec, envelope: Envelope) -> None:
        super().__init__(envelope)
        self._totals = tuple(
            _Total(segment, np.zeros(segment.length, dtype=_kind(segment)))
            for segment in spec.segments
        )

    def add_from(self, file: BinaryIO) -> None:
        """Check a message and the resulting sum, then add it, with only a piece in memory."""
        self._check(file)
        bounds = [total.bounds_with(total.beside(file)) for total in self._totals]
        file.seek(HEADER_BYTES)
        for total, (low, high) in zip(self._totals, bounds, strict=True):
            for own, values in total.beside(file):
                own += values
            total.low, total.high = low, high
        self._count += 1

    def _parts(self) -> Iterable[memoryview]:
        return (total.values.data for total in self._totals)


@dataclass(slots=True, eq=False)
class _Total:
    """The sum in one segment, and the bounds of its values."""

    segment: SegmentSpec
    values: Packed
    low: int = 0
    high: int = 0

    def beside(self, file: BinaryIO) -> Iterator[tuple[Packed, Packed]]:
        """Yield matching pieces of the sum and of `file`. A pair is valid until the next one.

        Raises:
            EOFError: the file is truncated, although its length was checked. The sum may be half
                changed.
        """
        at_once = _PIECE_BYTES // self.values.itemsize
        buffer = np.empty(min(at_once, len(self.values)), dtype=self.values.dtype)
        for begin in range(0, len(self.values), at_once):
            own = self.values[begin : begin + at_once]
            values = buffer[: len(own)]
            if file.readinto(values.data) != own.nbytes:  # type: ignore[attr-defined]  # typeshed
                raise EOFError("The stored message ends before its last value.")
            yield own, values

    def bounds_with(self, pieces: Iterable[tuple[Packed, Packed]]) -> tuple[int, int]:
        """Return the bounds of the sum with more values, or refuse values that may not be added."""
        found = [self._bounds_with(own, values) for own, values in pieces]
        return min(low for low, _ in found), max(high for _, high in found)

    def _bounds_with(self, own: Packed, values: Packed) -> tuple[int, int]:
        low, high = int(values.min()), int(values.max())
        self.segment.check(low, high)
        low, high = self.low + low, self.high + high
        if low < self.segment.smallest or high > self.segment.max_abs_sum:
            # The extremes may be in different slots.
            summed = np.add(own, values, dtype=np.int64)
            low, high = int(summed.min()), int(summed.max())
            self.segment.check(low, high)
        return low, high


class PlainMember(Member):
    """Pack a vector, and unpack a sum."""

    def __init__(self, spec: VectorSpec, envelope: Envelope) -> None:
        self._spec = spec
        self._envelope = envelope

    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Return the packed vector (see `Member.protect`)."""
        return self._envelope.close_message(_pack(self._spec, self._spec.validated(vector)))

    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Return the unpacked sum (see `Member.reveal`)."""
        vector = np.empty(self._spec.length, dtype=np.int64)
        pieces = _opened(self._spec, self._envelope, total, n_summands)
        for (_, part), values in zip(self._spec.pieces(vector), pieces, strict=True):
            part[:] = values
        return vector

    def over(self, protection: Protection) -> Member:
        """Return this half for another vector (see `Member.over`)."""
        return PlainMember(protection.spec, self._envelope.over(protection.chosen))

    def close(self) -> None:
        """Do nothing, because there is no key."""


def _kind(segment: SegmentSpec) -> np.dtype[np.signedinteger]:
    return np.dtype("<i4") if segment.max_abs_sum < 2**31 else np.dtype("<i8")


def _pack(spec: VectorSpec, vector: Integers) -> bytes:
    pieces = spec.pieces(vector)
    return b"".join(values.astype(_kind(segment)).tobytes() for segment, values in pieces)


def _opened(spec: VectorSpec, envelope: Envelope, total: bytes, n_summands: int) -> list[Packed]:
    """Return each segment's values in a sum as views, all within their bounds."""
    found, body = envelope.open_sum(total)
    check_count(found, n_summands, envelope.max_summands)
    pieces: list[Packed] = []
    start = 0
    for segment in spec.segments:
        piece = np.frombuffer(body, dtype=_kind(segment), count=segment.length, offset=start)
        segment.check(piece.min(), piece.max())
        pieces.append(piece)
        start += piece.nbytes
    if start != len(body):
        raise MalformedUpdate("The body is longer than its segments.")
    return pieces
