"""How much of its dimensions an item table uses: its spectrum in three numbers.

With singular values s_1 >= s_2 >= ... of a table E (n_items x dim), not centred:

    information abundance   IA = (sum_i s_i) / s_1, from 1 (one direction) to dim (all alike),

of Guo et al. (ICML 2024), by which PLGC measures dimensional collapse. N95 and N99, which the CoLR
paper gives, are the fewest principal components that hold 95 and 99 % of the variance: of the
eigenvalues of the covariance of E with its columns centred.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "TableQuality",
    "information_abundance",
    "principal_components",
    "quality_of",
    "singular_values",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuality:
    """What is said of a table.

    Attributes:
        spectrum: its singular values, descending; a plot shows their logarithms.
    """

    abundance: float
    n95: int
    n99: int
    spectrum: tuple[float, ...]


def singular_values(table: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the singular values of a table (n_items, dim), descending."""
    return np.linalg.svd(np.asarray(table, dtype=np.float64), compute_uv=False)


def information_abundance(table: NDArray[np.floating]) -> float:
    """Return IA; 0 of a table of zeros, which has no direction."""
    values = singular_values(table)
    return float(values.sum() / values[0]) if len(values) and values[0] > 0 else 0.0


def principal_components(table: NDArray[np.floating], share: float) -> int:
    """Return the fewest principal components with this share of the variance; 0 without any."""
    rows = np.asarray(table, dtype=np.float64)
    variances = singular_values(rows - rows.mean(axis=0)) ** 2
    total = variances.sum()
    if total <= 0:
        return 0
    # A sum of all may be a rounding below 1.
    enough = np.cumsum(variances) >= share * total * (1.0 - 1e-12)
    return int(np.argmax(enough)) + 1


def quality_of(table: NDArray[np.floating]) -> TableQuality:
    """Return everything that is said of a table (n_items, dim)."""
    return TableQuality(
        abundance=information_abundance(table),
        n95=principal_components(table, 0.95),
        n99=principal_components(table, 0.99),
        spectrum=tuple(singular_values(table).tolist()),
    )
