"""From vectors to words of the ring and back, and the plan that says what it costs.

A segment whose sums stay within +-(2^31 - 1) takes one word a value; a wider one is split into
limbs first (`fedrec.protection.limbs`). Sums modulo 2^32 are then the exact sums.
"""

from __future__ import annotations

import math

import numpy as np

from fedrec.errors import PlanMismatch, SettingsError
from fedrec.protection.envelope import HEADER_BYTES, Envelope
from fedrec.protection.limbs import LimbLayout
from fedrec.protection.masks.keystream import WORD, WORD_BYTES, Words
from fedrec.protection.plan import ProtectionPlan
from fedrec.protection.vector import Integers, VectorSpec

__all__ = ["MaskWords", "plan_masks"]

CAPACITY = 2**31 - 1
SECURITY_BITS = 128


def plan_masks(spec: VectorSpec, preset: str = "default") -> ProtectionPlan:
    """Return the plan of a vector under masks: exact sums, four bytes a word.

    Raises:
        SettingsError: when a sum of ``max_summands`` limbs leaves 32 bits however they are cut.
    """
    layout = LimbLayout.fit(spec, CAPACITY)
    if layout is None:
        raise SettingsError(
            f"Rule masks-32-bit: the sum of {spec.max_summands} limbs does not fit a word of 32 "
            f"bits with limbs of any width.",
            remedy="Use fewer messages in a sum, a coarser grid or a smaller clip.",
        )
    n_slots = layout.n_slots(spec)
    return ProtectionPlan(
        protection="masks",
        preset=preset,
        exact=True,
        spec_fingerprint=spec.fingerprint(),
        poly_modulus_degree=0,
        coeff_mod_bit_sizes=(),
        plain_modulus=2**32,
        scale_bits=None,
        n_values=spec.length,
        n_slots=n_slots,
        n_blocks=1,
        frame_bytes=WORD_BYTES * n_slots,
        message_bytes=HEADER_BYTES + WORD_BYTES * n_slots,
        security_bits=SECURITY_BITS,
        error_bound=0.0,
        headroom_bits=math.log2((CAPACITY + 1) / layout.largest_sum(spec)),
        proof="worst case",
        max_summands=spec.max_summands,
        limb_bits=layout.limb_bits,
        limbs=layout.limbs,
    )


class MaskWords:
    """Reads and writes the vectors and messages of one plan.

    Args:
        spec: the vector.
        plan: what `plan_masks` returned for it, here or elsewhere.

    Raises:
        PlanMismatch: when this version would not make that plan for that vector.
    """

    def __init__(self, spec: VectorSpec, plan: ProtectionPlan) -> None:
        own = plan_masks(spec, plan.preset)
        if own.fingerprint() != plan.fingerprint():
            raise PlanMismatch(
                "The plan is not what this version plans with masks for this vector.",
                remedy="Install the same fedrec and use the federation's settings.",
            )
        self.spec = spec
        self.plan = own
        # No key belongs to the plan: every round brings its own.
        self._envelope = Envelope.of(own, Envelope.new_context(own, keyed=False))

    @property
    def n_words(self) -> int:
        """How many words a message has."""
        return self.plan.n_slots

    def encode(self, vector: Integers) -> Words:
        """Return a valid vector's words, uint32 of shape (n_words,).

        Raises:
            MalformedUpdate: for another type or shape, or a value outside its bound.
        """
        limbs = self.plan.layout.split(self.spec, self.spec.validated(vector))
        return limbs.astype(WORD)

    def decode(self, total: Words, n_summands: int) -> Integers:
        """Return the exact sum for which summed words stand, int64 of shape (length,).

        Raises:
            RevealRefused: when no honest messages sum to it.
        """
        sums = total.view(np.dtype("<i4")).astype(np.int64)
        return self.plan.layout.join(self.spec, sums, n_summands)

    def message(self, words: Words) -> bytes:
        """Return masked words as one client's message."""
        return self._envelope.close_message(words.astype(WORD, copy=False).tobytes())

    def open(self, message: bytes) -> Words:
        """Return the words of a message, a view of it.

        Raises:
            MalformedUpdate: for another length, plan or kind.
        """
        return np.frombuffer(self._envelope.open_message(message), dtype=WORD)
