"""The mathematics of `sketch` after the sums: directions, a low-rank G, and item weights from it.

None of it is published or compared between machines. A party that needs it computes it, in float64,
by LAPACK on one thread, so processes of one machine get the same bits.

Letters: n active items, k directions.

- G (n, n): counts of pairs.
- Q (n, k): directions.
- Y (n, k): G Q.
- T (n, k): G ~ T T^T.
- c (n,): holders of each item.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedrec.random_streams import Purpose, normal, stream_key, user_stream

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk


_NOTHING = 1e-9
"""Smaller values are treated as rounding, relative to the largest entry of R or the length of Y."""

Matrix = NDArray[np.float64]
Form = Literal["plain", "diag", "edlae"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SketchedWeights:
    """Item weights B as n x k numbers: B_ij = (F_i . F_j) scale_j for i != j, and B_jj = 0.

    Attributes:
        factor: F = W M^1/2, (n, k).
        scale: 1 / diag(P), (n,).
        own: contribution of an item of the history to its own score, so that B_jj is 0, (n,).
    """

    factor: Matrix
    scale: Matrix
    own: Matrix


def drawn_directions(seed: int, active: NDArray[np.int64], dim: int) -> Matrix:
    """Return Omega (n_active, dim), N(0, 1), the same bits on every machine.

    Every item of the catalogue has its own stream, so only active rows are drawn.
    """
    key = stream_key(seed, Purpose.ITEM_EMBEDDING)
    return normal(user_stream(key, active), (len(active), dim))


def orthonormal(total: Matrix) -> Matrix:
    """Return Q = orth(Y) as (n, k), with zeros for columns that depend on others."""
    import torch

    from fedrec.tensor_products import one_thread

    with one_thread():
        basis, upper = torch.linalg.qr(torch.from_numpy(total))
    diagonal = upper.diagonal()
    counts = diagonal.abs() > _NOTHING * upper.abs().max() if upper.numel() else diagonal.abs() > 0
    directions = np.zeros_like(total)
    directions[:, : basis.shape[1]] = (basis * diagonal.sign() * counts).numpy()
    return directions


def joined(drawn: Matrix, first: Matrix, along: Matrix, second: Matrix) -> tuple[Matrix, Matrix]:
    """Return the orthonormal directions of both sums, Q first, and their products with G.

    Args:
        drawn: Omega.
        first: Y_1 = G Omega.
        along: Q.
        second: Y_2 = G Q.
    """
    import torch

    from fedrec.tensor_products import one_thread

    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        # `low_rank` makes values of them that aren't finite.
        return along, np.full_like(second, np.nan)
    with one_thread():
        omega, basis = torch.from_numpy(drawn), torch.from_numpy(along)
        shared = basis.T @ omega
        rest = omega - basis @ shared
        squares, turn = torch.linalg.eigh(rest.T @ rest)
        # Rounding in Y_1 is divided by the length.
        long = squares > 1.0
        turn = turn[:, long] * squares[long].rsqrt()
        products = (torch.from_numpy(first) - torch.from_numpy(second) @ shared) @ turn
        rest = rest @ turn
    return np.hstack([along, rest.numpy()]), np.hstack([second, products.numpy()])


def low_rank(directions: Matrix, total: Matrix, *, deviation: float, drawn: bool) -> Matrix:
    """Return T (n, k) with T T^T ~ G, by Nystrom from Y = G Q.

    Args:
        deviation: standard deviation of the rounding of each value of Y. Eigenvalues that rounding
            alone could cause are ignored.
        drawn: whether the directions are Omega, whose columns are longer than 1.
    """
    import torch

    from fedrec.tensor_products import one_thread

    n_rows, dim = total.shape
    if not total.any():
        return np.zeros_like(total)
    if not np.isfinite(total).all():
        # This becomes scores that aren't finite. LAPACK would raise its own error.
        return np.full_like(total, np.nan)
    shift = _NOTHING * float(np.linalg.norm(total))
    longest = math.sqrt(n_rows) + math.sqrt(dim) if drawn else 1.0
    floor = max(shift, 2.0 * deviation * math.sqrt(dim) * longest)
    with one_thread():
        along = torch.from_numpy(np.ascontiguousarray(directions))
        shifted = torch.from_numpy(np.ascontiguousarray(total)) + shift * along
        core = along.T @ shifted
        values, vectors = torch.linalg.eigh((core + core.T) / 2)
        root = torch.where(values > floor, values, torch.inf).rsqrt()
        half = shifted @ (vectors * root)
        squares, turn = torch.linalg.eigh(half.T @ half)
        left = (squares - shift).clamp(min=0.0)
        share = torch.where(left > 0, left / squares, 0.0).sqrt()
        found: Matrix = (half @ (turn * share)).numpy()
    return found


def weights_of(low: Matrix, holders: Matrix, regularisation: float, form: Form) -> SketchedWeights:
    """Return the item weights from G ~ T T^T.

    Args:
        low: T.
        holders: c, the diagonal of G.
        form: what D has besides lambda: nothing, the part of the diagonal that T T^T lacks, or
            that and c once more.
    """
    import torch

    from fedrec.tensor_products import one_thread

    table = torch.from_numpy(low)
    ridge = torch.full((len(low),), float(regularisation), dtype=torch.float64)
    counts = torch.from_numpy(holders)
    if form != "plain":
        ridge = ridge + (counts - (table * table).sum(1)).clamp(min=0.0)
    if form == "edlae":
        ridge = ridge + counts
    with one_thread():
        scaled = table / ridge[:, None]
        inner = torch.eye(low.shape[1], dtype=torch.float64) + table.T @ scaled
        factor = _divided(torch.linalg.cholesky_ex(inner)[0], scaled)
    inverse = 1.0 / ridge - (factor * factor).sum(1)
    return SketchedWeights(
        factor=factor.numpy(),
        scale=(1.0 / inverse).numpy(),
        own=(1.0 - 1.0 / (ridge * inverse)).numpy(),
    )


def _divided(lower: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return rows L^-T, so that its product with itself is rows (L L^T)^-1 rows^T."""
    import torch

    solved: torch.Tensor = torch.linalg.solve_triangular(lower, rows.T, upper=False)
    return solved.T.contiguous()


# A model is `factor`, `scale` and `own` as in `SketchedWeights`, and `popularity`, (n,), which is
# added to every score.


def scores_of(chunk: Chunk, model: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the scores that follow from each user's training items, (n_users, n)."""
    from fedrec.tensor_products import product_of_blocks

    found = product_of_blocks(chunk.summed(model["factor"]), model["factor"].T.contiguous())
    found = found * model["scale"] + model["popularity"]
    found[chunk.owner, chunk.positives] += model["own"][chunk.positives]
    return found


def served_rows(
    model: Mapping[str, Matrix], active: NDArray[np.int64], n_items: int
) -> dict[str, NDArray[np.float32]]:
    """Return a model with a row for each item of the catalogue, zero for an inactive one."""
    found = {}
    for name, values in model.items():
        rows = np.zeros((n_items, *values.shape[1:]), dtype=np.float32)
        rows[active] = values
        found["item_embedding" if name == "factor" else name] = rows
    return found


def scores_of_history(
    serving: Mapping[str, NDArray[np.float32]], vector: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the scores of all items for a history over the active items, whose scale is not 0."""
    rows = np.nonzero(serving["scale"])[0]
    held = rows[np.nonzero(vector)[0]]
    weight, items = vector[np.nonzero(vector)[0]], serving["item_embedding"]
    summed = (items[held] * weight[:, None]).sum(0)
    scores = (items @ summed) * serving["scale"] + serving["popularity"]
    scores[held] += weight * serving["own"][held]
    return np.asarray(scores, dtype=np.float32)
