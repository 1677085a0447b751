"""What a client's numbers say, from events as a client tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec.follower.events import ClientEvent, EventName
from fedrec.ids import RoundId
from fedrec_client.metrics import ClientMetrics


class Watched:
    """A client's metrics and what they say."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self._metrics = ClientMetrics(folder, lambda: self.now)

    def tell(self, name: EventName, number: int = 1, **said: float) -> None:
        event = ClientEvent(name=name, round=RoundId(number), **said)  # type: ignore[arg-type]
        self._metrics.take(event)

    def value(self, name: str, **labels: str) -> float | None:
        return self._metrics.registry.get_sample_value(name, labels)

    def label_names(self) -> set[str]:
        samples = [s for family in self._metrics.registry.collect() for s in family.samples]
        return {label for sample in samples for label in sample.labels}


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_round_is_counted_once(watched):
    # Bytes in events are those since the last round was settled.
    watched.tell("training")
    watched.tell("trained", seconds=2.0)
    watched.tell("protected", seconds=0.5)
    watched.tell("sent", bytes_up=100)
    watched.now = 1060.0
    watched.tell("published", bytes_up=100, bytes_down=40)
    watched.tell("training", 2, bytes_down=5)
    watched.tell("sent", 2, bytes_up=100, bytes_down=5)
    watched.tell("abandoned", 2, bytes_up=110, bytes_down=6)
    assert watched.value("fedrec_client_sent_bytes_total") == 210
    assert watched.value("fedrec_client_received_bytes_total") == 46
    assert watched.value("fedrec_client_rounds_total", outcome="published") == 1
    assert watched.value("fedrec_client_rounds_total", outcome="abandoned") == 1
    assert watched.value("fedrec_client_training_duration_seconds_sum") == 2.0
    assert watched.value("fedrec_client_protecting_duration_seconds_sum") == 0.5
    assert watched.value("fedrec_client_model_version") == 1
    assert watched.value("fedrec_client_published_timestamp_seconds") == 1060.0
    assert watched.value("fedrec_client_events_total", event="training") == 2


def test_troubles_come_and_go(watched):
    def troubles() -> tuple[float | None, float | None]:
        return (
            watched.value("fedrec_client_disk_full"),
            watched.value("fedrec_client_coordinator_reachable"),
        )

    assert troubles() == (0, 1)
    watched.tell("disk_full")
    watched.tell("unreachable")
    assert troubles() == (1, 0)
    watched.tell("reached")
    assert troubles() == (1, 1), "an answer makes no space"
    watched.tell("joined")
    assert troubles() == (0, 1)
    assert watched.value("fedrec_client_finished") == 0
    watched.tell("finished")
    assert watched.value("fedrec_client_finished") == 1


def test_counters_are_there_from_the_start_and_name_nobody(watched):
    # An increase from nothing to one is none to Prometheus: it has to see the zero.
    assert watched.value("fedrec_client_events_total", event="coordinator_went_back") == 0
    assert watched.label_names() == {"event", "outcome", "le", "version", "party"}
