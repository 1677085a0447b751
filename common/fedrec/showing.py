"""How values look in a notebook, and how they become frames: HTML tables, bars, Arrow and pandas.

Nothing here needs matplotlib, pandas or pyarrow unless a frame of that library is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fedrec.extras import require

_BAR_WIDTH, _ROW_HEIGHT, _LABEL_WIDTH = 320, 20, 200


class Tabular(ABC):
    """A value that is a table, with `columns` by name."""

    __slots__ = ()

    @abstractmethod
    def columns(self) -> Mapping[str, Any]:
        """Return the table's columns: sequences or arrays of equal length."""

    def to_arrow(self) -> Any:
        """Return the table as a `pyarrow.Table`."""
        require("pyarrow")
        import pyarrow

        return pyarrow.table(dict(self.columns()))

    def to_pandas(self) -> Any:
        """Return the table as a `pandas.DataFrame`."""
        require("pandas")
        import pandas

        return pandas.DataFrame(dict(self.columns()))


def html_table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str, most: int = 50
) -> str:
    """Return a table for a notebook, cut after `most` rows. All text is escaped."""
    found = list(rows)
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>"
        for row in found[:most]
    )
    more = len(found) - most
    rest = f"<p>{more:,} more rows</p>" if more > 0 else ""
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{rest}"
    )


def bars(values: Mapping[str, float], *, caption: str) -> str:
    """Return horizontal bars as an SVG element, each with its label and its number."""
    largest = max(values.values(), default=0.0) or 1.0
    parts = []
    for row, (label, value) in enumerate(values.items()):
        top, width = row * _ROW_HEIGHT, _BAR_WIDTH * max(0.0, value) / largest
        parts.append(
            f'<text x="{_LABEL_WIDTH - 6}" y="{top + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{_LABEL_WIDTH}" y="{top + 3}" width="{width:.1f}" height="14" '
            f'fill="#3b82f6"/><text x="{_LABEL_WIDTH + width + 6:.1f}" y="{top + 14}">'
            f"{value:,.5g}</text>"
        )
    size = f'width="{_LABEL_WIDTH + _BAR_WIDTH + 80}" height="{_ROW_HEIGHT * len(values) + 4}"'
    return (
        f'<figure><svg xmlns="http://www.w3.org/2000/svg" {size} font-size="11" '
        f'font-family="sans-serif" fill="currentColor">{"".join(parts)}</svg>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
