"""The first bytes of every message and sum: what it is, of which plan and of which key."""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass, replace

from fedrec.errors import KeysError, MalformedUpdate
from fedrec.protection.plan import ProtectionPlan

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
    """Writes and checks the headers of one plan and one key epoch.

    Attributes:
        plan_mark: the first 16 bytes of the plan's fingerprint.
        key_id: 16 bytes that name the key; no secret follows from them.
        message_bytes: the only length that a message may have, and the least of a sum.
        max_summands: largest number of messages in a sum.
        most_sum_bytes: the largest length of a sum: that of a message but where it has entries.
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
            named: the plan that the context names, where it is another one: that of the largest
                vector, whose keys serve shorter ones.

        Raises:
            KeysError: when the context is of another plan, or more than the 56 bytes in which
                no key can hide.
        """
        if len(context) != CONTEXT_BYTES:
            raise KeysError(
                f"A coordinator's context has {CONTEXT_BYTES} bytes and no key in it; "
                f"found {len(context)} bytes.",
                remedy="Give the coordinator the context that `generate` returned, and no key.",
            )
        magic, version, fingerprint, key_id = _CONTEXT.unpack(context)
        if context != cls._context(fingerprint, key_id) or magic != CONTEXT or version != VERSION:
            raise KeysError(
                f"The context is not of version {VERSION} of the protection format.",
                remedy="Make the epoch's keys with this version of fedrec.",
            )
        if fingerprint.hex() != (named or plan).fingerprint():
            raise KeysError(
                "The context belongs to another protection plan.",
                remedy="Make the epoch's keys for the federation's present settings.",
            )
        return cls(
            plan_mark=_mark(plan),
            key_id=key_id,
            message_bytes=plan.message_bytes,
            max_summands=plan.max_summands,
            most_sum_bytes=_most_sum_bytes(plan),
        )

    def over(self, plan: ProtectionPlan) -> Envelope:
        """Return the envelope of another vector's messages under the same key."""
        return replace(
            self,
            plan_mark=_mark(plan),
            message_bytes=plan.message_bytes,
            max_summands=plan.max_summands,
            most_sum_bytes=_most_sum_bytes(plan),
        )

    @staticmethod
    def new_context(plan: ProtectionPlan, *, keyed: bool = True, key_id: bytes = b"") -> bytes:
        """Return a context that names a new key, by ``key_id`` if given, or no key at all."""
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
            MalformedUpdate: for any length, plan or key but this one's.
        """
        self.check_message(message[:HEADER_BYTES], len(message))
        return memoryview(message)[HEADER_BYTES:]

    def check_message(self, head: bytes, length: int) -> None:
        """Refuse what begins and is as long as no message; see `open_message`."""
        count = self._count(MESSAGE, head, length)
        if count != 1:
            raise MalformedUpdate(f"A message counts as one summand, not as {count}.")

    def open_sum(self, total: bytes) -> tuple[int, memoryview]:
        """Return the number of summands that a sum claims, and its body.

        Raises:
            MalformedUpdate: for any length, plan or key but this one's. Where a sum has entries
                its reader checks that its length is that of whole ones.
        """
        count = self._count(SUM, total[:HEADER_BYTES], len(total))
        return count, memoryview(total)[HEADER_BYTES:]

    def _close(self, magic: bytes, count: int, body: bytes) -> bytes:
        return _HEADER.pack(magic, VERSION, count, self.plan_mark, self.key_id) + body

    def _count(self, expected: bytes, head: bytes, length: int) -> int:
        """Return how many summands a header claims, where it and the length fit."""
        most = self.most_sum_bytes if expected == SUM else self.message_bytes
        if not self.message_bytes <= length <= most:
            allowed = str(most) if most == self.message_bytes else f"{self.message_bytes} to {most}"
            kind = "message" if expected == MESSAGE else "sum"
            raise MalformedUpdate(f"Found {length} bytes; every {kind} of this plan has {allowed}.")
        magic, version, count, plan_mark, key_id = _HEADER.unpack(head)
        if head != _HEADER.pack(magic, version, count, plan_mark, key_id):
            raise MalformedUpdate("The reserved bytes of the header are not zero.")
        if magic != expected or version != VERSION:
            kind = "message" if expected == MESSAGE else "sum"
            raise MalformedUpdate(f"The bytes are not a {kind} of version {VERSION}.")
        if plan_mark != self.plan_mark:
            raise MalformedUpdate("The bytes belong to another protection plan.")
        if key_id != self.key_id:
            raise MalformedUpdate("The bytes were made with another key.")
        return int(count)


def _most_sum_bytes(plan: ProtectionPlan) -> int:
    return plan.sum_bytes(plan.most_blocks(plan.max_summands))


def _mark(plan: ProtectionPlan) -> bytes:
    return bytes.fromhex(plan.fingerprint())[:MARK_BYTES]
