"""The registry of one party, and the constructors that all of them use."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

import fedrec

__all__ = ["BYTES", "SECONDS", "Numbers"]

SECONDS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
BYTES = tuple(float(1 << power) for power in range(10, 31, 2))


class Numbers:
    """What one party counts, in a registry of its own; with memory and time of the process.

    Args:
        party: coordinator, client or authority.
    """

    def __init__(self, party: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Info("fedrec_build", "The release that runs here.", registry=self.registry)
        build.info({"version": fedrec.__version__, "party": party})

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Counter:
        """Return a counter."""
        return Counter(name, about, labels, registry=self.registry)

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> Gauge:
        """Return a gauge."""
        return Gauge(name, about, labels, registry=self.registry)

    def histogram(
        self, name: str, about: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        """Return a histogram."""
        return Histogram(name, about, labels, buckets=buckets, registry=self.registry)

    def disk_free(self, folder: Path) -> None:
        """Tell how much space is left where a party keeps its state; looked up when it is read."""
        free = self.gauge("fedrec_disk_free_bytes", "Free space where the state folder is.")
        free.set_function(lambda: _free_bytes(folder))


def _free_bytes(folder: Path) -> float:
    """Return the space that is left; not a number while the folder cannot be looked at."""
    try:
        return float(shutil.disk_usage(folder).free)
    except OSError:
        return float("nan")
