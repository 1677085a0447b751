"""What sums tell together: the fewest parties on which some combination of them depends.

An implementation of its own, by exact linear algebra: sums are rows over the parties, reduced with
fractions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")
Row = list[Fraction]


def smallest_isolated(sums: Collection[Collection[T]], parties: Sequence[T]) -> int:
    """Return the fewest of some parties that a combination of sums depends on, and no others.

    All parties where no combination tells of any of them.
    """
    seen = [frozenset(total) for total in sums]
    # Parties that are in the same sums stand or fall together.
    alike: dict[tuple[bool, ...], int] = {}
    for party in parties:
        where = tuple(party in total for total in seen)
        alike[where] = alike.get(where, 0) + 1
    columns = [column for column in alike if any(column)]
    basis = _reduced([[Fraction(column[at]) for column in columns] for at in range(len(seen))])
    chosen = (some for count in range(1, len(columns) + 1) for some in combinations(columns, count))
    for some in sorted(chosen, key=lambda some: sum(alike[column] for column in some)):
        rest = [at for at, column in enumerate(columns) if column not in some]
        # Some combination vanishes on the rest iff the rest has a lower rank.
        if len(_reduced([[row[at] for at in rest] for row in basis])) < len(basis):
            return sum(alike[column] for column in some)
    return len(parties)


def _reduced(rows: list[Row]) -> list[Row]:
    """Return independent rows that span the same."""
    found: list[Row] = []
    left = [row for row in rows if any(row)]
    while left:
        pivot = left.pop()
        column = next(at for at, value in enumerate(pivot) if value)
        found.append(pivot)
        left = [row for row in (_without(pivot, column, row) for row in left) if any(row)]
    return found


def _without(pivot: Row, column: int, row: Row) -> Row:
    factor = row[column] / pivot[column]
    return [value - factor * other for value, other in zip(row, pivot, strict=True)]
