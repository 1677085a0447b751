"""Flooding: its formula by hand, its inputs, and where its noise comes from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedrec.errors import InternalError
from fedrec.protection import CKKS, SegmentSpec, VectorSpec
from fedrec.protection.flooding import Flooding, system_gaussian

SPEC = VectorSpec(
    segments=(
        SegmentSpec(name="fine", length=100, max_abs_sum=1 << 26, real=True),
        SegmentSpec(name="coarse", length=10, max_abs_sum=1 << 30, real=True),
    ),
    max_summands=16,
)
PLAN = CKKS.plan(SPEC, preset="approximate")


def test_the_formula_by_hand() -> None:
    flooding = Flooding(plan=PLAN, n_sums=1, n_releases=3)
    # One block, K = 16, N = 8192: t = 16/2 + sqrt(2 x 16 x 8193/12 x ln(2 x 8192 x 2^40)), and the
    # logarithm is 14 ln 2 + 40 ln 2 = 37.43: t = 8 + sqrt(21848 x 37.43) = 8 + 904.3 = 912.3.
    assert PLAN.n_blocks == 1
    assert flooding.error == pytest.approx(912.3, abs=0.2)
    # tau = 3, s = 30: sqrt(36) x 2^15 x t.
    assert flooding.coefficient_deviation == pytest.approx(6 * 32768 * flooding.error)
    # A slot sums 8192 coefficients times cosines of mean square 1/2: 64 times as much.
    units = PLAN.unit_bits
    assert units[0] - units[1] == 4
    for index in (0, 1):
        expected = 64 * flooding.coefficient_deviation / 2.0 ** units[index]
        assert flooding.deviation(index) == pytest.approx(expected)


def test_more_sums_and_releases_need_more() -> None:
    one = Flooding(plan=PLAN, n_sums=1, n_releases=1)
    assert replace(one, n_sums=5).deviation(0) == pytest.approx(5 * one.deviation(0))
    assert replace(one, n_releases=4).deviation(0) == pytest.approx(2 * one.deviation(0))
    blocks = replace(PLAN, n_blocks=27)
    assert replace(one, plan=blocks).n_decryptions == 27


def test_it_drowns_what_it_hides() -> None:
    flooding = Flooding(plan=PLAN, n_sums=1, n_releases=1)
    assert flooding.coefficient_deviation > 2**15 * flooding.error


def test_exact_sums_are_not_flooded() -> None:
    exact = CKKS.plan(SPEC, preset="lean")
    with pytest.raises(InternalError):
        Flooding(plan=exact, n_sums=1, n_releases=1).deviation(0)


def test_the_noise_is_standard_normal_and_never_the_same() -> None:
    values = system_gaussian(200_000)
    assert values.shape == (200_000,)
    assert abs(values.mean()) < 6 / math.sqrt(200_000)
    assert abs(values.std() - 1) < 0.01
    # P(|x| > 2) = .0455 for a normal distribution.
    assert abs((np.abs(values) > 2).mean() - 0.0455) < 0.003
    assert np.isfinite(values).all()
    assert not np.array_equal(values, system_gaussian(200_000))
