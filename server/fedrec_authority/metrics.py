"""Prometheus metrics of the key authority's process, from its events."""

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
        folder: the authority's folder.
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
            "fedrec_authority_sums_total", "Sums of rounds by outcome.", ["outcome"]
        )
        self._opened, self._refused = map(sums.labels, ("opened", "refused"))
        self._seconds = numbers.histogram(
            "fedrec_authority_opening_duration_seconds",
            "Duration of checking, adding up and opening a sum.",
            SECONDS,
        )
        self._last = numbers.gauge(
            "fedrec_authority_opened_timestamp_seconds",
            "Time of the last opened sum, or the start if there is none.",
        )
        self._last.set(now())
        self._reachable = numbers.gauge(
            "fedrec_authority_coordinator_reachable", "1 while the coordinator answers."
        )
        self._epoch = numbers.gauge("fedrec_authority_key_epoch", "Newest epoch that has begun.")

    def take(self, event: AuthorityEvent) -> None:
        """Count one event. Several threads may call this."""
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
    """Return an event's name as one word, for a label."""
    return name.replace(" ", "_")
