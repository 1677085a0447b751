"""Result tables: for the terminal, as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from fedrec_lab.reports.result_row import METRICS, ResultRow

if TYPE_CHECKING:
    from rich.table import Table


def headings(at: int, protocol: str = "") -> list[str]:
    """Return the column headings of a result table.

    Args:
        protocol: what the figures were measured under, as `marked` writes it; empty where
            something above the table names it.
    """
    rates = (f"{protocol} {name}@{at}".lstrip() for _, name in METRICS)
    return ["method", *rates, "users", "seeds"]


def cells(row: ResultRow) -> list[str]:
    """Return a row as text: means with four places, deviations where there are seeds."""
    rates = [row.text(metric) for metric, _ in METRICS]
    return [row.label, *rates, str(row.samples[0].users), str(len(row.samples))]


def plain_table(rows: Sequence[ResultRow], *, at: int) -> str:
    """Return the table as aligned text, one line a row."""
    return "\n".join([*aligned([headings(at), *map(cells, rows)], left=(0,)), *_notes(rows)])


def aligned(table: Sequence[Sequence[str]], *, left: Collection[int]) -> list[str]:
    """Return the lines of a table as aligned text, a rule below its headings.

    Args:
        left: columns of words; all others are flush right.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def rich_table(rows: Sequence[ResultRow], *, at: int, title: str | None = None) -> Table:
    """Return the table for a rich console; the first row is the one that matters."""
    from rich.table import Table
    from rich.text import Text

    notes = "\n".join(_notes(rows))
    table = Table(title=title, caption=notes or None, caption_justify="left")
    for index, heading in enumerate(headings(at)):
        table.add_column(heading, justify="right" if index else "left")
    for index, row in enumerate(rows):
        # Text, so that brackets in a label are not taken for markup.
        table.add_row(*map(Text, cells(row)), style=None if index else "bold")
    return table


def _notes(rows: Sequence[ResultRow]) -> list[str]:
    return [f"{row.label}: {row.note}" for row in rows if row.note]
