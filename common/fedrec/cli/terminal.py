"""Print results as text or, with `--json`, as one JSON object. Report failures and exit codes."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedrec.durable import FULL, UNUSABLE
from fedrec.errors import FedrecError, InternalError, OutputLost, SettingsError, StorageError
from fedrec.extras import not_installed, smallest_extra

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[
    bool, typer.Option("--json", help="Print only JSON on stdout, one object a line.")
]

_UNITS = ("KiB", "MiB", "GiB", "TiB")
_READABLE = 8
"""Columns that are longer can be folded to this width. If they must be narrower, rich empties them.
"""


def print_json(content: Mapping[str, object]) -> None:
    """Print an object on one line with sorted keys."""
    typer.echo(json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Aligned columns, under a title and column headers if there are any."""

    rows: Iterable[Sequence[str]]
    title: str = ""
    headers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a command: one value, for scripts and for people.

    Attributes:
        content: the object that ``--json`` prints. A stream has several, one a line as they come,
            or none if it printed while it ran.
        text: lines and tables for people. They are computed only if they are printed.
        failure: the error if the command fails in spite of this result.
        exit_code: the command's exit code without a failure.
        again: the command that resumes this one, if it was interrupted.
    """

    content: Mapping[str, object] | Iterable[Mapping[str, object]]
    text: Iterable[str | TextTable] = ()
    failure: FedrecError | None = None
    exit_code: int = 0
    again: Sequence[str] = ()


def show(result: Result, *, as_json: bool) -> NoReturn:
    """Print a command's result, and exit with its code."""
    if as_json:
        failed = {} if result.failure is None else failure_record(result.failure)
        found = result.content
        for content in (found,) if isinstance(found, Mapping) else found:
            print_json({**content, **failed})
        if result.failure is not None:
            raise typer.Exit(result.failure.exit_code)
    for part in () if as_json else result.text:
        if isinstance(part, TextTable):
            print_table(part.rows, title=part.title, headers=part.headers)
        else:
            typer.echo(part)
    if result.failure is not None:
        raise result.failure
    if result.again:
        typer.echo(f"Stopped. Everything is saved. To resume: {shlex.join(result.again)}", err=True)
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(result.exit_code)


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that uses colours on a terminal only, and never with NO_COLOR."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # Programs read the output of a pipe, so no line is broken or cut there.
    width = None if stream.isatty() else 10_000
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def print_table(
    rows: Iterable[Sequence[str]], *, title: str = "", headers: Sequence[str] = ()
) -> None:
    """Print rows in aligned columns, under a title and column headers if there are any."""
    from rich.table import Table

    cells = [[_cell(text) for text in row] for row in rows]
    columns = list(zip_longest(headers, *cells, fillvalue=""))
    table = Table(box=None, show_header=bool(headers), pad_edge=False, padding=(0, 2, 0, 0))
    for header, *_ in columns:
        table.add_column(header, overflow="fold")
    for row in cells:
        table.add_row(*row)
    console = new_console()
    if title:
        console.print(title, style="bold")
    least = sum(2 + min(_READABLE, max(map(len, column))) for column in columns)
    if console.is_terminal and least <= console.width:
        console.print(table)
        return
    # The terminal itself breaks lines that are too long.
    console.width = 10_000
    # rich pads every line to the width of the longest one.
    with console.capture() as drawn:
        console.print(table)
    for line in drawn.get().splitlines():
        typer.echo(line.rstrip())


def _cell(text: str) -> str:
    """Return text that another party may have written, such as a title, with its own line ends."""
    return "\n".join(str(printable(line)) for line in text.split("\n"))


def printable(value: object) -> object:
    """Return text without control characters for the terminal, and other values unchanged."""
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
    """Return a part of a whole in percent, or as a multiple above ten times the whole."""
    ratio = part / whole
    return f"{ratio:.1f} x" if ratio > 10 else f"{100 * ratio:.3g} %"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


INTERRUPTED = 130
EXIT_CODES: dict[int, str] = {
    0: "ok",
    1: "the run failed, or standard output cannot be written",
    2: "the command, its settings or its data cannot be used",
    3: "no answer from the address",
    4: "the privacy budget is spent",
    5: "refused: keys, versions or permissions don't match",
    INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or SIGHUP (a second one stops at once)",
}


def report_failure(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Report an error to the user, and return the exit code.

    Args:
        error: the error that stopped the command.
        as_json: print one JSON object on stdout in place of sentences on stderr.
        debug: also show the traceback, on stderr.
    """
    if debug:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        print("Interrupted. You can run the command again.", file=sys.stderr)
        return INTERRUPTED
    known = _as_known(error)
    if isinstance(known, OutputLost) and known.reader_left:
        return known.exit_code
    if as_json:
        with suppress(OutputLost):
            print(json.dumps(failure_record(known), sort_keys=True), flush=True)
            return known.exit_code
    problems = known.problems if isinstance(known, SettingsError) else ()
    lines = [*problems, f"error [{known.code}]: {known.message}"]
    if known.remedy:
        lines.append(f"  {known.remedy}")
    print("\n".join(lines), file=sys.stderr)
    return known.exit_code


def failure_record(error: FedrecError) -> dict[str, object]:
    """Return an error in the form that `--json` prints."""
    return {
        "error": error.code,
        "exit_code": error.exit_code,
        "message": error.message,
        "problems": list(error.problems) if isinstance(error, SettingsError) else [],
        "remedy": error.remedy,
    }


def _as_known(error: BaseException) -> FedrecError:
    if isinstance(error, FedrecError):
        return error
    if isinstance(error, ModuleNotFoundError) and smallest_extra(error.name or ""):
        return not_installed(error.name or "")
    if isinstance(error, OSError) and error.filename is not None:
        found = f"{error.filename!r} cannot be used: {error.strerror}."
        if error.errno in UNUSABLE:
            return SettingsError(
                found, remedy="Check the path, and that this user may read and write there."
            )
        if error.errno in FULL:
            return StorageError(found, remedy="Free disk space, then run the command again.")
    where = _write_incident(error)
    return InternalError(
        f"An unexpected {type(error).__name__} stopped the command. Details are in {where}.",
        remedy="Run it again with `fedrec --debug ...` to see them here, and report them.",
    )


def _write_incident(error: BaseException) -> Path | str:
    """Write the traceback without variables to a file that only this user can read."""
    try:
        handle, name = tempfile.mkstemp(
            prefix=f"fedrec-incident-{secrets.token_hex(4)}-", suffix=".log"
        )
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return "no file, because the temporary folder cannot be written"
    return Path(name)
