"""What every protection must do whose clients make messages by themselves."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from fedrec.errors import (
    FedrecError,
    KeysError,
    MalformedUpdate,
    PlanMismatch,
    RevealRefused,
    RoundError,
)
from fedrec.protection import (
    Member,
    Protection,
    SecretKey,
    SegmentSpec,
    VectorSpec,
)
from fedrec.protection.vector import Integers

SPEC = VectorSpec(
    segments=(
        SegmentSpec(name="items", length=4200, max_abs_sum=2**27),
        SegmentSpec(name="holders", length=60, max_abs_sum=5000, signed=False),
        SegmentSpec(name="wide", length=40, max_abs_sum=2**56),
        SegmentSpec(name="wide unsigned", length=3, max_abs_sum=2**61, signed=False),
    ),
    max_summands=6,
)
SHORT = VectorSpec(
    segments=(
        SegmentSpec(name="items", length=130, max_abs_sum=2**27),
        SegmentSpec(name="holders", length=20, max_abs_sum=5000, signed=False),
        SegmentSpec(name="wide", length=5, max_abs_sum=2**56),
        SegmentSpec(name="wide unsigned", length=3, max_abs_sum=2**61, signed=False),
    ),
    max_summands=6,
)
SHORTEST = VectorSpec(
    segments=(
        SegmentSpec(name="items", length=4, max_abs_sum=2**27),
        SegmentSpec(name="wide unsigned", length=1, max_abs_sum=2**61, signed=False),
    ),
    max_summands=6,
)
HEADER_BYTES = 44
CONTEXT_BYTES = 56


class Party(NamedTuple):
    """A protection with one key epoch."""

    protection: Protection
    context: bytes
    secret: SecretKey
    member: Member


def make_party(kind: type[Protection], preset: str, spec: VectorSpec = SPEC) -> Party:
    """Return a protection for ``spec`` with fresh keys, and one for tags where it has them."""
    protection = kind(spec, kind.plan(spec, preset=preset))
    context, secret = protection.generate()
    tag_key = bytes(range(32)) if spec.tagged else None
    member = protection.member(context, secret, tag_key=tag_key)
    return Party(protection, context, secret, member)


def summed(party: Party, *messages: bytes) -> bytes:
    """Return the sum of these messages as a coordinator makes it."""
    total = party.protection.accumulator(party.context)
    for message in messages:
        total.add(message)
    return total.finish()


def random_vectors(spec: VectorSpec, count: int, seed: int = 0) -> list[Integers]:
    """Return vectors whose absolute values sum to at most the bounds of ``spec``."""
    rng = np.random.default_rng(seed)
    vectors = []
    for _ in range(count):
        parts = []
        for segment in spec.segments:
            bound = segment.max_abs_sum // count
            low = -bound if segment.signed else 0
            parts.append(rng.integers(low, bound, segment.length, endpoint=True))
        vectors.append(np.concatenate(parts).astype(np.int64))
    return vectors


def extreme(spec: VectorSpec, sign: int, count: int = 1) -> Integers:
    """Return the vector of which ``count`` copies just reach every bound."""
    values = [
        np.full(segment.length, segment.max_abs_sum // count if sign > 0 else segment.smallest)
        for segment in spec.segments
    ]
    whole = np.concatenate(values).astype(np.int64)
    return whole if sign > 0 or count == 1 else -(-whole // count)


DAMAGES: tuple[Callable[[bytes], bytes], ...] = (
    lambda raw: b"",
    lambda raw: raw[:-1],
    lambda raw: raw + b"\0",
    lambda raw: raw[: len(raw) // 2],
    lambda raw: b"XXXX" + raw[4:],
    lambda raw: raw[:4] + b"\2" + raw[5:],
    lambda raw: raw[:5] + b"\1" + raw[6:],
    lambda raw: raw[:8] + b"\2" + raw[9:],
    lambda raw: raw[:12] + bytes(16) + raw[28:],
    lambda raw: raw[:28] + b"other key's name" + raw[44:],
    lambda raw: b"\xff" * len(raw),
)
"""What is seen in any message: a wrong length, or a wrong word in the header."""

BAD_VECTORS: dict[str, Callable[[VectorSpec], Any]] = {
    "float": lambda spec: np.zeros(spec.length, dtype=np.float64),
    "nan": lambda spec: np.full(spec.length, np.nan),
    "int32": lambda spec: np.zeros(spec.length, dtype=np.int32),
    "short": lambda spec: np.zeros(spec.length - 1, dtype=np.int64),
    "matrix": lambda spec: np.zeros((1, spec.length), dtype=np.int64),
    "list": lambda spec: [0] * spec.length,
    "above": lambda spec: extreme(spec, 1) + 1,
    "below": lambda spec: extreme(spec, -1) - 1,
}


class PlanSuite:
    """What every protection promises of its plan; a subclass names its protection and preset."""

    kind: ClassVar[type[Protection]]
    preset: ClassVar[str]
    spec: ClassVar[VectorSpec] = SPEC

    @pytest.fixture(scope="class")
    @classmethod
    def plan(cls):
        return cls.kind.plan(cls.spec, preset=cls.preset)

    def test_the_plan_is_compared(self, plan):
        again = self.kind.plan(self.spec, preset=self.preset)
        assert self.kind(self.spec, again).chosen == plan
        larger = replace(plan, message_bytes=plan.message_bytes + 1)
        with pytest.raises(PlanMismatch):
            self.kind(self.spec, larger)
        with pytest.raises(PlanMismatch):
            self.kind(self.spec, replace(plan, preset="other"))
        with pytest.raises(FedrecError):
            self.kind.plan(self.spec, preset="other")


class ProtectionSuite(PlanSuite):
    """The conformance suite of messages that clients make by themselves."""

    @pytest.fixture(scope="class")
    @classmethod
    def party(cls):
        return make_party(cls.kind, cls.preset, cls.spec)

    @pytest.fixture(scope="class")
    @classmethod
    def foreign(cls):
        """Others, with keys of their own under the same plan."""
        return make_party(cls.kind, cls.preset, cls.spec)

    @pytest.fixture(scope="class")
    @classmethod
    def message(cls, party):
        return party.member.protect(random_vectors(cls.spec, 1)[0])

    @staticmethod
    def total(party: Party, messages: list[bytes]) -> bytes:
        return summed(party, *messages)

    def test_a_single_message_comes_back(self, party):
        (vector,) = random_vectors(self.spec, 1)
        total = self.total(party, [party.member.protect(vector)])
        revealed = party.member.reveal(total, 1)
        assert revealed.dtype == np.int64
        assert np.array_equal(revealed, vector)

    def test_the_sum_is_exact_and_its_bytes_ignore_the_order(self, party):
        vectors = random_vectors(self.spec, 5)
        messages = [party.member.protect(vector) for vector in vectors]
        total = self.total(party, messages)
        assert self.total(party, messages[::-1]) == total
        assert self.total(party, messages[2:] + messages[:2]) == total
        assert np.array_equal(party.member.reveal(total, 5), np.sum(vectors, axis=0))

    @pytest.mark.parametrize("sign", [1, -1])
    def test_sums_at_the_bounds_are_exact(self, party, sign):
        vector = extreme(self.spec, sign, self.spec.max_summands)
        messages = [party.member.protect(vector) for _ in range(self.spec.max_summands)]
        revealed = party.member.reveal(self.total(party, messages), self.spec.max_summands)
        assert np.array_equal(revealed, self.spec.max_summands * vector)

    def test_every_message_and_sum_has_the_promised_length(self, party, plan):
        ones = np.ones(self.spec.length, dtype=np.int64)
        vectors = [0 * ones, ones, extreme(self.spec, 1), extreme(self.spec, -1)]
        messages = [party.member.protect(vector) for vector in vectors]
        assert {len(message) for message in messages} == {plan.message_bytes}
        assert len(self.total(party, messages[:2])) == plan.message_bytes
        assert plan.message_bytes == HEADER_BYTES + plan.n_blocks * plan.frame_bytes

    def test_a_refreshed_sum_reveals_the_same(self, party):
        vectors = random_vectors(self.spec, 3)
        total = self.total(party, [party.member.protect(vector) for vector in vectors])
        fresh = party.protection.accumulator(party.context).refreshed(total)
        assert np.array_equal(party.member.reveal(fresh, 3), np.sum(vectors, axis=0))

    def test_the_shortest_vector(self):
        segment = replace(self.spec.segments[0], length=1, entries=0)
        spec = VectorSpec(segments=(segment,), max_summands=2)
        party = make_party(self.kind, self.preset, spec)
        vectors = random_vectors(spec, 2)
        total = self.total(party, [party.member.protect(vector) for vector in vectors])
        assert np.array_equal(party.member.reveal(total, 2), np.sum(vectors, axis=0))

    def test_zeros_sum_to_zeros(self, party):
        zeros = np.zeros(self.spec.length, dtype=np.int64)
        total = self.total(party, [party.member.protect(zeros) for _ in range(3)])
        assert not party.member.reveal(total, 3).any()

    def test_a_member_made_from_exported_bytes_reveals_too(self, party, message):
        other = party.protection.member(party.context, party.secret.export_for_wrapping())
        total = self.total(party, [message])
        assert np.array_equal(other.reveal(total, 1), party.member.reveal(total, 1))

    @pytest.mark.parametrize("damage", [*DAMAGES, lambda raw: raw[:44] + b"\xff" * len(raw[44:])])
    def test_damage_is_refused_and_changes_nothing(self, party, message, damage):
        assert callable(damage)
        accumulator = party.protection.accumulator(party.context)
        accumulator.add(message)
        before = accumulator.finish()
        with pytest.raises(MalformedUpdate):
            accumulator.add(damage(message))
        assert accumulator.count == 1
        assert accumulator.finish() == before

    def test_a_sum_is_no_message_and_a_message_no_sum(self, party, message):
        total = self.total(party, [message])
        with pytest.raises(MalformedUpdate):
            party.protection.accumulator(party.context).add(total)
        with pytest.raises(MalformedUpdate):
            party.member.reveal(message, 1)

    def test_messages_of_another_plan_are_refused(self, party):
        spec = replace(self.spec, max_summands=5)
        other = make_party(self.kind, self.preset, spec)
        foreign = other.member.protect(np.zeros(spec.length, dtype=np.int64))
        with pytest.raises(MalformedUpdate):
            party.protection.accumulator(party.context).add(foreign)
        with pytest.raises(KeysError):
            party.protection.envelope(other.context)
        with pytest.raises(PlanMismatch):
            self.kind(self.spec, other.protection.chosen)

    def test_more_summands_than_planned_are_refused(self, party, message):
        accumulator = party.protection.accumulator(party.context)
        with pytest.raises(RoundError):
            accumulator.finish()
        vector = np.zeros(self.spec.length, dtype=np.int64)
        for _ in range(self.spec.max_summands):
            accumulator.add(party.member.protect(vector))
        with pytest.raises(RoundError):
            accumulator.add(message)
        total = accumulator.finish()
        for count in (0, -1, 1, self.spec.max_summands - 1, self.spec.max_summands + 1):
            with pytest.raises(RevealRefused):
                party.member.reveal(total, count)

    @pytest.mark.parametrize("change", BAD_VECTORS.values(), ids=BAD_VECTORS)
    def test_other_inputs_are_refused(self, party, change):
        with pytest.raises(MalformedUpdate):
            party.member.protect(change(self.spec))

    def test_the_secret_shows_nowhere(self, party, message):
        content = party.secret.export_for_wrapping()
        for holder in (party.secret, party.member):
            assert content.hex()[:32] not in repr(holder) and "hidden" in repr(holder)
            for steal in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError):
                    steal(holder)
        # A context names a public key at most.
        assert len(party.context) <= CONTEXT_BYTES + party.protection.chosen.key_bits // 8
        assert content not in party.context and content not in message

    def test_a_destroyed_secret_cannot_be_exported(self, party):
        _, secret = party.protection.generate()
        with secret:
            assert secret.export_for_wrapping()
        with pytest.raises(KeysError):
            secret.export_for_wrapping()

    def test_a_context_with_anything_else_in_it_is_refused(self, party):
        party.protection.envelope(party.context)
        for context in (
            b"",
            party.context[:-1],
            party.context + b"\0",
            party.context + party.secret.export_for_wrapping(),
            bytes(len(party.context)),
            party.context[:5] + b"\1" + party.context[6:],
        ):
            with pytest.raises(KeysError):
                party.protection.envelope(context)
            with pytest.raises(KeysError):
                party.protection.accumulator(context)
