"""Some thousand rows at a time: what every layout yields and one place gathers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

CHUNK_ROWS = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that was left out.

    Attributes:
        line: its line in the file, from 1; in Parquet its row, from 1.
        reason: what was found and what was expected.
    """

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChunk:
    """Columns of equal length as the file has them, and rows that could not be split.

    Attributes:
        lines: each row's first line in the file, from 1.
        ratings, times: None where the file has no such column, or nobody wants it.
    """

    lines: Sequence[int]
    users: Sequence[Any]
    items: Sequence[Any]
    ratings: Sequence[Any] | None = None
    times: Sequence[Any] | None = None
    bad: Sequence[BadRow] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a file by their names, ``column 1`` and so on where they have none.

    Attributes:
        rating, timestamp: None where the file has no such column.
        ignored: all others, in the order of the file.
    """

    user: str
    item: str
    rating: str | None = None
    timestamp: str | None = None
    ignored: tuple[str, ...] = ()

    def by_role(self) -> dict[str, str | None]:
        """Return the name of each role's column."""
        return {
            "user": self.user,
            "item": self.item,
            "rating": self.rating,
            "timestamp": self.timestamp,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a layout yields of a file.

    Attributes:
        separator: what is between two fields; None in what has no such thing.
        decimal_comma: whether a rating may be written as 3,5.
        header: the fields of a header as they stand in the file; None where it has none.
        has_dates: whether times are a column of dates, which comes as microseconds since 1970.
    """

    columns: Columns
    chunks: Iterator[RowChunk]
    separator: str | None = None
    decimal_comma: bool = False
    header: Columns | None = None
    has_dates: bool = False
