"""Time in tests: clocks that tests move, and waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 150.0
"""How long a test waits for what must happen."""


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


class AheadOfTime:
    """The machine's clock, which tests set forward where a coordinator would wait."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time() + self._ahead

    def jump(self, seconds: float) -> None:
        """Let time pass at once."""
        self._ahead += seconds


def poll(look: Callable[[], T], what: str = "", seconds: float = DEADLINE_SECONDS) -> T:
    """Look again and again until there is something."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, f"it never happened: {what or look}"
        time.sleep(0.01)
    return seen
