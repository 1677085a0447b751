"""The coordinator's half of every encrypted protection: residues added modulo the primes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from fedrec.errors import MalformedUpdate
from fedrec.protection.envelope import Envelope
from fedrec.protection.plan import ProtectionPlan
from fedrec.protection.protection import EnvelopedSum
from fedrec.protection.residues import ResidueLayout, Residues

__all__ = ["ModularAccumulator", "pack_blocks", "unpack_blocks"]


class ModularAccumulator(EnvelopedSum):
    """Adds ciphertexts that it cannot read, with numpy alone.

    No native parser sees what a peer sent (TenSEAL 0.3.18 ends the process with SIGSEGV when it
    adds a vector of four crafted bytes), the result does not depend on the order of the
    messages, and a sum has one encoding only.
    """

    def __init__(self, plan: ProtectionPlan, envelope: Envelope) -> None:
        super().__init__(envelope)
        self._layout = ResidueLayout.of_plan(plan)
        self._total: Residues = np.zeros((plan.n_blocks, *self._layout.shape), dtype=np.uint64)

    def _take(self, file: BinaryIO) -> None:
        blocks = unpack_blocks(self._layout, memoryview(file.read()))
        if not all(block[1].any() for block in blocks):
            raise MalformedUpdate(
                "A ciphertext is transparent: its second polynomial is zero, so it hides nothing."
            )
        for total, block in zip(self._total, blocks, strict=True):
            self._layout.add_to(total, block)

    def _parts(self) -> Iterable[bytes]:
        return (pack_blocks(self._layout, self._total),)


def pack_blocks(layout: ResidueLayout, blocks: Residues) -> bytes:
    """Return blocks of shape (n_blocks, 2, n_primes, N) as their frames, end to end."""
    return b"".join(layout.pack(block) for block in blocks)


def unpack_blocks(layout: ResidueLayout, body: memoryview) -> list[Residues]:
    """Return every block of a body whose length was checked."""
    step = layout.frame_bytes
    return [layout.unpack(body[start : start + step]) for start in range(0, len(body), step)]
