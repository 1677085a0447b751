"""Scenario 4, KILL9-EXH: killed at every failpoint of two rounds, nothing is lost or twice.

Under noise, Laplace noise that the coordinator may read or Gaussian noise that is revealed, the
privacy ledger also never says less than what was released.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from world.plans import params

TESTS = Path(__file__).parents[1]

EXPECTED = {
    "draft.write",
    "draft.fsync",
    "draft.synced",
    "file.rename",
    "folder.fsync",
    "folder.synced",
    "file.delete",
    "rows.begin",
    "rows.commit",
    "rows.committed",
    "update.ack",
}


@pytest.fixture
def fast_folder(tmp_path):
    """Return a folder in memory where there is one: a kill loses no page cache anyway."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="fedrec-crash-") as found:
        yield Path(found)


@pytest.mark.parametrize(
    "kind",
    params(
        "plain",
        "revealed",
        "noisy-veiled",
        long=["concurrent", "veiled", "noisy", "noisy-revealed"],
    ),
)
def test_scenario_04_killed_at_every_failpoint(fast_folder, kind):
    ended = subprocess.run(
        [sys.executable, "-m", "world.crash", str(fast_folder), kind],
        cwd=TESTS,
        env={"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    own = {"veiled": {"report.ack"}, "revealed": {"reveal.ack"}}
    wanted = EXPECTED | own.get(kind.removeprefix("noisy-"), set())
    assert {line["name"] for line in lines} == wanted
    failed = [line for line in lines if not (line["killed"] and line["recovered"])]
    assert not failed, f"{failed}\n{ended.stderr[-3000:]}"
