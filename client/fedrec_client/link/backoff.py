"""How long to wait before trying again: full jitter, so that restarts do not make a herd."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from fedrec_client.link.stopping import StopSwitch

__all__ = ["Backoff"]


class Backoff:
    """Pauses of a random length below a doubling bound.

    Args:
        stop: ends a pause early.
        sleep: waits so many seconds.
        jitter: returns a number from 0 to 1.
        base_seconds: the bound of the first pause.
        cap_seconds: the bound that is never exceeded.
    """

    def __init__(
        self,
        stop: StopSwitch,
        *,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
        base_seconds: float = 0.25,
        cap_seconds: float = 10.0,
    ) -> None:
        self._stop = stop
        self._sleep = sleep
        self._jitter = jitter
        self._base = base_seconds
        self._cap = cap_seconds

    def pause(self, attempt: int) -> float:
        """Wait after the attempt of that number, from 0; return the seconds waited."""
        seconds = self._jitter() * min(self._cap, self._base * 2.0 ** min(attempt, 30))
        with self._stop.interruptible():
            self._sleep(seconds)
        return seconds
