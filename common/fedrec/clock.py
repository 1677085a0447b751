"""Clocks that are passed as arguments, so that tests never wait."""

from __future__ import annotations

import time
from typing import Protocol

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


class Clock(Protocol):
    """The interface of a clock."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()


def ago(past_seconds: float) -> str:
    """Return the time since an event as readable text."""
    for seconds, unit in _UNITS:
        if past_seconds >= seconds:
            return f"{past_seconds / seconds:.0f} {unit} ago"
    return "just now"
