"""From vectors to words of the ring and back, and what a round of them costs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedrec.errors import PlanMismatch, SettingsError
from fedrec.protection.asked_round import AskedRound, Price
from fedrec.protection.masks.keys import WIDE, WORD, WORD_BYTES, Words
from fedrec.protection.masks.terms import GraphParameters, parameters_for
from fedrec.protection.protection_plan import HEADER_BYTES, Envelope, LimbLayout, ProtectionPlan
from fedrec.protection.vector import Integers, SegmentSpec, VectorSpec

WORD_BITS = 32
LARGEST_NARROW = 2**31 - 1
SECURITY_BITS = 128


def plan_masks(spec: VectorSpec, preset: str = "default") -> ProtectionPlan:
    """Return the plan of a vector under masks: exact sums, four or eight bytes a value.

    A segment's bound, below 2^62 by `SegmentSpec`, always fits the ring that it gets.
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
        self._is_wide = np.repeat(np.array(own.limbs) > 1, [s.length for s in spec.segments])

    @property
    def n_words(self) -> int:
        """How many words a message has."""
        return self.plan.n_slots

    @property
    def n_wide(self) -> int:
        """How many values take two words; theirs come first."""
        return self.plan.n_slots - self.spec.length

    def encode(self, vector: Integers) -> Words:
        """Return a valid vector's words, uint32 of shape (n_words,).

        Raises:
            MalformedUpdate: for another type or shape, or a value outside its bound.
        """
        values = self.spec.validated(vector)
        wide = values[self._is_wide].astype(WIDE)
        return np.concatenate([wide.view(WORD), values[~self._is_wide].astype(WORD)])

    def decode(self, total: Words, n_summands: int) -> Integers:
        """Return the exact sum for which summed words stand, int64 of shape (length,).

        Raises:
            RevealRefused: when no honest messages sum to it.
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
        """Return the words of a message, a view of it.

        Raises:
            MalformedUpdate: for another length, plan or kind.
        """
        return np.frombuffer(self._envelope.open_message(message), dtype=WORD)


KEYS_BYTES = 160
"""Two X25519 keys, the digest of the model and an Ed25519 signature."""
LISTED_BYTES = 192
"""The same of another client, with its id in place of the digest."""
FEWEST_BITS = 4
"""Of `update.fraction_bits`."""
SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES, POSITION_BYTES = 82, 33, 64, 2


def mask_price(asked: AskedRound) -> Price:
    """Return what a client of a round pays, framing left out.

    Up go keys, shares, a signature and an answer; down come the list of keys, others' shares, the
    survivors and their signatures. Others' choices may differ by a little.

    Raises:
        SettingsError: where no graph of so many clients withstands what the settings say.
    """
    n_clients = asked.n_clients
    graph = parameters_for(n_clients, asked.settings.tolerance)
    signed_by = n_clients if asked.settings.tolerance.malicious else graph.degree
    held = graph.degree + graph.complete
    bits = -(-n_clients // 8)
    sealed = graph.degree * (SEALED_BYTES + POSITION_BYTES)
    may_drop_out = _may_drop_out(asked, graph)
    return Price(
        name="keys and shares",
        up_bytes=KEYS_BYTES + sealed + SIGNATURE_BYTES + held * (SHARE_BYTES + POSITION_BYTES),
        down_bytes=n_clients * LISTED_BYTES
        + sealed
        + 2 * bits
        + signed_by * (SIGNATURE_BYTES + POSITION_BYTES),
        facts={
            "n_neighbours": graph.degree,
            "threshold": graph.threshold,
            "quorum": graph.quorum,
            "may_drop_out": may_drop_out,
        },
        rows=(
            ("neighbours", f"{graph.degree} hold shares of a client's secrets"),
            ("shares", f"{graph.threshold} of them put a secret together again"),
            ("quorum", f"{graph.quorum} clients sign the same survivors before anybody answers"),
            ("drop-outs", f"{may_drop_out} clients of a round at most"),
        ),
    )


def mask_warnings(asked: AskedRound) -> list[str]:
    """Return what follows from masks in such a round."""
    n_clients = asked.n_clients
    graph = parameters_for(n_clients, asked.settings.tolerance)
    found = [
        "The coordinator reads every round's sum, and all clients of a round but one can compute "
        f"the last one's update from it: with {n_clients} clients, {n_clients - 1} must collude. "
        f"{_who_takes_masks_off(graph)}",
        *_wide_values(asked),
    ]
    if not _may_drop_out(asked, graph):
        found.append(
            f"With {n_clients} clients in a round a single drop-out abandons the round. Raise "
            "rounds.minimum_clients, or have everybody stay online for a round."
        )
    return found


def _who_takes_masks_off(graph: GraphParameters) -> str:
    if graph.threshold > graph.degree:
        # One share stays with the client itself, and it never gives that of its mask key.
        return (
            f"Masks are not taken off a single update by others: that takes {graph.threshold} "
            f"shares of its client's secrets, and the {graph.degree} others hold {graph.degree}."
        )
    return (
        f"Masks are taken off a single update where {graph.threshold} of its client's "
        f"{graph.degree} neighbours collude with the coordinator."
    )


def _wide_values(asked: AskedRound) -> list[str]:
    """Say what would keep four bytes a value, where the sums of changes need eight."""
    users, bits = asked.maximum_users, asked.fraction_bits
    if _in_one_word(asked, users, bits):
        return []
    coarser = _largest(FEWEST_BITS, bits, lambda each: _in_one_word(asked, users, each))
    fewer = _largest(1, users, lambda each: _in_one_word(asked, each, bits))
    keeping = [
        f"{name} = {number}"
        for name, number in (
            ("update.fraction_bits", coarser),
            ("federation.maximum_users", fewer),
        )
        if number
    ]
    advice = f" {' or '.join(keeping)} would keep four." if keeping else ""
    return [
        f"Sums of {users} users (federation.maximum_users) at update.fraction_bits = {bits} need "
        f"more than 31 bits, so that values take eight bytes under masks.{advice}"
    ]


def _in_one_word(asked: AskedRound, users: int, fraction_bits: int) -> bool:
    """Tell whether changes take one word a value with other numbers of these two."""
    try:
        words = plan_masks(asked.changes(users, fraction_bits)).limbs
    except SettingsError:
        return False
    return all(count == 1 for count in words)


def _largest(lowest: int, above: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from `lowest` and below `above` that fits; 0 where none does.

    Whatever is smaller than one that fits does, too.
    """
    low, high = lowest - 1, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if low >= lowest else 0


def _may_drop_out(asked: AskedRound, graph: GraphParameters) -> int:
    n_clients, needed = graph.n_clients, asked.needed
    if graph.complete:
        return max(0, min(n_clients - graph.threshold, n_clients - needed))
    tolerated = asked.settings.tolerance.dropped_among(n_clients)
    return max(0, min(tolerated, n_clients - graph.quorum, n_clients - needed))
