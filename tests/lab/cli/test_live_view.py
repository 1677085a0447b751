"""The live table of `fedrec watch` never lags behind the run and fits a terminal of 80 columns."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from rich.console import Console

from fedrec.errors import Unreachable
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.wire.admin_link import AdminLink, CurrentRound, Quality, RunEvent, RunStatus
from fedrec_lab.cli import watch
from fedrec_lab.cli.watch import event_line

STATUS = RunStatus(
    federation="movies", run="5707a21c48023b11", protection="bfv", published_round=51,
    rounds_published=51, rounds_planned=2002, rounds_abandoned=3, clients_seen=40,
    clients_in_roster=41, finished=False, finish_reason="", last_event=400, epoch=2, epsilon=1.5,
    awaited=("hospital-aachen", "hospital-berlin", "hospital-celle", "dresden", "essen"),
    quality=Quality(
        round=51, at=10, loss=0.2, validation_hr=0.15, validation_ndcg=0.08, test_hr=0.14,
        test_ndcg=0.07,
    ),
    current=CurrentRound(
        round=1052, kind="train", phase="collecting", expected=40, arrived=35,
        bytes_received=35 << 20, seconds_left=119.0,
    ),
)  # fmt: skip


def event(number: int, what: str = "round opened", **fields: Any) -> RunEvent:
    return RunEvent(sequence=number, unix_seconds=0.0, kind=what, round=number, fields=fields)


def measured() -> list[int]:
    """Sums of 200 users, 50 of whom were hit; each hit was worth a gain of one half."""
    sums = dict.fromkeys(METRIC_NAMES, 0)
    sums |= {
        "model.validation.users": 200,
        "model.validation.hits": 50,
        "model.validation.gain": 50 * (1 << 20) // 2,
    }
    return [sums[name] for name in METRIC_NAMES]


class Run:
    """A run whose coordinator sends a long journal and then nothing."""

    def __init__(self, n_events: int) -> None:
        self.calls = 0
        self.sent = 0
        self._n_events = n_events

    def events(self) -> Iterator[RunEvent]:
        for number in range(1, self._n_events + 1):
            self.sent = number
            yield event(number)

    def status(self) -> RunStatus:
        self.calls += 1
        return replace(STATUS, last_event=self.sent)


def test_a_long_journal_costs_a_few_calls_and_ends_where_the_run_is(monkeypatch):
    shown: list[tuple[int, list[str]]] = []
    real = watch.live_view

    def noted(found: RunStatus, lines: list[str]) -> Any:
        shown.append((found.last_event, lines))
        return real(found, lines)

    monkeypatch.setattr(watch, "live_view", noted)
    run = Run(5000)
    watch.watch_live(cast(AdminLink, run), run.events())
    assert run.calls < 500, "a call for each event would be 5000"
    last, lines = shown[-1]
    assert last == 5000
    expected = [event_line(event(number)) for number in range(4989, 5001)]
    assert lines == expected
    for newest, below in shown:
        numbers = [int(line.split("round ")[1].split()[0]) for line in below]
        assert max(numbers, default=0) <= newest, "events below a header that is older"


def test_a_coordinator_that_falls_silent_is_told():
    def broken() -> Iterator[RunEvent]:
        yield event(1)
        raise Unreachable("gone")

    with pytest.raises(Unreachable, match="gone"):
        watch.watch_live(cast(AdminLink, Run(0)), broken())


def test_an_event_is_told_without_the_names_of_its_fields():
    for kind, fields, seen in (
        ("run finished", {"failed": False, "reason": "all is published"}, "all is published"),
        ("run finished", {"failed": True, "reason": "nobody came"}, "failed: nobody came"),
        ("update counted", {"bytes": 110_592}, "108 KiB"),
    ):
        _, _, text = event_line(event(3, kind, **fields)).rpartition("  ")
        assert text == seen


def test_it_fits_80_columns():
    published = event(
        1051, "round published", kind="train", metrics=measured(), counted=40,
        bytes_received=45_678_901, bytes_published=677_581, rows=1280, seconds=12.345,
    )  # fmt: skip
    long = event(1052, "round abandoned", reason="x" * 200)
    lines = [event_line(one) for one in (published, long)]
    assert len(lines[0]) <= 80
    assert lines[0].endswith(
        "round 1051 published  train, HR 0.2500 NDCG 0.1250, 43.56 MiB, 12.35 s"
    )
    out = io.StringIO()
    Console(file=out, width=80).print(watch.live_view(STATUS, lines))
    drawn = out.getvalue().splitlines()
    assert max(map(len, drawn)) <= 80
    assert len(drawn) == 15, "the rows of the table, a blank line, and one for each event"
    assert any(
        line.startswith("waits for") and line.rstrip().endswith("and 1 more") for line in drawn
    )
    assert any("epsilon 1.5" in line for line in drawn)
