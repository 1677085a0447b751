"""`fedrec demo` from the first word to the last, and what is left when it is stopped."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.commands import Command, commands, descendants, is_running, poll

pytestmark = pytest.mark.slow

Start = Callable[..., Command]
N_CHILDREN = 4
"""The coordinator and three clients."""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start commands that end with the test."""
    with commands() as started:
        yield started


def demo(start: Start, folder: Path, *arguments: str) -> Command:
    return start(
        folder / "demo.log", "demo", "--protection", "none", "--synthetic", "--no-compare",
        "--runs", str(folder / "runs"), *arguments,
    )  # fmt: skip


def test_it_runs_to_the_end(start: Start, tmp_path: Path) -> None:
    running = demo(start, tmp_path, "--rounds", "3", "--json")
    assert running.ended() == 0, running.told
    summary = json.loads(running.out)
    (folder,) = (tmp_path / "runs").iterdir()
    assert Path(summary["folder"]) == folder
    assert len(summary["recommendations"]["items"]) == 10
    assert summary["abandoned"] == []
    for name in (
        "resolved.toml", "rounds.jsonl", "metrics.parquet", "ledger.json", "report.html",
        "environment.json",
    ):  # fmt: skip
        assert (folder / name).stat().st_size, name
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_it_leaves_nobody_behind(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    running = demo(start, tmp_path, "--rounds", "500")
    children = poll(lambda: all_there(running), "children")
    poll(lambda: list(tmp_path.glob("runs/*/rounds.jsonl")), "a published round")
    running.process.send_signal(number)
    assert running.ended() == (130 if number == signal.SIGINT else -number), running.told
    poll(lambda: not [child for child in children if is_running(child)], "the children's end")
    assert "Traceback" not in running.told


def all_there(running: Command) -> set[int]:
    """Return the children, once all of them run."""
    assert running.process.poll() is None, running.told
    children = descendants(running.process.pid)
    return children if len(children) >= N_CHILDREN else set()
