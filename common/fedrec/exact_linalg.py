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
    axes, turned = np.eye(even), np.empty((even, even))
    room = np.empty((4, even // 2, even))
    limit = _SMALL * float(np.abs(work).max(initial=0.0))
    players = np.arange(even)
    for _ in range(_SWEEPS):
        largest = float(np.abs(work - np.diag(np.diagonal(work))).max(initial=0.0))
        if largest <= limit:
            break
        for _ in range(even - 1):
            first, second = players[: even // 2], players[even // 2 :][::-1]
            cosine, sine = _angles(work, first, second)
            # Columns are turned as rows of the transpose, whose values lie together in memory.
            np.copyto(turned, work.T)
            for table in (axes, turned):
                _turn(table, first, second, cosine, sine, room)
            np.copyto(work, turned.T)
            _turn(work, first, second, cosine, sine, room)
            players = np.concatenate([players[:1], players[-1:], players[1:-1]])
    return np.diagonal(work)[:size].copy(), axes[:size, :size].T.copy()


def _angles(
    work: NDArray[np.float64], first: NDArray[np.int64], second: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return cosines and sines that make the elements between `first` and `second` zero."""
    between = work[first, second]
    apart = work[second, second] - work[first, first]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = apart / (2.0 * between)
        tangent = np.copysign(1.0, ratio) / (np.abs(ratio) + np.sqrt(1.0 + ratio * ratio))
    tangent = np.where(between == 0.0, 0.0, tangent)
    cosine = 1.0 / np.sqrt(1.0 + tangent * tangent)
    return cosine[:, None], (tangent * cosine)[:, None]


def _turn(
    table: NDArray[np.float64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    cosine: NDArray[np.float64],
    sine: NDArray[np.float64],
    room: NDArray[np.float64],
) -> None:
    """Turn all pairs of rows at once, in place.

    Args:
        room: memory to reuse, (4, n / 2, n). Allocating it takes as long as turning.
    """
    left, right, turned, term = room
    # With mode="raise", numpy would copy once more.
    np.take(table, first, axis=0, out=left, mode="clip")
    np.take(table, second, axis=0, out=right, mode="clip")
    np.multiply(left, sine, out=turned)
    turned += np.multiply(right, cosine, out=term)
    left *= cosine
    left -= np.multiply(right, sine, out=term)
    table[first], table[second] = left, turned
