"""Papers' noise: its law, and that no random word spoils a value."""

import math

import numpy as np
import pytest

from fedrec.privacy.noise import RandomBits, gaussian_noise, laplace_noise

LENGTH = 200_001
LAWS = {
    "laplace": (laplace_noise, lambda x: 1 - np.exp(-x)),
    "gaussian": (gaussian_noise, lambda x: np.array([math.erf(v / math.sqrt(2)) for v in x])),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_law_is_the_one_that_is_named(name):
    """Kolmogorov and Smirnov: 1.95 / sqrt(n) is passed by chance once in a thousand."""
    draw, size_below = LAWS[name]
    values = draw(0.5, LENGTH, RandomBits(bytes(range(32))))
    assert values.shape == (LENGTH,) and values.dtype == np.float64
    sizes = np.sort(np.abs(values)) / 0.5
    reached = np.arange(1, LENGTH + 1) / LENGTH
    places = slice(None, None, 97)
    apart = np.abs(size_below(sizes[places]) - reached[places]).max()
    assert apart < 1.95 / math.sqrt(LENGTH)
    # Signs are thrown apart from sizes: each half within four standard deviations.
    assert abs((values > 0).mean() - 0.5) < 2 / math.sqrt(LENGTH)
    assert abs(np.corrcoef(np.abs(values), np.sign(values))[0, 1]) < 4 / math.sqrt(LENGTH)
    # Neighbours say nothing of each other.
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / math.sqrt(LENGTH)


class Words:
    """A source whose words are given."""

    def __init__(self, *words):
        self._words = np.array(words, dtype=np.uint64)

    def words(self, n_words):
        return self._words[:n_words]


def test_no_word_gives_what_is_not_finite():
    least, most = 0, (1 << 64) - 1
    found = laplace_noise(2.0, 3, Words(least, most, 1))
    # -2 log(2^-54) and about 0; the last bit is the sign.
    assert found == pytest.approx([108 * math.log(2), 0.0, -108 * math.log(2)], abs=1e-12)
    assert np.isfinite(gaussian_noise(2.0, 4, Words(least, most, least, most))).all()


def test_every_source_draws_something_else():
    one, other = (laplace_noise(1.0, 100, RandomBits()) for _ in range(2))
    assert not np.intersect1d(one, other).size
