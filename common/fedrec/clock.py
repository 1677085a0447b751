"""Time as something that is passed in, so that tests never wait."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the state machines know of time."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()
