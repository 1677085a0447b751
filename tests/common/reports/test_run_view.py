"""A run's view copes with a coordinator that is told no metrics."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.reports.metrics_table import metrics_parquet
from fedrec.reports.run_view import RunView
from fedrec.wire.admin_link import RunEvent


def published(number: int, kind: str, metrics: list[int]) -> RunEvent:
    return RunEvent(
        sequence=number,
        unix_seconds=0.0,
        kind="round published",
        round=number,
        fields={
            "kind": kind, "counted": 3, "bytes_received": 300, "seconds": 1.0, "metrics": metrics,
        },
    )  # fmt: skip


def sums(hits: int) -> list[int]:
    values = np.zeros(len(METRIC_NAMES), dtype=np.int64)
    values[METRIC_NAMES.index("model.validation.users")] = 10
    values[METRIC_NAMES.index("model.validation.hits")] = hits
    values[METRIC_NAMES.index("model.validation.gain")] = hits << 20
    return [int(value) for value in values]


def shown(view: RunView) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(view.table())
    return out.getvalue()


def test_rounds_without_metrics_are_rounds_all_the_same() -> None:
    view = RunView(planned=3, at=10)
    for number, kind in enumerate(("count", "train", "evaluate"), start=1):
        report = view.take(published(number, kind, []))
        assert report is not None
        assert (report.validation, report.loss, report.participants) == (None, None, 0)
        assert "KiB each" in view.line(report)
    assert (view.is_told, view.best, view.references) == (False, None, None)
    assert "fedrec client measured" in shown(view)
    assert metrics_parquet(view.rounds, view.references)


def test_a_client_fills_them_in() -> None:
    view = RunView(planned=3, at=10)
    for number, kind in enumerate(("count", "train", "evaluate"), start=1):
        view.take(published(number, kind, []))
    view.supply({1: sums(0), 2: sums(5)})
    assert not view.is_told
    assert view.references is None
    view.supply({1: sums(0), 2: sums(5), 3: sums(4)})
    assert view.is_told
    assert view.references is not None
    assert view.best is not None
    assert (view.best.round, view.best.n_clients, view.best.seconds) == (2, 3, 1.0)
    assert "known to the clients alone" not in shown(view)
