"""Linear algebra as float64 operations in a fixed order, with the same bits on every machine.

Key holders must agree on the result of `apply` bit by bit. BLAS and LAPACK choose their order of
summation by processor and thread count, so everything here is elementwise numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SWEEPS = 30
_SMALL = 1e-15
_ROWS_AT_ONCE = 256
"""The size of blocks that stay in the cache. The order within a sum does not depend on it."""


def product(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return left @ right, summed over the inner axis in ascending order.

    Args:
        left: float64 (n_rows, inner).
        right: float64 (inner, n_columns).
    """
    total = np.zeros((left.shape[0], right.shape[1]))
    term = np.empty((_ROWS_AT_ONCE, right.shape[1]))
    for begin in range(0, len(left), _ROWS_AT_ONCE):
        rows, sums = left[begin : begin + _ROWS_AT_ONCE], total[begin : begin + _ROWS_AT_ONCE]
        for index in range(right.shape[0]):
            np.multiply(rows[:, index, None], right[index], out=term[: len(rows)])
            sums += term[: len(rows)]
    return total


def symmetric_eigen(
    matrix: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the eigenvalues and eigenvectors (as columns) of a symmetric matrix, unordered.

    Jacobi's method. Every step rotates n/2 disjoint pairs of axes at once, in the order of a
    round-robin tournament (Brent and Luk 1985), so that a sweep takes n - 1 steps.

    Args:
        matrix: float64 (n, n), of which only the symmetric part is used.

    Returns:
        (n,) and (n, n), with matrix = V diag(w) V^T up to rounding.

    Raises:
        ValueError: a value is not finite.
    """
    if not np.isfinite(matrix).all():
        raise ValueError("The matrix has values that are not finite.")
    size = len(matrix)
    even = size + size % 2
    work = np.zeros((even, even))
    work[:size, :size] = (matrix + matrix.T) / 2
    vectors = np.eye(even)
    limit = _SMALL * float(np.abs(work).max(initial=0.0))
    players = np.arange(even)
    for _ in range(_SWEEPS):
        largest = float(np.abs(work - np.diag(np.diagonal(work))).max(initial=0.0))
        if largest <= limit:
            break
        for _ in range(even - 1):
            first, second = players[: even // 2], players[even // 2 :][::-1]
            _rotate(work, vectors, first, second)
            players = np.concatenate([players[:1], players[-1:], players[1:-1]])
    return np.diagonal(work)[:size].copy(), vectors[:size, :size]


def _rotate(
    work: NDArray[np.float64],
    vectors: NDArray[np.float64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
) -> None:
    """Make the elements between `first` and `second` zero, all pairs at once."""
    between = work[first, second]
    apart = work[second, second] - work[first, first]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = apart / (2.0 * between)
        tangent = np.copysign(1.0, ratio) / (np.abs(ratio) + np.sqrt(1.0 + ratio * ratio))
    tangent = np.where(between == 0.0, 0.0, tangent)
    cosine = 1.0 / np.sqrt(1.0 + tangent * tangent)
    sine = tangent * cosine
    for table in (work, vectors):
        left, right = table[:, first], table[:, second]
        table[:, first] = left * cosine - right * sine
        table[:, second] = left * sine + right * cosine
    left, right = work[first], work[second]
    work[first] = left * cosine[:, None] - right * sine[:, None]
    work[second] = left * sine[:, None] + right * cosine[:, None]
