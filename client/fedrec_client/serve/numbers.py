"""What a server counts for Prometheus; no user and no item has a number of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fedrec.monitoring import Numbers
from fedrec_client.serve.model_holder import ModelHolder
from fedrec_client.serve.request_reading import REFUSALS, Refusal

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)


class ServerNumbers:
    """Counts questions by what became of them, and how long they took.

    Args:
        holder: the model that is served.
        now: a clock that never goes back.
    """

    kind = CONTENT_TYPE_LATEST.encode()

    def __init__(self, holder: ModelHolder, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        numbers = Numbers("client")
        self._registry = numbers.registry
        requests = numbers.counter(
            "fedrec_serve_requests_total", "Requests by what became of them.", ["outcome"]
        )
        self._outcomes = {name: requests.labels(name) for name in ("answered", *REFUSALS)}
        self._durations = numbers.histogram(
            "fedrec_serve_request_duration_seconds", "How long answers took.", _SECONDS
        )
        version = numbers.gauge("fedrec_serve_model_version", "The version served; -1 for none.")
        version.set_function(
            lambda: -1 if holder.current is None else holder.current.recommender.round
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count the request that is answered, or refused, inside."""
        began = self._now()
        try:
            yield
        except Refusal as refusal:
            self.refused(refusal.code)
            raise
        except Exception:
            self.refused("internal")
            raise
        self._outcomes["answered"].inc()
        self._durations.observe(self._now() - began)

    def refused(self, code: str) -> None:
        """Count a refusal."""
        self._outcomes[code].inc()

    def text(self) -> bytes:
        """Return the numbers in Prometheus' form."""
        return generate_latest(self._registry)
