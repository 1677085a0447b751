"""Stopping on request: once finishes what is being written, twice stops now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from fedrec.processes import on_stop_signals

_T = TypeVar("_T")

_LOOK_SECONDS = 0.25


class Stopped(BaseException):
    """The process was asked to stop; like KeyboardInterrupt it is no error."""


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
            Stopped: at once, where the process is only waiting.
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
        """Mark a stretch in which the process waits for others and writes nothing."""
        self._interruptible = True
        try:
            self.check()
            yield
        finally:
            self._interruptible = False

    def aside(self, call: Callable[[], _T]) -> _T:
        """Return what a call returns, made in a thread of its own; a request to stop ends the wait.

        A signal that interrupted gRPC itself could leave one of its locks taken for ever, and
        closing the channel would never return. Here it only ever interrupts waiting.

        Raises:
            Stopped: somebody asked to stop; the call is left to itself.
        """
        done = threading.Event()
        results: list[_T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(call())
            except BaseException as error:
                errors.append(error)
            done.set()

        with self.interruptible():
            threading.Thread(target=work, name="call", daemon=True).start()
            # A signal that comes just before the wait begins does not wake it: look again.
            while not done.wait(_LOOK_SECONDS):
                pass
        if errors:
            raise errors[0]
        return results[0]

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Let SIGINT, SIGTERM and SIGHUP work this switch; only in the main thread."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.request()

        with on_stop_signals(ask):
            yield
