"""The samplers against the laws that they are named after."""

from __future__ import annotations

import inspect
import math
import pkgutil
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import fedrec.privacy
from fedrec.privacy import noise
from fedrec.privacy.noise import Edges, RandomBits

pytestmark = pytest.mark.slow

KEY = bytes(range(32))


def test_the_stream_is_aes_in_counter_mode():
    cipher = Cipher(algorithms.AES256(KEY), modes.CTR(bytes(16))).encryptor()
    wanted = np.frombuffer(cipher.update(bytes(80)), dtype="<u8")
    bits = RandomBits(KEY)
    assert np.array_equal(np.concatenate([bits.words(4), bits.words(6)]), wanted)


def test_no_two_streams_are_alike():
    seen = {RandomBits().words(2).tobytes() for _ in range(100)}
    assert len(seen) == 100


def test_no_module_of_privacy_draws_from_anything_else():
    for module in pkgutil.iter_modules(fedrec.privacy.__path__):
        path = f"{fedrec.privacy.__path__[0]}/{module.name}.py"
        with open(path, encoding="utf-8") as file:
            assert not re.search(
                r"np\.random|import random\b|torch\.(rand|normal|bernoulli|poisson|Generator)"
                r"|fedrec\.streams import",
                file.read(),
            )
    assert "secrets.token_bytes" in inspect.getsource(RandomBits)


class Scripted(RandomBits):
    """Gives words that a test wrote down."""

    def __init__(self, *words: int) -> None:
        self._left = list(words)

    def words(self, n_words: int) -> np.ndarray:
        given, self._left = self._left[:n_words], self._left[n_words:]
        return np.array(given, dtype=np.uint64)


def test_a_choice_compares_128_bits():
    """One edge at 5 x 2^64 + 7: below, above, and three ties that the second word decides."""
    edges = Edges(((5 << 64) + 7,))
    assert Scripted(4).chosen(edges, 1).tolist() == [0]
    assert Scripted(6).chosen(edges, 1).tolist() == [1]
    for second, reached in ((6, 0), (7, 1), (8, 1)):
        assert Scripted(5, second).chosen(edges, 1).tolist() == [reached]


def test_edges_may_share_their_first_word():
    edges = Edges((3 << 64, (3 << 64) + 10, (3 << 64) + 20, 9 << 64))
    for second, reached in ((0, 1), (9, 1), (10, 2), (19, 2), (20, 3)):
        assert Scripted(3, second).chosen(edges, 1).tolist() == [reached]


def exact(weight: object, reach: int) -> dict[int, float]:
    weights = {k: weight(k) for k in range(-reach, reach + 1)}  # type: ignore[operator]
    total = sum(weights.values())
    return {k: value / total for k, value in weights.items()}


def distance(found: np.ndarray, wanted: dict[int, float], width: int) -> float:
    """Return Pearson's chi squared per degree of freedom, in bins that are wide enough."""
    bins = Counter((found // width).tolist())
    expected: Counter[int] = Counter()
    for value, probability in wanted.items():
        expected[value // width] += probability * len(found)
    kept = [key for key, count in expected.items() if count > 20]
    chi = sum((bins[key] - expected[key]) ** 2 / expected[key] for key in kept)
    return chi / len(kept)


@pytest.mark.parametrize("deviation", [16, 100, 256, 257, 300, 1000, 20_000])
def test_gaussian_noise_has_its_law(deviation):
    found = noise.discrete_gaussian(deviation, 200_000, RandomBits(KEY))
    width = max(1, deviation // 8)
    wanted = exact(lambda k: math.exp(-(k**2) / (2 * deviation**2)), 6 * deviation)
    # About 80 bins: chi squared over their number is 1 +- 0.16.
    assert 0.4 < distance(found, wanted, width) < 1.8
    assert found.std() == pytest.approx(deviation, rel=0.01)


@pytest.mark.parametrize("deviation", [1 << 20, 3_000_000, 10**9])
def test_wide_gaussian_noise_has_its_moments(deviation):
    found = noise.discrete_gaussian(deviation, 200_000, RandomBits(KEY)) / deviation
    assert abs(found.mean()) < 5 / math.sqrt(200_000)
    assert found.var() == pytest.approx(1.0, abs=5 * math.sqrt(2 / 200_000))
    assert (found**4).mean() == pytest.approx(3.0, abs=5 * math.sqrt(96 / 200_000))
    # Low digits must not show the levels that the noise is made of.
    whole = noise.discrete_gaussian(deviation, 200_000, RandomBits(KEY))
    for digits in (2, 31, 64):
        counts = np.bincount(whole % digits, minlength=digits)
        share = len(whole) / digits
        assert ((counts - share) ** 2 / share).sum() < digits + 6 * math.sqrt(2 * digits)


@pytest.mark.parametrize("deviation", [16, 256, 257, 5000, 1 << 22])
def test_levels_add_up_to_the_variance_and_stay_smooth(deviation):
    levels = noise._levels(deviation**2)
    total = sum(Fraction(factor) ** 2 * Fraction(square) for factor, square in levels)
    assert float(total / deviation**2) == pytest.approx(1.0, abs=1e-30)
    assert all(square <= 256**2 for _, square in levels)
    for place in range(len(levels) - 1):
        inner = Fraction(levels[place][1])
        step = levels[place + 1][0] // levels[place][0]
        outer = sum(
            (Fraction(factor) / levels[place + 1][0]) ** 2 * Fraction(square)
            for factor, square in levels[place + 1 :]
        )
        # The inner sum runs over a Gaussian of this variance: at least 2^2.
        assert 1 / (1 / outer + Fraction(step) ** 2 / inner) >= 4


def test_no_noise_is_larger_than_the_bound_says():
    for deviation in (16, 256, 4000, 1 << 22):
        found = noise.discrete_gaussian(deviation, 50_000, RandomBits(KEY))
        assert abs(found).max() <= noise.largest_gaussian(deviation)
        assert noise.largest_gaussian(deviation) < 17 * deviation

    class Extreme(RandomBits):
        def words(self, n_words: int) -> np.ndarray:
            return np.full(n_words, (1 << 64) - 1, dtype=np.uint64)

    assert noise.discrete_gaussian(1 << 20, 1, Extreme()).tolist() == [
        noise.largest_gaussian(1 << 20)
    ]
    for scale in (1, 50, 1 << 20):
        found = noise.discrete_laplace(scale, 50_000, RandomBits(KEY))
        assert abs(found).max() <= noise.largest_laplace(scale)


@pytest.mark.parametrize("scale", [1, 7, 100, 5000])
def test_laplace_noise_has_its_law(scale):
    found = noise.discrete_laplace(scale, 200_000, RandomBits(KEY))
    wanted = exact(lambda k: math.exp(-abs(k) / scale), 40 * scale)
    assert 0.4 < distance(found, wanted, max(1, scale // 4)) < 1.8


def test_a_narrow_table_is_exact():
    """Probabilities of the table for s = 16, against sums of Python's exponentials."""
    edges, reach = noise._table(noise._levels(256)[0][1])
    weights = [math.exp(-(k**2) / 512) for k in range(-reach, reach + 1)]
    cumulated = np.cumsum(weights) / sum(weights)
    found = np.array([edge / 2**128 for edge in edges.exact])
    assert np.abs(found - cumulated[:-1]).max() < 1e-14
