"""Time as something that is passed in, so that tests never wait."""

from __future__ import annotations

import time
from typing import Protocol

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


class Clock(Protocol):
    """What the state machines know of time."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()


def ago(past_seconds: float) -> str:
    """Return how long ago something was, for people."""
    for seconds, unit in _UNITS:
        if past_seconds >= seconds:
            return f"{past_seconds / seconds:.0f} {unit} ago"
    return "just now"
