"""Stopping on request: once finishes what is being written, twice stops now."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopSwitch", "Stopped"]


class Stopped(BaseException):
    """The client was asked to stop; like KeyboardInterrupt it is no error."""


class StopSwitch:
    """Remembers a request to stop, and interrupts waiting but never writing.

    Everything on disk changes in one step, so stopping between two steps loses nothing.
    """

    def __init__(self) -> None:
        self._requested = False
        self._interruptible = False

    @property
    def requested(self) -> bool:
        """Whether somebody asked to stop."""
        return self._requested

    def request(self) -> None:
        """Ask to stop.

        Raises:
            Stopped: at once, where the client is only waiting.
            KeyboardInterrupt: when asked for the second time.
        """
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        if self._interruptible:
            raise Stopped

    def check(self) -> None:
        """Raise `Stopped` if somebody asked to stop."""
        if self._requested:
            raise Stopped

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Mark a stretch in which the client waits for others and writes nothing."""
        self._interruptible = True
        try:
            self.check()
            yield
        finally:
            self._interruptible = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM work this switch; only in the main thread."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.request()

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
