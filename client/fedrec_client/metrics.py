"""A client's metrics for Prometheus, counted from its events."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from fedrec.follower.events import ClientEvent, EventName
from fedrec.monitoring import SECONDS, Numbers

ENDS_ROUND = ("published", "abandoned")
SHOWS_SPACE = ("joined", "training", "trained", "sent", *ENDS_ROUND)
"""Events that do not occur while the disk is full."""


class ClientMetrics:
    """Counts a client's events.

    Args:
        folder: the state folder.
        now: the time in unix seconds.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self._now = now
        numbers = Numbers("client")
        self.registry = numbers.registry
        numbers.disk_free(folder)
        events = numbers.counter("fedrec_client_events_total", "What happened.", ["event"])
        self._events = {name: events.labels(name) for name in get_args(EventName)}
        rounds = numbers.counter(
            "fedrec_client_rounds_total", "Rounds in which this client participated.", ["outcome"]
        )
        self._rounds = {outcome: rounds.labels(outcome) for outcome in ENDS_ROUND}
        self._durations = {
            name: numbers.histogram(f"fedrec_client_{word}_duration_seconds", about, SECONDS)
            for name, word, about in (
                ("trained", "training", "Training time in a round."),
                ("protected", "protecting", "Encryption or masking time in a round."),
            )
        }
        self._sent = numbers.counter("fedrec_client_sent_bytes_total", "Payload bytes sent.")
        self._received = numbers.counter(
            "fedrec_client_received_bytes_total", "Payload bytes received."
        )
        self._version = numbers.gauge(
            "fedrec_client_model_version", "The last published round in the model."
        )
        self._published = numbers.gauge(
            "fedrec_client_published_timestamp_seconds",
            "Time of the last published round, or of the start before the first.",
        )
        self._published.set(now())
        self._reachable = numbers.gauge(
            "fedrec_client_coordinator_reachable", "1 unless the coordinator does not answer."
        )
        self._reachable.set(1)
        self._full = numbers.gauge("fedrec_client_disk_full", "1 while the disk is full.")
        self._finished = numbers.gauge("fedrec_client_finished", "1 if the run is over.")
        self._counted = [0, 0]

    def take(self, event: ClientEvent) -> None:
        """Count one event."""
        self._events[event.name].inc()
        self._bytes(event)
        if event.name in self._durations:
            self._durations[event.name].observe(event.seconds)
        match event.name:
            case "published":
                self._rounds["published"].inc()
                self._version.set(event.round or 0)
                self._published.set(self._now())
            case "abandoned":
                self._rounds["abandoned"].inc()
            case "unreachable":
                self._reachable.set(0)
            case "reached":
                self._reachable.set(1)
            case "disk_full":
                self._full.set(1)
            case "finished":
                self._finished.set(1)
        if event.name in SHOWS_SPACE:
            self._full.set(0)

    def _bytes(self, event: ClientEvent) -> None:
        """Count bytes once: each event has the bytes since the last round was settled."""
        for place, (counter, found) in enumerate(
            ((self._sent, event.bytes_up), (self._received, event.bytes_down))
        ):
            counter.inc(max(0, found - self._counted[place]))
            self._counted[place] = 0 if event.name in ENDS_ROUND else found
