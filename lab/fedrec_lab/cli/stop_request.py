"""Ctrl-C once asks to stop in good order; twice stops now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

__all__ = ["StopRequest"]


class StopRequest:
    """Remembers that somebody pressed Ctrl-C.

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
        """Take the first Ctrl-C as a request; the second raises KeyboardInterrupt."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        typer.echo(self._sentence, err=True)
