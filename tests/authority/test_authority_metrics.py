"""What the key authority's numbers say, from events as its process tells them."""

from __future__ import annotations

from fedrec_authority.delivery import AuthorityEvent
from fedrec_authority.metrics import AuthorityMetrics


def test_sums_lines_and_epochs(tmp_path):
    now = 1000.0
    metrics = AuthorityMetrics(tmp_path, lambda: now)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    assert value("fedrec_authority_sums_total", outcome="refused") == 0
    assert value("fedrec_authority_coordinator_reachable") == 0
    assert value("fedrec_authority_opened_timestamp_seconds") == 1000.0
    metrics.take(AuthorityEvent(name="coordinator found", epoch=2))
    metrics.take(AuthorityEvent(name="epoch began", epoch=2))
    now = 1100.0
    metrics.take(AuthorityEvent(name="sum revealed", round=1, seconds=0.25))
    metrics.take(AuthorityEvent(name="sum revealed", round=2, seconds=0.5))
    metrics.take(AuthorityEvent(name="reveal refused", round=3, detail="why"))
    assert value("fedrec_authority_coordinator_reachable") == 1
    assert value("fedrec_authority_key_epoch") == 2
    assert value("fedrec_authority_sums_total", outcome="opened") == 2
    assert value("fedrec_authority_sums_total", outcome="refused") == 1
    assert value("fedrec_authority_opening_duration_seconds_sum") == 0.75
    assert value("fedrec_authority_opened_timestamp_seconds") == 1100.0
    metrics.take(AuthorityEvent(name="coordinator lost"))
    assert value("fedrec_authority_coordinator_reachable") == 0
    metrics.take(AuthorityEvent(name="member admitted", client_id="0123abcd", label="hospital-a"))
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    assert value("fedrec_authority_events_total", event="member_admitted") == 1
    assert {label for sample in samples for label in sample.labels} == {
        "event", "outcome", "le", "version", "party",
    }  # fmt: skip
