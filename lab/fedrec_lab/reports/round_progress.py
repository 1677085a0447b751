"""Progress display of long work, and its stop on request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from html import escape
from types import FrameType
from typing import TYPE_CHECKING

import typer

from fedrec.cli.terminal import human_bytes, new_console
from fedrec.processes import on_stop_signals

if TYPE_CHECKING:
    from fedrec_lab.reports.round_report import RoundReport


class StopRequest:
    """Remembers a request to stop the command.

    Args:
        sentence: printed at the first request.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._requested = False

    def requested(self) -> bool:
        """Return whether to stop."""
        return self._requested

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Take the first signal as a request. The second raises KeyboardInterrupt."""
        with on_stop_signals(self._interrupt):
            yield

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        typer.echo(self._sentence, err=True)


Told = Callable[["RoundReport"], None]


@contextmanager
def round_progress(label: str, n_rounds: int) -> Iterator[Told]:
    """Yield a function that shows each round.

    Args:
        label: what runs, or empty if that is obvious.
        n_rounds: number of rounds.
    """
    if not is_watched():
        # A line for each measuring round, and at least one per hundred rounds.
        every = max(1, n_rounds // 100)

        def tell(report: RoundReport) -> None:
            if report.validation is not None or report.round % every == 0:
                text = f"round {report.round}/{n_rounds}  {round_text(report)}"
                typer.echo(f"{label}  {text}" if label else text, err=True)

        yield tell
        return
    with progress_bar(label or "rounds", n_rounds) as update:
        yield lambda report: update(completed=int(report.round), text=round_text(report))


@contextmanager
def progress_bar(label: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a bar followed by a string on stderr, and yield a function that moves it.

    The function takes `completed`, `total` and `text`, each if it changes. In a notebook, the bar
    is in the cell's output.
    """
    if _in_notebook():
        yield _notebook_bar(label, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=new_console(stderr=True)) as bar:
        yield partial(bar.update, bar.add_task(label, total=total, text=""))


def is_watched() -> bool:
    """Return whether a person follows the output: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _notebook_bar(label: str, total: int | None) -> Callable[..., None]:
    display = sys.modules["IPython.display"]
    known: dict[str, object] = {"completed": 0, "total": total, "text": ""}
    handle = display.display(display.HTML(""), display_id=True)

    def update(**changed: object) -> None:
        known.update(changed)
        reached, end, text = known["completed"], known["total"], escape(str(known["text"]))
        bar = f'<progress value="{reached}" max="{end or reached}"></progress>'
        handle.update(display.HTML(f"{escape(label)} {bar} {reached}/{end or '?'} {text}"))

    return update


def round_text(report: RoundReport) -> str:
    """Return a round's figures as one line of text."""
    parts: list[str] = [report.kind]
    if report.loss is not None:
        parts.append(f"loss {report.loss:.4f}")
    if report.validation is not None:
        parts.append(f"HR {report.validation.hr:.4f} NDCG {report.validation.ndcg:.4f}")
    if report.clipped_values:
        parts.append(f"{report.clipped_values} values clipped")
    if report.abstained:
        parts.append(f"diverged at {report.abstained} clients, which sat out")
    parts += [f"{human_bytes(report.vector_bytes)} up", f"{report.seconds:.2f} s"]
    return "  ".join(parts)
