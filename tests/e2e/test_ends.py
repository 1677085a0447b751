"""How long commands end: by a signal they stop as by Ctrl-C, and killed they leave no child."""

from __future__ import annotations

import ast
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.commands import Command, commands, descendants, is_running, poll
from e2e.kits import Kits

from fedrec.data import generate
from fedrec.data.writing import write_interactions

ROOT = Path(__file__).parents[2]
STARTS = {"Popen", "run", "call", "check_call", "check_output", "Process", "fork", "system"}
WATCHED = {"child_command", "end_with_parent"}

SETTINGS = """
[federation]
name = "ends"
minimum_item_users = 1
[algorithm]
name = "{algorithm}"
dim = 4
[update]
structure = "dense"
[training]
accelerated = false
[rounds]
total = {total}
[data]
path = "data.csv"
[evaluation]
protocol = "full"
"""
SIMULATE = ("simulate", "run.toml")
SEEDS = (*SIMULATE, "--seeds", "2", "--jobs", "2")
EVALUATE = ("evaluate", "run.toml", "--seeds", "1", "--protocols", "full", "--no-references")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    made = generate(
        n_users=24, n_items=30, n_clusters=3, interactions_per_user=8, noise=0.1, seed=3
    )
    write_interactions(tmp_path / "data.csv", made.interactions)
    settings(tmp_path)
    with commands() as started:
        yield started


def settings(folder: Path, *, algorithm: str = "fedals", total: int = 5000) -> None:
    text = SETTINGS.format(algorithm=algorithm, total=total)
    (folder / "run.toml").write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "number", "begun"),
    [
        (SIMULATE, signal.SIGTERM, "round 50/"),
        (SEEDS, signal.SIGHUP, "round 1/"),
        pytest.param(SIMULATE, signal.SIGHUP, "round 50/", marks=pytest.mark.long),
        pytest.param(EVALUATE, signal.SIGTERM, "round ", marks=pytest.mark.long),
    ],
)
def test_a_signal_leaves_a_run_that_goes_on(start, tmp_path, arguments, number, begun):
    running: Command = start(tmp_path / "first.log", *arguments)
    running.wait_for(begun)
    children = descendants(running.process.pid)
    running.process.send_signal(number)
    assert running.ended() == 130, running.told
    assert not [child for child in children if is_running(child)]
    assert "Traceback" not in running.told
    again = re.findall(r"Go on with: fedrec (.*)", running.told)
    assert len(again) == (2 if arguments == SEEDS else 1), running.told
    if arguments[0] == "simulate":
        folder = tmp_path / re.findall(r"--resume (\S+)", again[0])[0]
        n_rounds = len((folder / "rounds.jsonl").read_text().splitlines())
        resumed: Command = start(tmp_path / "second.log", *shlex.split(again[0]))
        resumed.wait_for("round ")
        assert int(re.findall(r"round (\d+)/", resumed.told)[0]) > n_rounds


@pytest.mark.slow
def test_tune_shows_what_it_tried_and_under_nohup_nothing_stops_it(start, tmp_path):
    tune = ("tune", "run.toml", "--try", "algorithm.regularisation=20,30,40,50")
    settings(tmp_path, total=300)
    running: Command = start(tmp_path / "tune.log", *tune, under=("nohup",))
    running.wait_for("1/5")
    running.process.send_signal(signal.SIGHUP)
    running.wait_for("2/5")
    running.process.send_signal(signal.SIGTERM)
    assert running.ended() == 130, running.told
    assert "as in the file" in running.out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seeds and their workers", "parties"])
def test_killed_it_leaves_no_child(start, tmp_path, kind):
    if kind == "parties":
        kits = Kits(tmp_path, start, total=5000)
        running, n_children = start(tmp_path / "up.log", "up", str(kits.path)), 5
    else:
        settings(tmp_path, algorithm="fedmf")
        workers = ("--workers", "2")
        running, n_children = start(tmp_path / "seeds.log", *SEEDS, *workers), 2
    children: set[int] = set()

    def all_there() -> bool:
        assert running.process.poll() is None, running.told
        children.update(descendants(running.process.pid))
        return len(children) >= n_children

    poll(all_there, "children")
    if kind != "parties":
        running.wait_for("round 1/")
        all_there()
    running.kill()
    poll(lambda: not [child for child in children if is_running(child)], "their end", 20.0)


def test_whatever_starts_a_process_has_it_end_with_its_parent():
    """Every file that starts one does so by `child_command`, or has the child watch."""
    starting = set()
    for part in ("common", "server", "client", "lab"):
        for path in (ROOT / part).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            named = {
                call.attr
                for call in calls
                if isinstance(call, ast.Attribute)
                and isinstance(call.value, ast.Name)
                and call.value.id in ("subprocess", "multiprocessing", "os")
            }
            if named & STARTS:
                starting.add(path.name)
                names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
                assert names & WATCHED or path.name == "worker_process.py", path
    assert {"seeds.py", "parties.py", "worker_process.py", "fetching.py"} <= starting
