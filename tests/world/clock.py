"""A clock for tests, which never wait."""

from __future__ import annotations


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
