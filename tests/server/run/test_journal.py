"""What operators read in the coordinator's log."""

from __future__ import annotations

import json

from structlog.testing import capture_logs

from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.ids import RoundId
from fedrec_server.run.journal import log_entry
from fedrec_server.store.store import Entry


def entry(line: str, number: int, **fields: object) -> Entry:
    text = json.dumps(fields)
    return Entry(unix_seconds=0.0, kind=line, round=RoundId(number), fields_json=text)


def logged(one: Entry, published: int | None = 7) -> dict[str, object]:
    with capture_logs() as lines:
        log_entry("r", one, published=None if published is None else RoundId(published))
    (line,) = lines
    return {name: value for name, value in line.items() if name != "log_level"}


def test_metrics_have_names():
    """Four users with losses of 2 in all; two of four hits, gains of 1.5 in all."""
    sums = dict.fromkeys(METRIC_NAMES, 0) | {
        "participants": 4,
        "loss": 2 << 15,
        "model.validation.users": 4,
        "model.validation.hits": 2,
        "model.validation.gain": 3 << 19,
    }
    line = logged(entry("round published", 3, kind="train", metrics=list(sums.values())))
    assert line == {
        "event": "round published", "run": "r", "round": 3, "kind": "train",
        "loss": 0.5, "validation_hr": 0.5, "validation_ndcg": 0.375,
    }  # fmt: skip


def test_a_round_that_measured_nothing_has_none():
    for metrics in ([], [0] * len(METRIC_NAMES)):
        line = logged(entry("round published", 1, kind="count", metrics=metrics))
        assert line == {"event": "round published", "run": "r", "round": 1, "kind": "count"}


def test_what_is_about_no_round_says_how_far_the_run_is():
    line = logged(entry("run finished", 0, reason="done"))
    assert line == {"event": "run finished", "run": "r", "last_published": 7, "reason": "done"}
    assert "last_published" not in logged(entry("key epoch installed", 0), None)
