"""Result tables: for the terminal, as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedrec_lab.reports.result_row import METRICS, Metric, ResultRow

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["cells", "headings", "plain_table", "rich_table"]


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
    rates = [_with_deviation(row, metric) for metric, _ in METRICS]
    return [row.label, *rates, str(row.samples[0].users), str(len(row.samples))]


def _with_deviation(row: ResultRow, metric: Metric) -> str:
    deviation = row.deviation(metric)
    mean = f"{row.mean(metric):.4f}"
    return mean if deviation is None else f"{mean} ± {deviation:.4f}"


def plain_table(rows: Sequence[ResultRow], *, at: int) -> str:
    """Return the table as aligned text, one line a row."""
    table = [headings(at), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        )
        for line in table
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join([*lines, *_notes(rows)])


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
