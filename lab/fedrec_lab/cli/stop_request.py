"""Ctrl-C, SIGTERM or SIGHUP once asks to stop in good order; twice stops now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from fedrec.stop_signals import on_stop_signals

__all__ = ["StopRequest"]


class StopRequest:
    """Remembers that the command was asked to stop.

    Args:
        sentence: what the user is told at the first one.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._requested = False

    def requested(self) -> bool:
        """Tell whether to stop."""
        return self._requested

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Take the first signal as a request; the second raises KeyboardInterrupt."""
        with on_stop_signals(self._interrupt):
            yield

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        typer.echo(self._sentence, err=True)
