"""The vector of one round: how it lies, what protects it, and how its sum is published."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.config.layout import Layout
from fedrec.protection import PROTECTIONS, Accumulator, Member, Protection

__all__ = ["RoundVector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundVector:
    """What a member needs for one round's vectors.

    Attributes:
        layout: where each part stands.
        protection: adds up messages of such vectors.
        member: protects this client's vector, and reveals sums where it holds the key.
        context: the protection's keyless context.
    """

    layout: Layout
    protection: Protection
    member: Member
    context: bytes

    @property
    def message_bytes(self) -> int:
        """Length of every protected vector."""
        return self.protection.chosen.message_bytes

    def accumulator(self) -> Accumulator:
        """Return an empty sum of this epoch's messages."""
        return self.protection.accumulator(self.context)

    def pack(self, aggregate: NDArray[np.int64]) -> bytes:
        """Return an aggregate as the plain bytes that are sealed and published."""
        codec, context = self._codec()
        packed = codec.accumulator(context)
        packed.add(codec.member(context, b"none").protect(aggregate))
        return packed.finish()

    def unpack(self, blob: bytes, n_summands: int) -> NDArray[np.int64]:
        """Return the aggregate that `pack`, or a coordinator without encryption, packed.

        Raises:
            MalformedUpdate: another length, or values out of bounds.
            RevealRefused: another number of summands.
        """
        codec, context = self._codec()
        return codec.member(context, b"none").reveal(blob, n_summands)

    def _codec(self) -> tuple[Protection, bytes]:
        plain, spec = PROTECTIONS["none"], self.layout.vector_spec
        codec = plain(spec, plain.plan(spec))
        context, _ = codec.generate()
        return codec, context
