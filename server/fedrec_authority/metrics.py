"""What the key authority's process counts for Prometheus, from the events that it tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from fedrec.monitoring import SECONDS, Numbers
from fedrec_authority.delivery import AuthorityEvent, EventName


class AuthorityMetrics:
    """Counts the authority's events.

    Args:
        folder: the authority's.
        now: the time in unix seconds.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self._now = now
        numbers = Numbers("authority")
        self.registry = numbers.registry
        numbers.disk_free(folder)
        events = numbers.counter("fedrec_authority_events_total", "What happened.", ["event"])
        self._events = {name: events.labels(_word(name)) for name in get_args(EventName)}
        sums = numbers.counter(
            "fedrec_authority_sums_total", "Rounds' sums by what was done with them.", ["outcome"]
        )
        self._opened, self._refused = map(sums.labels, ("opened", "refused"))
        self._seconds = numbers.histogram(
            "fedrec_authority_opening_duration_seconds",
            "How long checking, adding up and opening a sum took.",
            SECONDS,
        )
        self._last = numbers.gauge(
            "fedrec_authority_opened_timestamp_seconds",
            "When the last sum was opened; the start, before the first.",
        )
        self._last.set(now())
        self._reachable = numbers.gauge(
            "fedrec_authority_coordinator_reachable", "1 while the coordinator answers."
        )
        self._epoch = numbers.gauge("fedrec_authority_key_epoch", "The epoch that began last.")

    def take(self, event: AuthorityEvent) -> None:
        """Count one event; called from several threads."""
        self._events[event.name].inc()
        match event.name:
            case "coordinator found":
                self._reachable.set(1)
            case "coordinator lost":
                self._reachable.set(0)
            case "epoch began":
                self._epoch.set(event.epoch)
            case "sum revealed":
                self._opened.inc()
                self._seconds.observe(event.seconds)
                self._last.set(self._now())
            case "reveal refused":
                self._refused.inc()


def _word(name: str) -> str:
    """Return an event's name as one word, as labels are written."""
    return name.replace(" ", "_")
