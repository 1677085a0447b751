"""The plan with its protection parameters and prices, and the envelope of messages.

The envelope is the first bytes of every message and sum. It names the kind, the plan and the key.
"""

from __future__ import annotations

import math
import secrets
import struct
from dataclasses import dataclass

from fedrec.errors import KeysError, MalformedUpdate
from fedrec.ids import digest
from fedrec.protection.vector import LimbLayout

INDEX_BYTES = 4
"""The number of bytes of an entry's index, little-endian and unsigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionPlan:
    """All parameters that both sides must agree on, and the price.

    Attributes:
        protection: the name of the protection.
        preset: the name of the parameter set.
        spec_fingerprint: the fingerprint of the vector of this plan.
        poly_modulus_degree: N, or 0 if nothing is encrypted.
        coeff_mod_bit_sizes: the bits of the coefficient primes, the special one last.
        plain_modulus: t of BFV.
        scale_bits: CKKS encodes one grid unit as 2^scale_bits.
        key_bits: the bits of Paillier's modulus, or 0 for other protections.
        n_values: the length of the vector.
        n_slots: the number of values after splitting into limbs.
        n_blocks: the number of ciphertexts in one message.
        frame_bytes: the bytes of one block, the same for every input.
        message_bytes: the bytes of a message, the same for every input, and of a sum without
            entries.
        security_bits: the security by the homomorphic encryption standard, or of factoring the
            modulus. 0 without encryption.
        error_bound: the largest error before rounding, in grid units. Rounding is right below 0.5.
        headroom_bits: the bits to spare before noise (BFV) or overflow (CKKS) corrupts a sum.
        proof: ``worst case`` if the error bound always holds. ``probability`` if it fails with
            probability below 2^-40 for a summed vector (see `noise`).
        max_summands: the largest number of messages in a sum.
        limb_bits: the width of an unsigned limb, or 0 if nothing is split.
        limbs: the number of limbs of each segment.
        n_tags: the linear tags of each block, or 0 if key holders add all messages up themselves.
        entries: the values of a message that carry their index in the clear. A sum has one for each
            index of any message. 0 if all values have fixed places.
        n_places: the number of places from which entries are chosen.
        primitives: the primitives other than ring encryption that the security relies on. May be
            empty.
    """

    protection: str
    preset: str
    spec_fingerprint: str
    poly_modulus_degree: int = 0
    coeff_mod_bit_sizes: tuple[int, ...] = ()
    plain_modulus: int | None = None
    scale_bits: int | None = None
    n_values: int
    n_slots: int
    n_blocks: int
    frame_bytes: int
    message_bytes: int
    security_bits: int = 0
    error_bound: float = 0.0
    headroom_bits: float = 0.0
    proof: str = "worst case"
    max_summands: int
    limb_bits: int = 0
    limbs: tuple[int, ...]
    n_tags: int = 0
    key_bits: int = 0
    entries: int = 0
    n_places: int = 0
    primitives: str = ""

    def most_blocks(self, n_summands: int) -> int:
        """Return the maximum number of blocks of a sum."""
        union = min(self.n_places, n_summands * self.entries)
        return self.n_blocks - self.entries + union

    def expected_blocks(self, n_summands: int) -> int:
        """Return the expected number of blocks of a sum, if clients' indices are independent.

        All clients' indices also need the same distribution. Every index is then in the sum with
        the probability 1 - (1 - entries / n_places)^n_summands. If clients prefer the same indices,
        the sum has fewer blocks.
        """
        if not self.entries:
            return self.n_blocks
        missing = (1 - self.entries / self.n_places) ** n_summands
        return self.n_blocks - self.entries + math.ceil(self.n_places * (1 - missing))

    def sum_bytes(self, n_blocks: int) -> int:
        """Return the length of a sum with this number of blocks."""
        more = n_blocks - self.n_blocks
        return self.message_bytes + more * (self.frame_bytes + INDEX_BYTES)

    @property
    def layout(self) -> LimbLayout:
        """The layout of the values in the slots."""
        return LimbLayout(limb_bits=self.limb_bits, limbs=self.limbs)

    def fingerprint(self) -> str:
        """Return the SHA-256, in hexadecimal, of all parameters that decide the meaning of bytes.

        Bounds are left out, because they are floating point and machines may differ in the last
        bit.
        """
        parts: list[str | int] = [
            self.protection,
            self.preset,
            self.spec_fingerprint,
            self.poly_modulus_degree,
            *self.coeff_mod_bit_sizes,
            f"plain modulus {self.plain_modulus}",
            f"scale bits {self.scale_bits}",
            f"key bits {self.key_bits}",
            self.message_bytes,
            self.max_summands,
            self.limb_bits,
            *self.limbs,
            self.n_tags,
        ]
        if self.entries:
            parts += ["entries", self.entries, self.n_places]
        return digest("fedrec.protection.plan.v1", *parts).hex()


VERSION = 1
MESSAGE = b"FRPM"
SUM = b"FRPS"
CONTEXT = b"FRPC"
MARK_BYTES = 16

_HEADER = struct.Struct("<4sB3xI16s16s")
_CONTEXT = struct.Struct("<4sB3x32s16s")
HEADER_BYTES = _HEADER.size
CONTEXT_BYTES = _CONTEXT.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Write and check the headers of one plan and one key epoch.

    Attributes:
        plan_mark: the first 16 bytes of the plan's fingerprint.
        key_id: 16 bytes that name the key without revealing a secret.
        message_bytes: the only valid length of a message, and the smallest of a sum.
        max_summands: the largest number of messages in a sum.
        most_sum_bytes: the largest length of a sum, which is that of a message unless the sum has
            entries.
    """

    plan_mark: bytes
    key_id: bytes
    message_bytes: int
    max_summands: int
    most_sum_bytes: int

    @classmethod
    def of(
        cls, plan: ProtectionPlan, context: bytes, *, named: ProtectionPlan | None = None
    ) -> Envelope:
        """Read a context for messages of ``plan``.

        Args:
            named: the plan that the context names, if it is another one. It is then the plan of the
                largest vector, whose keys also serve shorter ones.

        Raises:
            KeysError: the context belongs to a different plan, or is longer than the 56 bytes in
                which no key can hide.
        """
        if len(context) != CONTEXT_BYTES:
            raise KeysError(
                f"A coordinator's context has {CONTEXT_BYTES} bytes and no key. This one has "
                f"{len(context)} bytes.",
                remedy="Pass the coordinator the context from `generate`, and no key.",
            )
        magic, version, fingerprint, key_id = _CONTEXT.unpack(context)
        if context != cls._context(fingerprint, key_id) or magic != CONTEXT or version != VERSION:
            raise KeysError(
                f"The context isn't of version {VERSION} of the protection format.",
                remedy="Make the epoch's keys with this version of fedrec.",
            )
        if fingerprint.hex() != (named or plan).fingerprint():
            raise KeysError(
                "The context belongs to a different protection plan.",
                remedy="Make the epoch's keys for the federation's present settings.",
            )
        return cls._for(plan, key_id)

    def over(self, plan: ProtectionPlan) -> Envelope:
        """Return the envelope of another vector's messages under the same key."""
        return self._for(plan, self.key_id)

    @classmethod
    def _for(cls, plan: ProtectionPlan, key_id: bytes) -> Envelope:
        return cls(
            plan_mark=bytes.fromhex(plan.fingerprint())[:MARK_BYTES],
            key_id=key_id,
            message_bytes=plan.message_bytes,
            max_summands=plan.max_summands,
            most_sum_bytes=plan.sum_bytes(plan.most_blocks(plan.max_summands)),
        )

    @staticmethod
    def new_context(plan: ProtectionPlan, *, keyed: bool = True, key_id: bytes = b"") -> bytes:
        """Return a context that names a new key, the key ``key_id``, or no key at all."""
        key_id = key_id or (secrets.token_bytes(MARK_BYTES) if keyed else bytes(MARK_BYTES))
        return Envelope._context(bytes.fromhex(plan.fingerprint()), key_id)

    @staticmethod
    def _context(fingerprint: bytes, key_id: bytes) -> bytes:
        return _CONTEXT.pack(CONTEXT, VERSION, fingerprint, key_id)

    def close_message(self, body: bytes) -> bytes:
        """Return ``body`` as one client's message."""
        return self._close(MESSAGE, 1, body)

    def close_sum(self, body: bytes, n_summands: int) -> bytes:
        """Return ``body`` as the sum of ``n_summands`` messages."""
        return self._close(SUM, n_summands, body)

    def open_message(self, message: bytes) -> memoryview:
        """Return the body of a message.

        Raises:
            MalformedUpdate: the length, plan or key is wrong.
        """
        self.check_message(message[:HEADER_BYTES], len(message))
        return memoryview(message)[HEADER_BYTES:]

    def check_message(self, head: bytes, length: int) -> None:
        """Refuse a header or a length that isn't a message's (see `open_message`)."""
        count = self._count(MESSAGE, head, length)
        if count != 1:
            raise MalformedUpdate(f"A message counts as one summand, not {count}.")

    def open_sum(self, total: bytes) -> tuple[int, memoryview]:
        """Return the number of summands that a sum claims, and its body.

        Raises:
            MalformedUpdate: the length, plan or key is wrong. If a sum has entries, its reader
                checks that its length is that of whole ones.
        """
        count = self._count(SUM, total[:HEADER_BYTES], len(total))
        return count, memoryview(total)[HEADER_BYTES:]

    def _close(self, magic: bytes, count: int, body: bytes) -> bytes:
        return _HEADER.pack(magic, VERSION, count, self.plan_mark, self.key_id) + body

    def _count(self, expected: bytes, head: bytes, length: int) -> int:
        """Return the number of summands in a header after checking the header and the length."""
        most = self.most_sum_bytes if expected == SUM else self.message_bytes
        if not self.message_bytes <= length <= most:
            allowed = str(most) if most == self.message_bytes else f"{self.message_bytes} to {most}"
            kind = "message" if expected == MESSAGE else "sum"
            raise MalformedUpdate(f"Found {length} bytes. Every {kind} of this plan has {allowed}.")
        magic, version, count, plan_mark, key_id = _HEADER.unpack(head)
        if head != _HEADER.pack(magic, version, count, plan_mark, key_id):
            raise MalformedUpdate("The reserved bytes of the header aren't zero.")
        if magic != expected or version != VERSION:
            kind = "message" if expected == MESSAGE else "sum"
            raise MalformedUpdate(f"The bytes aren't a {kind} of version {VERSION}.")
        if plan_mark != self.plan_mark:
            raise MalformedUpdate("The bytes belong to a different protection plan.")
        if key_id != self.key_id:
            raise MalformedUpdate("The bytes were made with a different key.")
        return int(count)
