"""How large cells have to be where some of the clients may be in league, and what that costs.

Members are shuffled and cut into cells: who is corrupt in one is a draw without replacement.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, comb

__all__ = ["HONEST", "counted_share", "size_needed", "too_few_honest"]

HONEST = 3
"""So many honest clients every cell should have, among whom each one hides."""


def too_few_honest(n_clients: int, corrupt_share: Fraction, size: int) -> Fraction:
    """Return a bound on the chance that some cell has fewer than `HONEST` honest clients.

    It is the chance of one cell, exactly, times the number of cells.

    Args:
        corrupt_share: of the clients; the number is rounded up.
        size: of the cells; larger ones among them are safer.
    """
    corrupt = ceil(corrupt_share * n_clients)
    drawn = range(max(size - HONEST + 1, 0), min(size, corrupt) + 1)
    ways = sum(comb(corrupt, bad) * comb(n_clients - corrupt, size - bad) for bad in drawn)
    return min(Fraction(1), Fraction(n_clients // size * ways, comb(n_clients, size)))


def size_needed(n_clients: int, corrupt_share: Fraction, bits: int) -> int | None:
    """Return the smallest size with which the chance is below 2**-bits, or None."""
    return next(
        (
            size
            for size in range(HONEST, n_clients + 1)
            if too_few_honest(n_clients, corrupt_share, size) < Fraction(1, 2**bits)
        ),
        None,
    )


def counted_share(size: int, absent_share: float) -> float:
    """Return the share of clients in cells of which nobody is absent."""
    return float((1 - absent_share) ** size)
