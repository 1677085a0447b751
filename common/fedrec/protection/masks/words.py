"""Convert vectors to words of the ring and back."""

from __future__ import annotations

import math

import numpy as np

from fedrec.errors import PlanMismatch
from fedrec.protection.masks.keys import WIDE, WORD, WORD_BYTES, Words
from fedrec.protection.protection_plan import HEADER_BYTES, Envelope, ProtectionPlan
from fedrec.protection.vector import Integers, LimbLayout, SegmentSpec, VectorSpec

WORD_BITS = 32
LARGEST_NARROW = 2**31 - 1
SECURITY_BITS = 128


def plan_masks(spec: VectorSpec, preset: str = "default") -> ProtectionPlan:
    """Return the plan of a vector under masks: exact sums, four or eight bytes a value.

    A segment's bound, below 2^62 by `SegmentSpec`, always fits the segment's ring.
    """
    words = tuple(_words_of(segment) for segment in spec.segments)
    n_words = sum(s.length * count for s, count in zip(spec.segments, words, strict=True))
    to_spare = min(
        WORD_BITS * count - 1 - math.log2(s.max_abs_sum)
        for s, count in zip(spec.segments, words, strict=True)
    )
    return ProtectionPlan(
        protection="masks",
        preset=preset,
        spec_fingerprint=spec.fingerprint(),
        plain_modulus=2 ** (WORD_BITS * max(words)),
        n_values=spec.length,
        n_slots=n_words,
        n_blocks=1,
        frame_bytes=WORD_BYTES * n_words,
        message_bytes=HEADER_BYTES + WORD_BYTES * n_words,
        security_bits=SECURITY_BITS,
        primitives="X25519, AES-256, SHA-256",
        headroom_bits=to_spare,
        max_summands=spec.max_summands,
        limb_bits=WORD_BITS if max(words) > 1 else 0,
        limbs=words,
    )


def _words_of(segment: SegmentSpec) -> int:
    return 1 if segment.max_abs_sum <= LARGEST_NARROW else 2


class MaskWords:
    """Read and write the vectors and messages of one plan.

    Args:
        spec: the vector.
        plan: the result of `plan_masks` for the vector, here or on another machine.

    Raises:
        PlanMismatch: this version wouldn't make that plan for that vector.
    """

    def __init__(self, spec: VectorSpec, plan: ProtectionPlan) -> None:
        own = plan_masks(spec, plan.preset)
        if own.fingerprint() != plan.fingerprint():
            raise PlanMismatch(
                "The plan isn't the one that this version makes with masks for this vector.",
                remedy="Install the same release of fedrec, and use the federation's settings.",
            )
        self.spec = spec
        self.plan = own
        # The plan has no key. Every round has its own.
        self._envelope = Envelope.of(own, Envelope.new_context(own, keyed=False))
        self._is_wide = np.repeat(np.array(own.limbs) > 1, [s.length for s in spec.segments])

    @property
    def n_words(self) -> int:
        """The number of words in a message."""
        return self.plan.n_slots

    @property
    def n_wide(self) -> int:
        """The number of values with two words each. They come first."""
        return self.plan.n_slots - self.spec.length

    def encode(self, vector: Integers) -> Words:
        """Return a valid vector's words, uint32 of shape (n_words,).

        Raises:
            MalformedUpdate: the type or shape is wrong, or a value is outside its bound.
        """
        values = self.spec.validated(vector)
        wide = values[self._is_wide].astype(WIDE)
        return np.concatenate([wide.view(WORD), values[~self._is_wide].astype(WORD)])

    def decode(self, total: Words, n_summands: int) -> Integers:
        """Return the exact sum from summed words, int64 of shape (length,).

        Raises:
            RevealRefused: honest messages can't add up to it.
        """
        end = 2 * self.n_wide
        sums = np.empty(self.spec.length, dtype=np.int64)
        sums[self._is_wide] = total[:end].view("<i8")
        sums[~self._is_wide] = total[end:].view("<i4")
        whole = LimbLayout(limb_bits=0, limbs=(1,) * len(self.spec.segments))
        return whole.join(self.spec, sums, n_summands)

    def message(self, words: Words) -> bytes:
        """Return masked words as one client's message."""
        return self._envelope.close_message(words.astype(WORD, copy=False).tobytes())

    def open(self, message: bytes) -> Words:
        """Return the words of a message as a view.

        Raises:
            MalformedUpdate: the length, plan or kind is wrong.
        """
        return np.frombuffer(self._envelope.open_message(message), dtype=WORD)
