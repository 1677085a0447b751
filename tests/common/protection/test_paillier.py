"""Paillier: phe as an independent implementation, and what hostile peers send."""

from __future__ import annotations

import copy
import math
import os
import pickle
from dataclasses import replace
from itertools import islice

import gmpy2
import numpy as np
import phe
import pytest
from conformance.protection_suite import (
    HEADER_BYTES,
    SHORT,
    SHORTEST,
    extreme,
    make_party,
    random_vectors,
    summed,
)
from gmpy2 import mpz

from fedrec.errors import KeysError, MalformedUpdate, RevealRefused, SettingsError
from fedrec.protection import Paillier, SegmentSpec, VectorSpec
from fedrec.protection.paillier_key import FixedBase, PaillierPublicKey, PaillierSecretKey
from fedrec.protection.slot_widths import TAG_MODULUS

pytestmark = pytest.mark.slow

CONTEXT_HEAD = 56


def tagged(spec: VectorSpec) -> VectorSpec:
    """Return a vector as wide as tags bind it: values stay below half of their modulus."""
    most = (TAG_MODULUS - 1) // 2
    segments = (replace(s, max_abs_sum=min(s.max_abs_sum, most)) for s in spec.segments)
    return replace(spec, segments=tuple(segments), tagged=True)


@pytest.fixture(scope="module")
def party():
    return make_party(Paillier, "packed-2048", SHORT)


@pytest.fixture(scope="module")
def key(party):
    public = PaillierPublicKey.from_bytes(party.context[CONTEXT_HEAD:], 2048)
    raw = party.secret.export_for_wrapping()[len(party.context) :]
    return PaillierSecretKey.from_bytes(raw, public)


@pytest.fixture(scope="module")
def theirs(key):
    """Return the same key as phe has it."""
    public = phe.PaillierPublicKey(int(key.public.n))
    p, q = (int(number) for number in key._numbers[:2])
    return public, phe.PaillierPrivateKey(public, p, q)


def numbers_in(message: bytes, step: int = 512) -> list[int]:
    body = message[HEADER_BYTES:]
    return [int.from_bytes(body[at : at + step], "big") for at in range(0, len(body), step)]


def with_numbers(message: bytes, numbers: list[int], step: int = 512) -> bytes:
    return message[:HEADER_BYTES] + b"".join(number.to_bytes(step, "big") for number in numbers)


def test_the_price_is_what_the_design_promises():
    # Each of 1024 messages may have values of 32 bits: sums of 42 bits.
    segment = SegmentSpec(name="all", length=100_000, max_abs_sum=2**41 - 1)
    spec = VectorSpec(segments=(segment,), max_summands=1024)
    found = {preset: Paillier.plan(spec, preset=preset) for preset in Paillier.presets}
    assert Paillier.plan(spec) == found["packed-3072"]
    # (3072 - 1 - 64) // 42 = 71 slots and (2048 - 1 - 64) // 42 = 47.
    assert found["packed-3072"].n_blocks == math.ceil(100_000 / 71)
    assert found["packed-2048"].n_blocks == math.ceil(100_000 / 47)
    assert found["packed-3072"].message_bytes / 100_000 <= 11.5
    assert found["packed-2048"].message_bytes / 100_000 <= 11.5
    assert found["single-3072"].message_bytes == HEADER_BYTES + 100_000 * 768
    assert found["single-2048"].message_bytes == HEADER_BYTES + 100_000 * 512
    strengths = {preset: plan.security_bits for preset, plan in found.items()}
    assert strengths == {
        "packed-3072": 128, "packed-2048": 112, "single-3072": 128, "single-2048": 112,
        "paper": 128,
    }  # fmt: skip


@pytest.mark.parametrize("preset", ["packed-1024", "single-512", "packed-2047"])
def test_shorter_keys_are_refused_with_the_reason(preset):
    with pytest.raises(SettingsError, match="can be factored") as caught:
        Paillier.plan(SHORTEST, preset=preset)
    assert "packed-3072" in caught.value.remedy


def test_phe_reads_our_ciphertexts(party, theirs):
    vector = np.zeros(SHORT.length, dtype=np.int64)
    vector[:3] = 7, -2, 1
    first = numbers_in(party.member.protect(vector))[0]
    # Slots of 29 bits from the lowest on, and the counter above 2048 - 1 - 64 bits.
    expected = 7 - (2 << 29) + (1 << 58) + (1 << 1983)
    assert theirs[1].raw_decrypt(first) == expected


def test_we_read_the_ciphertexts_of_phe(party, theirs):
    ours = party.member.protect(np.zeros(SHORT.length, dtype=np.int64))
    numbers = [theirs[0].raw_encrypt(1 << 1983) for _ in numbers_in(ours)]
    numbers[0] = theirs[0].raw_encrypt((1 << 1983) + 5 + (6 << 29))
    revealed = party.member.reveal(summed(party, ours, with_numbers(ours, numbers)), 2)
    assert revealed[:2].tolist() == [5, 6] and not revealed[2:].any()


def test_every_ciphertext_has_a_residue_of_its_own(key):
    p, q = key._numbers[:2]
    zeros = [key.encrypt(mpz(0)) for _ in range(50)]
    public = list(islice(key.public.residues(), 50))
    assert len({*zeros, *public}) == 100
    for residue in (*zeros, *public):
        # An n-th residue modulo n^2 is of an order that divides (p - 1)(q - 1).
        assert gmpy2.powmod(residue, (p - 1) * (q - 1), key.public.n_squared) == 1
        assert key.decrypt(residue) == 0


def test_a_forked_process_draws_other_residues(key):
    key.encrypt(mpz(0))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, key.public.write([key.encrypt(mpz(0))]))
        os._exit(0)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(reading, "rb") as stream:
        (theirs,) = key.public.read(memoryview(stream.read()))
    assert theirs != key.encrypt(mpz(0))


def test_a_key_is_not_shown_or_copied(key):
    assert repr(key) == "<PaillierSecretKey, content hidden>"
    for steal in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            steal(key)


def test_the_bases_of_members_generate_all_residues(key):
    for prime, generator in zip(key._numbers[:2], key._numbers[2:], strict=True):
        # By trial division p - 1 = 2 c r with r a prime; the order divides none of its parts.
        rest, factors = prime - 1, set()
        for small in range(2, 1 << 11):
            while rest % small == 0:
                factors.add(small)
                rest //= small
        while not gmpy2.is_prime(rest):
            small = next(f for f in range(1 << 11, 1 << 20) if rest % f == 0)
            factors.add(small)
            rest //= small
        for factor in (*factors, rest):
            assert gmpy2.powmod(generator, (prime - 1) // factor, prime) != 1
        assert gmpy2.powmod(generator, prime - 1, prime) == 1


def test_fresh_keys_have_the_asked_length_and_distant_factors():
    first, second = PaillierSecretKey.generate(2048), PaillierSecretKey.generate(2048)
    assert first.public.n != second.public.n
    for key in (first, second):
        p, q = key._numbers[:2]
        assert key.public.n == p * q and key.public.n.bit_length() == 2048
        assert p.bit_length() == q.bit_length() == 1024
        assert abs(p - q) > 2 ** (1024 - 100)
        assert gmpy2.gcd(key.public.n, (p - 1) * (q - 1)) == 1


@pytest.mark.parametrize("window_bits", [1, 5, 7, 8])
def test_powers_by_the_table(window_bits):
    modulus, base = mpz(10**40 + 7), mpz(3**70)
    table = FixedBase(base, modulus, 100, window_bits=window_bits)
    for exponent in (0, 1, 2, 127, 128, 2**99 + 2**50, 2**100 - 1):
        assert table.power(mpz(exponent)) == pow(3**70, exponent, 10**40 + 7)
    with pytest.raises(ValueError, match="longer"):
        table.power(mpz(2) ** 120)


@pytest.mark.parametrize("at", [0, 2, -1])
@pytest.mark.parametrize("kind", ["zero", "n squared", "above", "n", "p", "p times more"])
def test_numbers_that_are_no_ciphertexts_are_refused_before_the_sum(party, key, kind, at):
    n, p = int(key.public.n), int(key._numbers[0])
    hostile = {
        "zero": 0,
        "n squared": n * n,
        "above": n * n + 1,
        "n": n,
        "p": p,
        "p times more": 12345 * p,
    }[kind]
    message = party.member.protect(np.zeros(SHORT.length, dtype=np.int64))
    numbers = numbers_in(message)
    numbers[at] = hostile
    total = party.protection.accumulator(party.context)
    total.add(message)
    before = total.finish()
    with pytest.raises(MalformedUpdate):
        total.add(with_numbers(message, numbers))
    assert (total.count, total.finish()) == (1, before)
    forged = before[:HEADER_BYTES] + with_numbers(message, numbers)[HEADER_BYTES:]
    with pytest.raises(MalformedUpdate):
        party.member.reveal(forged, 1)


def test_an_exponent_has_no_place_in_a_message(party, key):
    message = party.member.protect(np.zeros(SHORT.length, dtype=np.int64))
    with pytest.raises(MalformedUpdate, match="bytes"):
        summed(party, message + (-1000).to_bytes(4, "little", signed=True))
    # Scaling in secret, as an exponent of 1 to the base 16 would, scales the counter, too.
    n_squared = int(key.public.n_squared)
    scaled = with_numbers(message, [pow(number, 16, n_squared) for number in numbers_in(message)])
    for count in (1, 6):
        total = summed(party, scaled)
        lied = total[:8] + count.to_bytes(4, "little") + total[12:]
        with pytest.raises(RevealRefused, match="counters"):
            party.member.reveal(lied, count)


def test_a_poisoned_value_is_refused_when_revealed(party, theirs):
    honest = party.member.protect(random_vectors(SHORT, 2)[0])
    numbers = [theirs[0].raw_encrypt(1 << 1983) for _ in numbers_in(honest)]
    # 2^28 - 1 leaves -2^27..2^27, whatever the honest value of at most 2^26 adds.
    numbers[0] = theirs[0].raw_encrypt((1 << 1983) + 2**28 - 1)
    with pytest.raises(RevealRefused, match="bounds"):
        party.member.reveal(summed(party, honest, with_numbers(honest, numbers)), 2)


def test_a_refreshed_sum_is_another_that_reveals_the_same(party):
    vectors = random_vectors(SHORT, 3)
    total = summed(party, *map(party.member.protect, vectors))
    fresh = [party.protection.accumulator(party.context).refreshed(total) for _ in range(2)]
    assert len({total, *fresh}) == 3
    assert {len(each) for each in fresh} == {len(total)}
    for other in fresh:
        pairs = zip(numbers_in(total), numbers_in(other), strict=True)
        assert all(before != after for before, after in pairs)
        assert np.array_equal(party.member.reveal(other, 3), np.sum(vectors, axis=0))
    with pytest.raises(MalformedUpdate):
        party.protection.accumulator(party.context).refreshed(total[:-1])


def test_a_context_is_a_modulus_and_no_factor(party, key):
    n, (p, q) = key.public.n, key._numbers[:2]
    assert party.context[CONTEXT_HEAD:] == n.to_bytes(256, "big")
    for number, word in (
        (gmpy2.next_prime(n), "a prime in place"),
        (p, "a product of two primes"),
        (p * p, "a product of two primes"),
        (n + 1, "a product of two primes"),
        (n >> 1, "a product of two primes"),
    ):
        with pytest.raises(KeysError, match=word):
            PaillierPublicKey.from_bytes(number.to_bytes(256, "big"), 2048)
    other = n + 2
    with pytest.raises(KeysError, match="different public modulus"):
        party.protection.envelope(party.context[:CONTEXT_HEAD] + other.to_bytes(256, "big"))
    for number in (p, q):
        assert number.to_bytes(128, "big") not in party.context


def test_secrets_of_other_keys_or_damaged_ones_are_refused(party, key):
    raw = key.to_bytes()
    p, q, first, _ = (raw[at : at + 128] for at in range(0, 512, 128))
    one = (1).to_bytes(128, "big")
    square = (4).to_bytes(128, "big")
    other = PaillierSecretKey.generate(2048).to_bytes()
    for content in (
        b"",
        raw[:-1],
        raw + b"\0",
        other,
        p + p + first + first,
        one + key.public.n.to_bytes(256, "big")[:128] + first + first,
        p + q + square + first,
    ):
        with pytest.raises(KeysError):
            party.protection.member(party.context, party.context + content)


@pytest.mark.parametrize("sign", [1, -1])
def test_1024_messages_at_the_largest_bound_sum_exactly(sign):
    segment = SegmentSpec(name="all", length=3, max_abs_sum=1024 << 31)
    spec = VectorSpec(segments=(segment,), max_summands=1024)
    party = make_party(Paillier, "packed-2048", spec)
    vector = extreme(spec, sign, 1024)
    total = summed(party, *[party.member.protect(vector)] * 1024)
    assert np.array_equal(party.member.reveal(total, 1024), 1024 * vector)


@pytest.mark.parametrize("preset", ["packed-2048", "single-2048"])
@pytest.mark.parametrize("sign", [1, -1])
def test_tagged_sums_are_exact_and_known(preset, sign):
    """The largest values of as many messages as planned, with tags above every counter."""
    spec = tagged(SHORTEST if preset.startswith("single") else SHORT)
    party = make_party(Paillier, preset, spec)
    member = party.member
    assert party.protection.chosen.n_tags == 2
    names = tuple(f"client {n}".encode() for n in range(6))
    vector = extreme(spec, sign, 6)
    messages = [member.protect(vector, name) for name in names]

    def total(*chosen: int) -> bytes:
        found = summed(party, *(messages[index] for index in chosen))
        return party.protection.accumulator(party.context).refreshed(found)

    assert np.array_equal(member.reveal(total(*range(6)), 6, names), 6 * vector)
    for wrong in ((0, 0, 2, 3, 4, 5), (0, 0, 0, 0, 0, 0)):
        with pytest.raises(RevealRefused, match="tags"):
            member.reveal(total(*wrong), 6, names)
    with pytest.raises(RevealRefused, match="tags"):
        member.reveal(total(*range(6)), 6, (*names[1:], b"another"))


def test_a_slot_cannot_be_moved_by_a_multiple_of_the_tags_modulus():
    """Whoever adds the modulus to a slot keeps the hash modulo it; the slot's bounds do not."""
    spec = tagged(SHORT)
    party = make_party(Paillier, "packed-2048", spec)
    public = PaillierPublicKey.from_bytes(party.context[CONTEXT_HEAD:], 2048)
    names = (b"a", b"b", b"c")
    total = summed(party, *(party.member.protect(extreme(spec, 1, 6), name) for name in names))
    (first, *others) = public.read(memoryview(total)[HEADER_BYTES:])
    for shift in (0, 28, 56):
        moved = first * (1 + (TAG_MODULUS << shift) * public.n) % public.n_squared
        forged = total[:HEADER_BYTES] + public.write([moved, *others])
        with pytest.raises(RevealRefused):
            party.member.reveal(forged, 3, names)


@pytest.mark.parametrize("preset", ["packed-2048", "single-2048"])
def test_segments_as_wide_as_the_tags_modulus_are_refused(preset):
    """Half of 2^61 - 1 is 2^60 - 1/2: 2^60 - 1 and its negative have different residues."""
    fits, wide = (
        VectorSpec(
            segments=(
                SegmentSpec(name="counts", length=3, max_abs_sum=9, signed=False),
                SegmentSpec(name="change", length=3, max_abs_sum=bound),
            ),
            max_summands=9,
            tagged=True,
        )
        for bound in (2**60 - 1, 2**60)
    )
    assert Paillier.plan(fits, preset=preset).n_tags == 2
    with pytest.raises(SettingsError, match=r"change \(up to 1152921504606846976\)") as refused:
        Paillier.plan(wide, preset=preset)
    for name in ("maximum_users", "fraction_bits", "recompute_limit"):
        assert name in refused.value.remedy
    assert Paillier.plan(replace(wide, tagged=False), preset=preset).n_tags == 0


def test_sums_at_the_border_cannot_be_moved_by_the_modulus():
    """What turned a sum of -3 into 2^61 - 4 where slots were as wide as the modulus."""
    segment = SegmentSpec(name="change", length=2, max_abs_sum=2**60 - 1)
    spec = VectorSpec(segments=(segment,), max_summands=3, tagged=True)
    party = make_party(Paillier, "packed-2048", spec)
    public = PaillierPublicKey.from_bytes(party.context[CONTEXT_HEAD:], 2048)
    names = (b"a", b"b", b"c")
    total = summed(party, *(party.member.protect(np.array([-1, 5]), name) for name in names))
    assert party.member.reveal(total, 3, names).tolist() == [-3, 15]
    (only,) = public.read(memoryview(total)[HEADER_BYTES:])
    moved = only * (1 + TAG_MODULUS * public.n) % public.n_squared
    with pytest.raises(RevealRefused):
        party.member.reveal(total[:HEADER_BYTES] + public.write([moved]), 3, names)
