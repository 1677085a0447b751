"""Following a run: whatever ends it early is told with what to look at."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedrec.cli.operating import status_rows
from fedrec.errors import FedrecError, TrainingError, Unreachable
from fedrec.wire.admin_link import CurrentRound, MemberState, RunEvent, RunStatus
from fedrec_lab.demo.parties import Failure, follow_end, follow_run
from fedrec_lab.reports.federation_record import RunView

STATUS = RunStatus(
    federation="movies", run="run-1", protection="bfv", published_round=2, rounds_published=2,
    rounds_planned=12, rounds_abandoned=0, clients_seen=3, clients_in_roster=3, finished=False,
    finish_reason="", last_event=9,
    current=CurrentRound(
        round=3, kind="train", phase="collecting", expected=3, arrived=1, bytes_received=1 << 20,
        seconds_left=0.0,
    ),
)  # fmt: skip
DEAD = Failure(name="client-1", exit_code=-9, log=Path("logs/client-1.log"), last_lines="  last")


class Link:
    """A coordinator's journal that is written down here."""

    def __init__(
        self, *events: RunEvent, then: FedrecError | None = None, had_ended: bool = False
    ) -> None:
        self.given, self.then, self.had_ended = events, then, had_ended
        self.closed = threading.Event()

    def status(self) -> RunStatus:
        return replace(STATUS, finished=self.had_ended)

    def events(self) -> Iterator[RunEvent]:
        yield from self.given
        if self.then is not None:
            raise self.then
        self.closed.wait()


def follow(link: Link, *dead: Failure, terminal: bool = False) -> str:
    """Return what was printed."""
    out = io.StringIO()
    follow_run(
        link,  # type: ignore[arg-type]  # stands in for AdminLink
        RunView(planned=3, at=10),
        Console(file=out, force_terminal=terminal, width=100),
        failures=lambda: list(dead),
        on_round=lambda report: None,
        logs=Path("runs/demo-1/logs"),
    )
    return out.getvalue()


def finished(*, failed: bool) -> RunEvent:
    fields = {"reason": "too few clients", "failed": failed}
    return RunEvent(sequence=1, kind="run finished", round=0, unix_seconds=0, fields=fields)


def test_a_dead_client_ends_it_with_everything_that_is_known():
    link = Link()
    with pytest.raises(TrainingError) as error:
        follow(link, DEAD)
    link.closed.set()
    assert error.value.message == str(DEAD)
    assert "runs/demo-1" in error.value.remedy


def test_a_silent_coordinator():
    with pytest.raises(Unreachable, match="no longer answers: gone") as error:
        follow(Link(then=Unreachable("gone")))
    assert "runs/demo-1/logs" in error.value.remedy


def test_a_dead_coordinator_is_the_cause_of_its_silence():
    with pytest.raises(TrainingError, match="client-1 was ended by signal 9"):
        follow(Link(then=Unreachable("gone")), DEAD)


def test_a_failed_run():
    with pytest.raises(TrainingError, match="The run failed: too few clients"):
        follow(Link(finished(failed=True)))


@pytest.mark.parametrize("had_ended", [False, True])
def test_a_run_that_had_ended_shows_no_round_again(had_ended):
    fields = {"kind": "count", "metrics": [], "seconds": 1.0, "bytes_received": 9, "counted": 3}
    published = RunEvent(sequence=0, kind="round published", round=1, unix_seconds=0, fields=fields)
    shown = follow(Link(published, finished(failed=False), had_ended=had_ended))
    assert ("round   1/3" in shown) != had_ended
    assert ("already finished" in shown) == had_ended


def test_a_terminal_shows_what_status_prints():
    shown = follow(Link(finished(failed=False)), terminal=True)
    for name, value in status_rows(STATUS):
        assert re.search(rf"{re.escape(name)} +{re.escape(value)}", shown), name


class EndedLink:
    """A coordinator of an ended run; a second passes between two looks."""

    def __init__(self, *looks: dict[str, str]) -> None:
        self.looks, self.seen = [{}, *looks], -1

    def status(self) -> RunStatus:
        self.seen += 1
        found = self.looks[min(self.seen, len(self.looks) - 1)]
        members = [MemberState(name=name, state=state) for name, state in found.items()]
        return replace(STATUS, members=tuple(members), now=1000.0 + self.seen)

    def running(self) -> list[str]:
        """Return the clients that did not end: those of the next look."""
        return list(self.looks[self.seen + 1]) if self.seen + 1 < len(self.looks) else []


def follow_end_of(link: EndedLink, *dead: Failure) -> None:
    follow_end(
        link,  # type: ignore[arg-type]  # stands in for AdminLink
        Console(file=io.StringIO()),
        running=link.running,
        failures=lambda: list(dead) if not link.running() else [],
        logs=Path("runs/demo-1/logs"),
    )


def test_a_client_with_the_final_version_computes_as_long_as_it_likes(monkeypatch):
    monkeypatch.setattr("fedrec_lab.demo.parties.SILENCE_SECONDS", 2.0)
    monkeypatch.setattr("fedrec_lab.demo.parties._SECONDS_BETWEEN_LOOKS", 0.0)
    done = {"a": "finished", "b": "away"}
    link = EndedLink(*[done] * 9, {"b": "finished"})
    follow_end_of(link)
    assert link.seen == 10
    with pytest.raises(TrainingError, match=r"Clients without the final version: b, c\.") as error:
        follow_end_of(EndedLink(done, *[{"b": "away", "c": "waiting"}] * 9))
    assert "Run the same command again" in error.value.remedy


def test_a_client_that_crashes_after_the_end_has_no_model(monkeypatch):
    monkeypatch.setattr("fedrec_lab.demo.parties._SECONDS_BETWEEN_LOOKS", 0.0)
    with pytest.raises(TrainingError, match="client-1 was ended by signal 9"):
        follow_end_of(EndedLink({"a": "waiting"}), DEAD)
