"""Parsers of protected vectors: contexts, messages and sums of every protection."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from conformance.protection_suite import Party, make_party, random_vectors
from fuzz.target import Target

from fedrec.protection import (
    BFV,
    CKKS,
    NoProtection,
    Paillier,
    Protection,
    SecretKey,
    SegmentSpec,
    VectorSpec,
)
from fedrec.protection.masks import KeyAdvertisement, KeyList
from fedrec.protection.masks.keys import RoundKeys
from fedrec.protection.masks.participant import ParticipantState
from fedrec.protection.vector import Integers

VECTOR = VectorSpec(
    segments=(
        SegmentSpec(name="items", length=50, max_abs_sum=2**20),
        SegmentSpec(name="holders", length=6, max_abs_sum=5000, signed=False),
    ),
    max_summands=4,
)
ENTRIES = VectorSpec(
    segments=(
        SegmentSpec(name="table", length=12, max_abs_sum=2**20, entries=3),
        SegmentSpec(name="counts", length=2, max_abs_sum=8, signed=False),
    ),
    max_summands=4,
)


def _parties(kind: type[Protection], preset: str, spec: VectorSpec) -> Callable[[], Party]:
    @cache
    def made() -> Party:
        return make_party(kind, preset, spec)

    return made


def _vectors(spec: VectorSpec) -> list[Integers]:
    """Return two vectors; of those that travel as entries most values are zero."""
    found = random_vectors(spec, 2)
    if spec is ENTRIES:
        for number, vector in enumerate(found):
            vector[2 + number : 12] = 0
    return found


def _context(party: Callable[[], Party]) -> Callable[[], Target]:
    """Return the target of a context, which a coordinator relays to members."""

    def made() -> Target:
        found = party()

        def read(data: bytes) -> object:
            found.protection.envelope(data)
            return found.protection.accumulator(data)

        return Target(read=read, seeds=(found.context,))

    return made


def _message(party: Callable[[], Party]) -> Callable[[], Target]:
    """Return the target of a client's update, as the coordinator adds it to another."""

    def made() -> Target:
        found = party()
        first, second = _vectors(found.protection.spec)
        honest = found.member.protect(first)

        def read(data: bytes) -> object:
            total = found.protection.accumulator(found.context)
            total.add(honest)
            total.add(data)
            return total.finish()

        return Target(read=read, seeds=(found.member.protect(second),))

    return made


def _sum(party: Callable[[], Party]) -> Callable[[], Target]:
    """Return the target of a sum, as whoever holds the key opens it."""

    def made() -> Target:
        found = party()
        total = found.protection.accumulator(found.context)
        for vector in _vectors(found.protection.spec):
            total.add(found.member.protect(vector))
        return Target(
            read=lambda data: found.member.reveal(data, 2).tobytes(), seeds=(total.finish(),)
        )

    return made


def _secret(party: Callable[[], Party]) -> Callable[[], Target]:
    """Return the target of a scheme's secret, which a member unwraps."""

    def made() -> Target:
        found = party()
        assert isinstance(found.secret, SecretKey)
        return Target(
            read=lambda data: found.protection.member(found.context, data),
            seeds=(found.secret.export_for_wrapping(),),
        )

    return made


def _participant() -> Target:
    """Return the target of what a client remembers of a round under masks."""
    keys = RoundKeys(mask=b"m" * 32, share=b"s" * 32)
    listed = KeyList.of(
        KeyAdvertisement(
            client_id=("ab" if number else "cd") * 32,
            mask_key=bytes([number + 1]) * 32,
            share_key=bytes([number + 9]) * 32,
            signature=b"s" * 64,
        )
        for number in range(2)
    )
    state = ParticipantState(
        phase="shared", terms=b"t" * 32, keys=keys, key_list=listed, holders=(0, 1)
    )
    return Target(read=ParticipantState.from_bytes, seeds=(state.to_bytes(),))


_PARTIES = {
    "none": _parties(NoProtection, "default", VECTOR),
    "none, entries": _parties(NoProtection, "default", ENTRIES),
    "bfv": _parties(BFV, "default", VECTOR),
    "ckks": _parties(CKKS, "default", VECTOR),
    "paillier": _parties(Paillier, "packed-2048", VECTOR),
    "paillier, entries": _parties(Paillier, "single-2048", ENTRIES),
}

CIPHERTEXTS: dict[str, Callable[[], Target]] = {
    f"{name}: {what}": make(party)
    for name, party in _PARTIES.items()
    for what, make in (
        ("context", _context),
        ("message", _message),
        ("sum", _sum),
        ("secret", _secret),
    )
    # Without protection there is no secret.
    if not (name.startswith("none") and what == "secret")
} | {"participant under masks": _participant}
"""By name, what makes the target of each; keys are made when they are needed."""
