"""What commands print: one JSON object with `--json`, else text and tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console


AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")
]

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def print_json(content: Mapping[str, object]) -> None:
    """Print one object on one line, its keys sorted."""
    typer.echo(json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False))


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that colours on a terminal only, and never under NO_COLOR."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # What a pipe gets is read by programs: no line is broken or cut there.
    width = None if stream.isatty() else 10_000
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def print_table(
    rows: Iterable[Sequence[str]], *, title: str = "", headers: Sequence[str] = ()
) -> None:
    """Print rows in aligned columns, under a title and column headers if there are any."""
    from rich.table import Table

    cells = [list(row) for row in rows]
    n_columns = max(map(len, [*cells, headers]), default=0)
    table = Table(box=None, show_header=bool(headers), pad_edge=False, padding=(0, 2, 0, 0))
    for index in range(n_columns):
        table.add_column(headers[index] if headers else "", overflow="fold")
    for row in cells:
        table.add_row(*row)
    console = new_console()
    if title:
        console.print(title, style="bold")
    if console.is_terminal:
        console.print(table)
        return
    # rich fills every line up to the widest one.
    with console.capture() as drawn:
        console.print(table)
    for line in drawn.get().splitlines():
        typer.echo(line.rstrip())


def printable(value: object) -> object:
    """Return a peer's text without what could steer a terminal; anything else as it is."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else " " for c in value)
    return value


def human_bytes(n_bytes: float) -> str:
    """Return a size with its unit, exact below 1 KiB."""
    if n_bytes < 1024:
        return f"{n_bytes:.0f} B"
    power = min(int(n_bytes).bit_length() // 10, len(_UNITS))
    power -= n_bytes < 1024**power
    return f"{n_bytes / 1024**power:.4g} {_UNITS[power - 1]}"


def human_share(part: float, whole: float) -> str:
    """Return part of a whole in percent, or as a multiple above ten times the whole."""
    ratio = part / whole
    return f"{ratio:.1f} x" if ratio > 10 else f"{100 * ratio:.3g} %"


def count_of(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural where it belongs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
