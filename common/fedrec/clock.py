"""Time as something that is passed in, so that tests never wait."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "FakeClock", "SystemClock"]


class Clock(Protocol):
    """What the state machines know of time."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()


class FakeClock:
    """A clock that only moves when told to."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the time that was set last."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`."""
        self._now += seconds
