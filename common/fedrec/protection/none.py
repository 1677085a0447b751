"""No protection: the coordinator reads every message.

What it does not give: anything. Messages are packed integers; the coordinator sees each client's
vector, and only transport encryption keeps it from others.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedrec.errors import KeysError, MalformedUpdate, RoundError
from fedrec.protection.envelope import HEADER_BYTES, Envelope
from fedrec.protection.plan import ProtectionPlan
from fedrec.protection.protection import Accumulator, Member, Protection, check_count
from fedrec.protection.secret import SecretKey
from fedrec.protection.vector import Integers, SegmentSpec, VectorSpec

__all__ = ["NoProtection"]


class NoProtection(Protection):
    """Little-endian integers, four bytes where a segment's sum fits them, else eight."""

    name: ClassVar[str] = "none"
    needs_reveal: ClassVar[bool] = False
    presets: ClassVar[tuple[str, ...]] = ("default",)

    @classmethod
    def _plan(cls, spec: VectorSpec, preset: str) -> ProtectionPlan:
        n_bytes = sum(segment.length * _kind(segment).itemsize for segment in spec.segments)
        return ProtectionPlan(
            protection=cls.name,
            preset=preset,
            exact=True,
            spec_fingerprint=spec.fingerprint(),
            poly_modulus_degree=0,
            coeff_mod_bit_sizes=(),
            plain_modulus=None,
            scale_bits=None,
            n_values=spec.length,
            n_slots=spec.length,
            n_blocks=1,
            frame_bytes=n_bytes,
            message_bytes=HEADER_BYTES + n_bytes,
            security_bits=0,
            error_bound=0.0,
            headroom_bits=0.0,
            proof="worst case",
            max_summands=spec.max_summands,
            limb_bits=0,
            limbs=(1,) * len(spec.segments),
        )

    def generate(self) -> tuple[bytes, SecretKey]:
        """Return a context that names no key, and a secret in which there is none."""
        return Envelope.new_context(self.chosen, keyed=False), SecretKey._holding(b"none")

    def accumulator(self, context: bytes) -> Accumulator:
        """Return the coordinator's half, empty."""
        return PlainAccumulator(self.spec, Envelope.of(self.chosen, context))

    def member(self, context: bytes, secret: bytes | SecretKey = b"none") -> Member:
        """Return a client's half; the secret is the word none."""
        content = secret.export_for_wrapping() if isinstance(secret, SecretKey) else secret
        if content != b"none":
            raise KeysError("Without protection there is no secret key; found one.")
        return PlainMember(self.spec, Envelope.of(self.chosen, context))


class PlainAccumulator(Accumulator):
    """Adds plain vectors and refuses values that leave their bounds."""

    def __init__(self, spec: VectorSpec, envelope: Envelope) -> None:
        self._spec = spec
        self._envelope = envelope
        self._total = np.zeros(spec.length, dtype=np.int64)
        self._count = 0

    @property
    def count(self) -> int:
        """How many messages were added."""
        return self._count

    def add(self, message: bytes) -> None:
        """Add one message after checking it and the sum that it leads to."""
        body = self._envelope.open_message(message)
        if self._count >= self._envelope.max_summands:
            raise RoundError(
                f"The plan allows {self._envelope.max_summands} messages in a sum, not one more."
            )
        vector = self._spec.validated(_unpack(self._spec, body))
        self._total = self._spec.validated(self._total + vector)
        self._count += 1

    def finish(self) -> bytes:
        """Return the sum; see `Accumulator.finish`."""
        if not self._count:
            raise RoundError("A sum of no messages does not exist.")
        return self._envelope.close_sum(_pack(self._spec, self._total), self._count)


class PlainMember(Member):
    """Packs a vector, and unpacks a sum that anybody could unpack."""

    def __init__(self, spec: VectorSpec, envelope: Envelope) -> None:
        self._spec = spec
        self._envelope = envelope

    def protect(self, vector: Integers) -> bytes:
        """Return the packed vector; see `Member.protect`."""
        return self._envelope.close_message(_pack(self._spec, self._spec.validated(vector)))

    def reveal(self, total: bytes, n_summands: int) -> Integers:
        """Return the unpacked sum; see `Member.reveal`."""
        found, body = self._envelope.open_sum(total)
        check_count(found, n_summands, self._envelope.max_summands)
        return self._spec.validated(_unpack(self._spec, body))

    def close(self) -> None:
        """Do nothing: there is no key."""


def _kind(segment: SegmentSpec) -> np.dtype[np.int32] | np.dtype[np.int64]:
    return np.dtype("<i4") if segment.max_abs_sum < 2**31 else np.dtype("<i8")


def _pack(spec: VectorSpec, vector: Integers) -> bytes:
    pieces = spec.pieces(vector)
    return b"".join(values.astype(_kind(segment)).tobytes() for segment, values in pieces)


def _unpack(spec: VectorSpec, body: memoryview) -> Integers:
    parts = []
    start = 0
    for segment in spec.segments:
        kind = _kind(segment)
        part = np.frombuffer(body, dtype=kind, count=segment.length, offset=start)
        parts.append(part.astype(np.int64))
        start += part.nbytes
    if start != len(body):
        raise MalformedUpdate("The body is longer than its segments.")
    return np.concatenate(parts)
