"""Ray itself: the bits of one process with workers and nodes killed, and nothing left behind.

The module starts one cluster of two nodes, on 127.0.0.2 and 127.0.0.3. It needs the extra `ray`.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from world.rounds import EXACT, KINDS

from fedrec.cluster.engine import engine_of
from fedrec.cluster.shard_worker import ShardWorker
from fedrec.settings.schema import ClientSettings
from fedrec.training.executors.processes import executor_of
from fedrec.training.executors.worker_process import clean_environment
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources

pytestmark = [pytest.mark.hours, pytest.mark.timeout(900)]

ROUNDS = tuple(range(2, 32))
KILLED_IN = (5, 12)


class MortalWorker(ShardWorker):
    """A worker that is killed once in the middle of a shard's call, in some of the rounds."""

    def _chunks(self, told, tables, tasks):
        chunks = list(super()._chunks(told, tables, tasks))
        number, place = told.numbers["round"], os.environ.get("FEDREC_TEST_DEATHS")
        first = int(tables.user_keys[0])
        for n, chunk in enumerate(chunks):
            if place and number in KILLED_IN and n == len(chunks) // 2:
                mark = Path(place) / f"{number}-{first}"
                if not mark.exists():
                    mark.write_text(str(os.getpid()))
                    os.kill(os.getpid(), signal.SIGKILL)
            yield chunk


class NodeKiller(ShardWorker):
    """A worker that kills the raylet of the second node in the middle of a call, and itself."""

    def _chunks(self, told, tables, tasks):
        for n, chunk in enumerate(super()._chunks(told, tables, tasks)):
            if n == 1 and os.environ["FEDREC_TEST_NODE"] == "127.0.0.3":
                os.kill(int(os.environ["RAY_RAYLET_PID"]), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            yield chunk


class Node:
    """A raylet that ends with this object, and ends nothing else."""

    def __init__(self, folder, ip, *arguments) -> None:
        environment = clean_environment() | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": os.environ["RAY_AUTH_TOKEN_PATH"],
            "FEDREC_TEST_DEATHS": str(folder / "deaths"),
            "FEDREC_TEST_NODE": ip,
        }
        self.process = subprocess.Popen(
            [
                *(Path(sys.executable).parent / "ray", "start", "--block", "--num-cpus=4"),
                *(f"--node-ip-address={ip}", "--object-store-memory=104857600"),
                *("--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"),
                *arguments,
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if "--block" in line:
                return
        self.end()
        raise AssertionError(self.said)

    def end(self) -> None:
        """End it by its process group, all of whose processes were started here."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # Paths of sockets must be short.
    folder = tmp_path_factory.mktemp("r")
    (folder / "deaths").mkdir()
    (folder / "token").write_text(secrets.token_hex(32))
    (folder / "token").chmod(0o600)
    before = dict(os.environ)
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(folder / "token")
    yield folder
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def head(folder):
    with socket.create_server(("127.0.0.2", 0)) as free:
        client_port = free.getsockname()[1]
    made = Node(
        folder, "127.0.0.2", "--head", "--port=0", f"--temp-dir={folder / 't'}",
        "--include-dashboard=false", f"--ray-client-server-port={client_port}",
    )  # fmt: skip
    yield made
    made.end()


@pytest.fixture(scope="module")
def address(head):
    return re.search(r"127\.0\.0\.2:\d+", head.said)[0]


@pytest.fixture(scope="module")
def second(folder, head, address):
    made = Node(folder, "127.0.0.3", f"--address={address}")
    yield made
    made.end()


@pytest.fixture(scope="module")
def executor_with(second, address):
    """Return an executor on both nodes whose workers are killed in two rounds."""
    made = []

    def executor(n_workers, worker=ShardWorker):
        own = engine_of(ClientSettings(engine="ray", ray_address=address, workers=n_workers))
        own._worker = worker
        made.append(own)
        return own

    yield executor
    for own in made:
        own.close()


@pytest.fixture(scope="module")
def alone(play, plan_of):
    return play(Learner(plan_of(), 200, device="cpu"), ROUNDS)


def learner_of(plan, executor):
    return Learner(plan, 200, device="cpu", resources=Resources(workers=executor))


@pytest.mark.parametrize("n_workers", [1, 2, 3, 8])
def test_thirty_rounds_have_the_bits_of_one_process(
    n_workers, executor_with, play, plan_of, same, alone
):
    executor = executor_with(n_workers)
    same(play(learner_of(plan_of(), executor), ROUNDS), alone)
    if n_workers == 2:
        local = executor_of(2)
        same(play(learner_of(plan_of(), local), ROUNDS), alone)
        local.close()
    executor.close()


def test_workers_killed_in_mid_round_change_no_bit(
    executor_with, play, plan_of, same, alone, folder
):
    executor = executor_with(3, MortalWorker)
    same(play(learner_of(plan_of(), executor), ROUNDS), alone)
    executor.close()
    marks = list((folder / "deaths").iterdir())
    assert {int(mark.name.partition("-")[0]) for mark in marks} == set(KILLED_IN)
    assert len(marks) == 3 * len(KILLED_IN)
    assert not any(Path(f"/proc/{mark.read_text()}").exists() for mark in marks)


@pytest.fixture(scope="module")
def pair(executor_with):
    return executor_with(2)


@pytest.mark.parametrize("kind", [*KINDS, *EXACT])
def test_every_algorithm_trains_and_measures_there(kind, pair, plan_of, users):
    found = []
    for executor in (1, pair):
        learner = learner_of(plan_of(**(KINDS | EXACT)[kind]), executor)
        shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
        counted = learner.contribute("count", 1, shared, users, private)
        shared = learner.server.apply("count", 1, shared, counted.vector)
        vectors = []
        for number in (2, 3):
            part = learner.contribute("train", number, shared, users, private)
            shared = learner.server.apply("train", number, shared, part.vector)
            private = part.private
            vectors.append(part.vector)
        vectors.append(learner.contribute("evaluate", 4, shared, users, private).vector)
        found.append([*vectors, *(private.tensors[name] for name in sorted(private.tensors))])
    assert all(map(np.array_equal, *found))


def test_workers_get_nothing_of_this_process_and_end_with_it(pair, plan_of, play, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell")
    play(learner_of(plan_of(), pair), (2,))
    pair.close()
    play(learner_of(plan_of(), pair), (2,))
    import ray

    workers = []
    for place in Path("/proc").glob("[0-9]*"):
        # Processes of others end at any time.
        with suppress(OSError):
            if b"ray::ShardWorker" in (place / "cmdline").read_bytes():
                workers.append(place)
    assert len(workers) >= 2
    assert not any(b"do-not-tell" in (place / "environ").read_bytes() for place in workers)
    assert ray.is_initialized()
    pair.close()
    assert not ray.is_initialized()


def test_another_token_is_refused(address, second, tmp_path):
    (tmp_path / "token").write_text(secrets.token_hex(32))
    (tmp_path / "token").chmod(0o600)
    code = (
        "from fedrec.cluster.engine import engine_of\n"
        "from fedrec.settings.schema import ClientSettings\n"
        f"client = ClientSettings(engine='ray', ray_address='{address}', workers=1)\n"
        "executor = engine_of(client)\n"
        "executor._connect()\n"
    )
    environment = clean_environment() | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert said.returncode == 1 and "SettingsError" in said.stderr
    assert "can join with its token" in said.stderr


def test_a_node_killed_in_mid_round_changes_no_bit(
    executor_with, second, address, play, plan_of, same
):
    """The last test: it ends the second node."""
    executor = executor_with(4, NodeKiller)
    plan = plan_of()
    same(play(learner_of(plan, executor)), play(Learner(plan, 200, device="cpu")))
    # Those on the second node are gone.
    assert len(executor._actors) < 4
    executor.close()
