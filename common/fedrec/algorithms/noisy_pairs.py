"""`ease` under noise: what users contribute, why it is bounded, and the model that follows.

Letters: n items, N the expected users, h a user's history (n values, 1 for each of its m items). R
are the r rows whose pairs travel, h_R and m_R the history in these rows, C is the clip.

Contribution of a user, in two vectors:

    x_1 = a h / sqrt(m),
    x_2 = b times the upper triangle of h_R h_R^T / m_R, entries off the diagonal times sqrt(2),

with a^2 + b^2 = 1. The first round sums C x_1, the weighted counts. The others sum C x_2 in parts
of one length. R is the r items with the largest noisy counts, so it is public.

Sensitivity. |x_1|^2 = a^2 m / m = a^2. x_2 has m_R entries b / m_R and m_R (m_R - 1) / 2 entries
sqrt(2) b / m_R, so

    |x_2|^2 = b^2 (m_R + m_R (m_R - 1)) / m_R^2 = b^2,

and 0 without items in R, for any R. So all values that a user ever contributes to a release have
the length C together, however they are divided into parts. They are rounded to the grid towards
zero, which makes none larger. Hence:

- Adding or removing a user changes all sums together by a vector of length C at most.
- Replacing a user by another changes them by x - x'. No value of x or x' is negative, so x . x' is
  not either, and |x - x'|^2 <= |x|^2 + |x'|^2 <= 2 C^2: sqrt(2) C.

This needs the same history and the same R in all parts. The client freezes the history at the first
part (`fedrec_client.round.local_model`). R follows from the version, which no later round changes.

Rule. r follows from N, the noise's deviation and the limit of pairs alone. Noise is the same on
every entry, but users hold few items often, so that few rows carry most of what rises above it. The
constants below were fixed on validation items of four data sets, before any test. If r is small,
the release is the counts alone (a = 1).

Model. Let s be the noise's deviation for a contribution of length 1. Pairs of r rows have the
noisy matrix G. Eigenvalues of its noise alone lie within +- e = (s / b) sqrt(2 r). Those of G
above e are kept and shrunk to sqrt(w^2 - e^2), which is nearest to the matrix without noise in the
mean square (Gavish and Donoho 2017): G ~ T T^T. The diagonal of G counts items, not pairs, and is
often its largest part: eigenvectors of popular items alone would be kept for it. So T T^T is found
from the pairs. The diagonal starts at 0, and is filled twice with that of the kept part. The rest
of G's own diagonal goes to D, as in `sketched_weights`. Item weights follow as there, with
lambda in proportion to e. To the score of an item its estimated share of the users is added, with a
constant weight. It ranks the items without weights, and all items if no eigenvalue is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import SumNoise
from fedrec.algorithms.sketched_weights import SketchedWeights, weights_of

MOST_ROWS = 16_384
"""A matrix of this number of rows takes 2 GiB, and its eigenvectors several times that."""
MOST_PAIRS_AT_ONCE = 1 << 24
"""Largest number of pairs in a round: about 240 MiB under bfv."""
_MARGIN = 1e-9
"""More than float64 loses in a product, relative to it."""
_COUNT_SHARE = (0.1, 0.3)
_COUNTS_OF_ROWS = 20.0
"""a^2 is this / r, between the two shares: with few users, it is harder to find the rows."""
_ROWS_PER_SIGNAL = 1.8
"""r is (this x N / deviation)^(2/3)."""
_FEWEST_ROWS = 110
"""With fewer rows, counts alone were better on FilmTrust and Amazon Video."""
_LAMBDA = 0.5
"""In units of the noise's edge."""
_FILLS = 2
"""Each takes another decomposition. One more changed nothing on the made sets of the tests."""
_POPULARITY = 0.05
_USERS_PER_COUNT = 20.0
"""N over the weighted count of the most common item, roughly."""
_NORMAL_MEDIAN = 1.4826
"""The deviation of a normal distribution, in units of the median of its values' sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyRelease:
    """The values of a run's release, in the order in which they travel. See the module's docstring.

    Attributes:
        n_items: n.
        n_rows: r, or 0 for the counts alone.
        n_rounds: training rounds, of which the first sums the counts.
        noise: the noise on the sums.
    """

    n_items: int
    n_rows: int
    n_rounds: int
    noise: SumNoise

    @property
    def deviation(self) -> float:
        """The noise's deviation for a contribution of length 1."""
        return self.noise.deviation / self.noise.clip

    @property
    def users_for_pairs(self) -> float:
        """The smallest N for which pairs travel."""
        return float(min(self.n_items, _FEWEST_ROWS) ** 1.5 * self.deviation / _ROWS_PER_SIGNAL)

    @property
    def users_for_counts(self) -> float:
        """The N from which the most common item's count is likely to exceed the noise."""
        return _USERS_PER_COUNT * self.deviation * _largest_noise(self.n_items)

    @property
    def fewest_rounds(self) -> int:
        """The smallest `rounds.total` for these rows."""
        return 1 + -(-self.n_entries // MOST_PAIRS_AT_ONCE)

    @property
    def length(self) -> int:
        """Number of values of the whole release."""
        return self.n_items + self.n_entries

    @property
    def n_entries(self) -> int:
        """Number of entries of the triangle with its diagonal."""
        return self.n_rows * (self.n_rows + 1) // 2

    @property
    def part_length(self) -> int:
        """Number of values in a round."""
        if not self.n_rows:
            return self.n_items
        return max(self.n_items, -(-self.n_entries // (self.n_rounds - 1)))

    def part(self, known: int) -> int:
        """Return how many values a round adds to the first `known` ones."""
        if not known:
            return self.n_items
        return min(self.part_length, self.length - known)

    @property
    def of_counts(self) -> float:
        """The length a of the counts."""
        return math.sqrt(1.0 - self.of_pairs**2)

    @property
    def of_pairs(self) -> float:
        """The length b of the pairs."""
        if not self.n_rows:
            return 0.0
        low, high = _COUNT_SHARE
        return math.sqrt(1.0 - min(max(_COUNTS_OF_ROWS / self.n_rows, low), high))

    def places(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return each item's position in R, or -1, int64 (n_items,). Elementwise, then sorted.

        Args:
            values: the noisy values so far, with all counts.
        """
        chosen = np.sort(np.argsort(-values[: self.n_items], kind="stable")[: self.n_rows])
        places = np.full(self.n_items, -1, dtype=np.int64)
        places[chosen] = np.arange(self.n_rows)
        return places

    def of_counts_in_steps(self, sizes: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
        """Return what each user adds to the counts of its items, in grid steps, (n_users,).

        Args:
            sizes: m of each user.
            limit: the largest size of a value, in grid steps.
        """
        return self._in_steps(self.of_counts, np.sqrt(sizes), limit)

    def of_entries_in_steps(
        self, sizes: NDArray[np.int64], limit: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what each user adds to each of its pairs and to each of its diagonal entries.

        Args:
            sizes: m_R of each user.
            limit: as in `of_counts_in_steps`.
        """
        divisors = sizes.astype(np.float64)
        of_pair = self._in_steps(self.of_pairs * math.sqrt(2.0), divisors, limit)
        return of_pair, self._in_steps(self.of_pairs, divisors, limit)

    def _in_steps(
        self, length: float, divisors: NDArray[np.float64], limit: int
    ) -> NDArray[np.int64]:
        """Return C x length / divisors in grid steps, rounded towards zero."""
        bound = math.floor(self.noise.clip / self.noise.step) * (1.0 - _MARGIN)
        values = np.floor(bound * length / np.maximum(divisors, 1.0))
        return np.minimum(values, limit).astype(np.int64)

    def model(self, values: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return the model that the noisy values so far make, as in `sketched_weights`.

        Args:
            values: of a contribution of length 1, (known,).
        """
        n_items = self.n_items
        found = {
            "factor": np.zeros((n_items, 1)),
            "scale": np.ones(n_items),
            "own": np.zeros(n_items),
            "popularity": np.zeros(n_items),
        }
        if len(values) < n_items:
            return found
        deviation, counts = self.deviation, values[:n_items]
        if self.n_rows and len(values) == self.length:
            entries = values[n_items:] / self.of_pairs
            weights = _weights(entries, self.n_rows, deviation / self.of_pairs)
            if weights is not None:
                rows = np.nonzero(self.places(values) >= 0)[0]
                found["factor"] = np.zeros((n_items, weights.factor.shape[1]))
                for name in ("factor", "scale", "own"):
                    found[name][rows] = getattr(weights, name)
        counts = counts / self.of_counts
        if _exceeds_noise(counts, deviation / self.of_counts):
            held = np.maximum(counts, 0.0)
            found["popularity"] = _POPULARITY * held * held.sum() / self.noise.users**2
        return found


def planned_release(n_items: int, n_rounds: int, noise: SumNoise) -> NoisyRelease:
    """Return the release that the rule of the module's docstring chooses."""
    signal = _ROWS_PER_SIGNAL * noise.users * noise.clip / noise.deviation
    # r (r + 1) / 2 entries in n_rounds - 1 parts.
    fit = max(0, math.isqrt(2 * (n_rounds - 1) * MOST_PAIRS_AT_ONCE) - 1)
    n_rows = min(n_items, MOST_ROWS, fit, int(signal ** (2.0 / 3.0)))
    return NoisyRelease(
        n_items=n_items,
        n_rows=n_rows if n_rows >= min(n_items, _FEWEST_ROWS) else 0,
        n_rounds=n_rounds,
        noise=noise,
    )


def _largest_noise(n_values: int) -> float:
    """Return the standard deviations that the largest of n noises exceeds in 1 of 1,000 draws."""
    return math.sqrt(2.0 * math.log(500.0 * n_values))


def _exceeds_noise(counts: NDArray[np.float64], deviation: float) -> bool:
    """Return whether a count is larger than noise alone would make one in a thousand releases."""
    below = np.minimum(counts, 0.0)
    # Noise alone is negative for half of the items.
    most = max(deviation, math.sqrt(2.0 * float((below * below).mean())))
    return bool(counts.max() > most * _largest_noise(len(counts)))


def _weights(entries: NDArray[np.float64], n_rows: int, deviation: float) -> SketchedWeights | None:
    """Return the item weights from a noisy triangle, or None if it is all noise.

    Args:
        entries: those off the diagonal are times sqrt(2).
        deviation: of the noise of an entry.
    """
    import torch

    from fedrec.tensor_products import one_thread

    matrix = np.zeros((n_rows, n_rows))
    for place in range(n_rows):
        first = place * (place + 1) // 2
        matrix[place, : place + 1] = entries[first : first + place + 1]
    own = np.diag(matrix).copy()
    matrix = math.sqrt(0.5) * (matrix + matrix.T)
    matrix[np.diag_indices(n_rows)] = own
    own = np.maximum(own, 0.0)
    with one_thread():
        # Every client adds noise, so sums over more clients than a round needs have more of it.
        # Without noise no eigenvalue is negative.
        least = float(torch.linalg.eigvalsh(torch.from_numpy(matrix))[0])
        edge = max(deviation * math.sqrt(2.0 * n_rows), -least)
        shown = np.zeros(n_rows)
        for _ in range(_FILLS + 1):
            matrix[np.diag_indices(n_rows)] = shown
            values, vectors = torch.linalg.eigh(torch.from_numpy(matrix))
            kept = values > edge
            shown = np.minimum((vectors[:, kept].square() @ values[kept]).numpy(), own)
        if not kept.any():
            return None
        shrunk = (values[kept].square() - edge * edge).sqrt()
        low: NDArray[np.float64] = (vectors[:, kept] * shrunk.sqrt()).numpy()
    return weights_of(low, own, _LAMBDA * edge, "diag")
