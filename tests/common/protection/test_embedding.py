"""The canonical embedding: against its definition, against TenSEAL, and the same bits again."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from conformance.protection_suite import make_party

from fedrec.protection import CKKS, SegmentSpec, VectorSpec
from fedrec.protection.blocks import BlockMember
from fedrec.protection.embedding import (
    canonical_slots,
    half_coefficients,
    roots_of_unity,
    slots,
)


def test_roots_by_hand_and_by_the_mathematical_library() -> None:
    cosines, sines = roots_of_unity(8)
    assert [cosines[0], cosines[8], sines[4], sines[12]] == [1.0, -1.0, 1.0, -1.0]
    assert cosines[2] == math.sqrt(0.5)
    angles = math.pi * np.arange(16) / 8
    np.testing.assert_allclose(cosines, np.cos(angles), atol=1e-15)
    np.testing.assert_allclose(sines, np.sin(angles), atol=1e-15)


def test_slots_are_real_parts_at_powers_of_three() -> None:
    degree = 16
    coefficients = np.random.default_rng(1).integers(-1000, 1000, degree).astype(np.float64)
    root = cmath.exp(1j * math.pi / degree)
    expected = [
        sum(c * root ** (j * 3**slot) for j, c in enumerate(coefficients.tolist())).real
        for slot in range(degree // 2)
    ]
    np.testing.assert_allclose(slots(coefficients), expected, atol=1e-9)


def test_coefficients_come_back_by_halves() -> None:
    # p(x) = (m(x) + m(1/x)) / 2, and 1/x^j = -x^(N-j): 2 p_j = m_j - m_(N-j), 2 p_0 = 2 m_0.
    degree = 1024
    m = np.random.default_rng(2).integers(-(2**39), 2**39, degree)
    expected = m - np.concatenate(([-m[0]], m[:0:-1]))
    found = half_coefficients(slots(m.astype(np.float64)))
    assert np.abs(found - expected).max() < 0.01


def test_what_differs_in_the_last_bits_becomes_the_same() -> None:
    random = np.random.default_rng(3)
    m = random.integers(-(2**36), 2**36, 8192).astype(np.float64)
    exact = slots(m)
    canonical = canonical_slots(exact)
    assert canonical is not None
    for _ in range(5):
        shaken = exact * (1 + random.uniform(-16, 16, len(exact)) * 2.0**-52)
        assert not np.array_equal(shaken, exact)
        assert np.array_equal(canonical_slots(shaken), canonical)
    np.testing.assert_allclose(canonical, exact, rtol=1e-12, atol=1e-2)


def test_values_of_no_whole_polynomial_are_told() -> None:
    assert canonical_slots(np.random.default_rng(4).uniform(-100, 100, 512)) is None


@pytest.mark.parametrize("preset", ["lean", "approximate"])
def test_the_slots_are_those_of_tenseal(preset: str) -> None:
    segment = SegmentSpec(name="all", length=10, max_abs_sum=1000)
    party = make_party(CKKS, preset, VectorSpec(segments=(segment,), max_summands=4))
    assert isinstance(party.member, BlockMember)
    cipher = party.member._open_cipher()
    values = np.random.default_rng(5).uniform(-4, 4, cipher.n_slots)
    scale = 2.0 ** (party.protection.chosen.scale_bits or 0)
    decrypted = np.array(cipher.decrypt(cipher.encrypt(values.tolist())))
    canonical = canonical_slots(decrypted * scale)
    assert canonical is not None, "TenSEAL's slots belong to no polynomial of integers here"
    np.testing.assert_allclose(canonical / scale, decrypted, rtol=0, atol=1e-9)
