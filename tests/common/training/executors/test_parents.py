"""What becomes of workers when the process that started them is killed, interrupted, a notebook."""

import json
import os
import select
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# No main guard, as in a notebook: whoever imported this again would start processes for ever.
SCRIPT = """
import json, sys
from fedrec.settings.schema import Settings
from fedrec.data import generate, leave_one_out
from fedrec_lab.simulation.federation import SimulatedFederation
from fedrec_lab.simulation.parties import Arrangement
from fedrec_lab.simulation.runner import simulate
from fedrec.clock import SystemClock

folder, n_rounds = sys.argv[1:]
data = generate(n_users=60, n_items=80, n_clusters=4, interactions_per_user=12, seed=1)
users = leave_one_out(data.interactions, data.catalogue)
settings = Settings.model_validate({
    "federation": {"minimum_item_users": 1},
    "algorithm": {"dim": 8, "batch_size": 32},
    "rounds": {"total": int(n_rounds)},
    "evaluation": {"every_rounds": 1000000},
    "training": {"accelerated": False},
    "client": {"device": "cpu", "workers": 2},
})
from pathlib import Path
federation = SimulatedFederation(
    settings, data.catalogue, users, Arrangement(), clock=SystemClock(), scratch=Path(folder)
)
federation.advance()
federation.advance()
executor = federation._learner.local.executor
print(json.dumps(executor._processes.processes), flush=True)
while not federation.finished:
    federation.advance()
federation.close()
print("done", flush=True)
"""


@pytest.fixture
def started(tmp_path):
    """Start the script from stdin, in a group of its own; kill what is left of it."""
    running = []

    def start(n_rounds):
        process = subprocess.Popen(
            [sys.executable, "-", str(tmp_path), str(n_rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        running.append(process)
        process.stdin.write(SCRIPT.encode())
        process.stdin.close()
        process.stdin = None
        pids = json.loads(process.stdout.readline())
        assert len(pids) == 2
        return process, [os.pidfd_open(pid) for pid in pids], pids

    yield start
    for process in running:
        process.kill()
        process.communicate()


def all_ended(watched, *, within):
    """Wait for all processes at once."""
    left = set(watched)
    while left:
        found, _, _ = select.select(list(left), [], [], within)
        if not found:
            return False
        left -= set(found)
    for one in watched:
        os.close(one)
    return True


@pytest.mark.long
def test_a_program_from_stdin_needs_no_main_guard(started, tmp_path):
    process, watched, _ = started(3)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out.decode().split()) == (0, ["done"]), errors.decode()
    assert errors == b""
    assert all_ended(watched, within=5) and not list(tmp_path.iterdir())


def test_of_a_killed_parent_no_worker_is_alive_after_five_seconds(started, tmp_path):
    process, watched, _ = started(10_000)
    assert list(tmp_path.iterdir())
    process.kill()
    process.wait()
    assert all_ended(watched, within=5)
    # The last worker to see it has removed the shared files.
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_ctrl_c_is_the_parents(started, tmp_path):
    process, watched, pids = started(10_000)
    # A terminal sends it to the whole group; it may be sent to a worker alone.
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    assert process.poll() is None and not select.select(watched, [], [], 0)[0]
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors.decode().count("KeyboardInterrupt") == 1
    assert all_ended(watched, within=5) and not list(tmp_path.iterdir())
