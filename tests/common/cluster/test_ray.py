"""Ray itself: the bits of one process with workers and nodes killed, and nothing left behind.

The module starts one cluster of two nodes, and prints where: in two network namespaces, or on two
loopback addresses if the kernel refuses a namespace. Each node has one processor, and one GPU that
exists only in Ray's books. `make test-more` runs a part of it, and `make test-long` the rest.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from command import SMALL, sets
from conformance.histories import counted
from world.rounds import EXACT, KINDS

from fedrec.cluster.engine import engine_of
from fedrec.cluster.shard_worker import ShardWorker
from fedrec.errors import SettingsError, StorageError
from fedrec.settings.schema import ClientSettings
from fedrec.training.executors.processes import executor_of
from fedrec.training.executors.worker_process import clean_environment
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]

LONG, HOURS = pytest.mark.long, pytest.mark.hours
ROUNDS = tuple(range(2, 32))
KILLED_IN = (5, 12)
STORE_BYTES = 100 << 20


class TroubledWorker(ShardWorker):
    """A worker that dies or fills its disk where a file in the test's folder tells it to."""

    def train(self, job, tables, tasks, own):
        found = super().train(job, tables, tasks, own)
        if (self._orders / "full").exists():
            (self._orders / f"full-{self._node}").touch()
            found.own["too much"] = np.zeros(2 * STORE_BYTES, np.uint8)
        return found

    def _chunks(self, job, tables, tasks):
        chunks = list(super()._chunks(job, tables, tasks))
        folder = self._orders / f"kill-{job.numbers['round']}"
        mark = folder / str(tables.user_keys[0])
        for n, chunk in enumerate(chunks):
            if n == len(chunks) // 2 and folder.exists() and not mark.exists():
                mark.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            if n == 1 and (self._orders / f"end-{self._node}").exists():
                os.kill(int(os.environ["RAY_RAYLET_PID"]), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            yield chunk

    @property
    def _orders(self):
        return Path(os.environ["FEDREC_TEST_ORDERS"])

    @property
    def _node(self):
        return os.environ["FEDREC_TEST_NODE"]


class Node:
    """A raylet that ends with this object, and ends nothing else.

    Args:
        place: the words that run a command where the node is, and the node's address.
    """

    def __init__(self, folder, name, place, *arguments, **variables) -> None:
        prefix, ip = place
        environment = clean_environment() | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": os.environ["RAY_AUTH_TOKEN_PATH"],
            "FEDREC_TEST_ORDERS": str(folder),
            "FEDREC_TEST_NODE": name,
            # To Ray, a disk is full once its memory for objects is.
            "RAY_local_fs_capacity_threshold": "0",
            # Nor may other programs' memory cost a worker.
            "RAY_memory_monitor_refresh_ms": "0",
        }
        self.process = subprocess.Popen(
            [
                *prefix,
                *(Path(sys.executable).parent / "ray", "start", "--block", "--num-cpus=1"),
                *("--num-gpus=1", f"--node-ip-address={ip}"),
                f"--object-store-memory={STORE_BYTES}",
                *("--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"),
                *arguments,
            ],
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self.output = ""
        for line in self.process.stdout:
            self.output += line
            if "--block" in line:
                return
        self.end()
        raise AssertionError(self.output)

    def end(self) -> None:
        """End it by its process group, all of whose processes were started here."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


def start_head(folder, place, **variables):
    """Start the first node, and return it with the cluster's address."""
    with socket.create_server((place[1], 0)) as free:
        client_port = free.getsockname()[1]
    made = Node(
        folder, "head", place, "--head", "--port=0", f"--temp-dir={folder / 't'}",
        "--include-dashboard=false", f"--ray-client-server-port={client_port}", **variables,
    )  # fmt: skip
    return made, re.search(re.escape(place[1]) + r":\d+", made.output)[0]


def wait_for_nodes(address, n_nodes, node=None):
    """Wait until a given number of nodes are alive, while the given process still runs."""
    from ray._raylet import GcsClient

    client = GcsClient(address=address)
    # In Ray's books, state 0 is alive. The module's limit of time ends a wait that is in vain.
    while sum(node.state == 0 for node in client.get_all_node_info().values()) != n_nodes:
        assert node is None or node.process.poll() is None, node.process.stdout.read()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def places():
    """Return where nodes run: this process's network and another one, if the kernel lets us."""
    name = f"fedrec{os.getpid()}"
    # Addresses for measurements, of which each process has four.
    network = ipaddress.ip_network("198.18.0.0/15")[4 * (os.getpid() % (1 << 15))]
    here, there = str(network + 1), str(network + 2)
    lines = (
        f"ip netns add {name}",
        f"ip link add {name}a type veth peer name {name}b netns {name}",
        f"ip address add {here}/30 dev {name}a",
        f"ip link set {name}a up",
        f"ip -n {name} address add {there}/30 dev {name}b",
        f"ip -n {name} link set {name}b up",
        f"ip -n {name} link set lo up",
    )

    def works(line):
        with suppress(OSError):
            return subprocess.run(line.split(), capture_output=True, check=False).returncode == 0
        return False

    if all(map(works, lines)):
        print("two network namespaces")
        yield ((), here), (("ip", "netns", "exec", name), there)
    else:
        print("two loopback addresses")
        yield ((), "127.0.0.2"), ((), "127.0.0.3")
    works(f"ip netns delete {name}")


@pytest.fixture(scope="module")
def folder():
    # Paths of sockets have 107 bytes at most, which pytest's own folders in a worker exceed.
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as short:
        yield from with_token(Path(short))


def with_token(folder):
    (folder / "token").write_text(secrets.token_hex(32))
    (folder / "token").chmod(0o600)
    before = dict(os.environ)
    os.environ |= {"RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_AUTH_MODE": "token"}
    yield folder
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def head(folder, places):
    made, address = start_head(folder, places[0])
    yield made, address
    if made.process.returncode is None:
        made.end()


@pytest.fixture(scope="module")
def address(head, folder, places):
    """Return the address of a cluster of two nodes."""
    made = Node(folder, "second", places[1], f"--address={head[1]}")
    wait_for_nodes(head[1], 2, made)
    yield head[1]
    made.end()


@pytest.fixture(scope="module")
def executor_with(address):
    made = []

    def executor(n_workers="auto", worker=ShardWorker):
        own = engine_of(ClientSettings(engine="ray", ray_address=address, workers=n_workers))
        own._worker = worker
        made.append(own)
        return own

    yield executor
    for own in made:
        own.close()


@pytest.fixture(scope="module")
def pair(executor_with):
    return executor_with(2, TroubledWorker)


@pytest.fixture(scope="module")
def alone(play, plan_of):
    return play(Learner(plan_of(), 200, device="cpu"), ROUNDS)


def learner_of(plan, executor):
    return Learner(plan, 200, device="cpu", resources=Resources(workers=executor))


CORE = ("fedmf, colr", "under noise", "sketch", "accelerated, candidates")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=LONG if kind in CORE else HOURS) for kind in KINDS | EXACT]
)
def test_every_algorithm_trains_and_measures_there(kind, pair, plan_of, users):
    found = []
    for executor in (1, pair):
        learner = learner_of(plan_of(**(KINDS | EXACT)[kind]), executor)
        shared, private = counted(learner, users)
        vectors = []
        for number in (2, 3):
            part = learner.contribute("train", number, shared, users, private)
            shared = learner.server.apply("train", number, shared, part.vector)
            private = part.private
            vectors.append(part.vector)
        vectors.append(learner.contribute("evaluate", 4, shared, users, private).vector)
        found.append([*vectors, *(private.tensors[name] for name in sorted(private.tensors))])
    assert all(map(np.array_equal, *found))


def killed_in(folder, *rounds):
    """Have workers die once for each shard of these rounds."""
    orders = [folder / f"kill-{number}" for number in rounds]
    for order in orders:
        order.mkdir()
    return orders


def died_in(orders):
    """Return the number of workers that died in each of the rounds, and end the orders."""
    marks = [[mark.read_text() for mark in order.iterdir()] for order in orders]
    assert not any(Path(f"/proc/{mark}").exists() for own in marks for mark in own)
    for order in orders:
        order.rename(order.with_name(f"done-{order.name}"))
    return list(map(len, marks))


@LONG
def test_a_killed_worker_is_replaced(pair, play, plan_of, same, alone, folder):
    orders = killed_in(folder, 2)
    same(play(learner_of(plan_of(), pair), ROUNDS[:2]), alone[:2])
    assert died_in(orders) == [2]
    assert len(pair._actors) == 2


@LONG
def test_a_worker_without_a_shards_tables_gets_them_again(pair, plan_of, users):
    import ray

    learner = learner_of(plan_of(), pair)
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    counted = learner.contribute("count", 1, shared, users, private)
    shared = learner.server.apply("count", 1, shared, counted.vector)

    def vector():
        return learner.contribute("train", 2, shared, users, private).vector

    def kept_here(worker, tables):
        return os.getpid(), [ray.put(tables)]

    first = vector()
    assert first.any()
    # Ray loses objects with the process that put them there.
    kept = pair._kept[learner.local._cohorts[True].value]
    for shard, reference in kept.items():
        pid, (kept[shard],) = ray.get(pair._actors[0].__ray_call__.remote(kept_here, reference))
    lost = set(kept.values())
    os.kill(pid, signal.SIGKILL)
    for actor, one in product(pair._actors, lost):
        # Each node frees its copy a moment later.
        with pytest.raises(ray.exceptions.ObjectLostError):
            while True:
                ray.get(actor.__ray_call__.remote(lambda worker, tables: None, one))
    assert np.array_equal(vector(), first)
    assert len(lost) == 2 and not lost & set(kept.values())
    assert len(pair._actors) == 2


@LONG
def test_a_full_disk_is_told_by_its_node(pair, play, plan_of, folder, places):
    # A worker that was replaced may be on either node.
    (folder / "full").touch()
    with pytest.raises(StorageError, match=r"no room.*disk.*--temp-dir") as caught:
        play(learner_of(plan_of(), pair), (2,))
    (folder / "full").unlink()
    (ip,) = re.findall(r"Node (\S+) of", caught.value.message)
    name = {places[0][1]: "head", places[1][1]: "second"}[ip]
    assert (folder / f"full-{name}").exists()


@HOURS
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


@HOURS
def test_workers_killed_in_mid_round_change_no_bit(
    executor_with, play, plan_of, same, alone, folder
):
    executor, orders = executor_with(3, TroubledWorker), killed_in(folder, *KILLED_IN)
    same(play(learner_of(plan_of(), executor), ROUNDS), alone)
    executor.close()
    assert died_in(orders) == [3, 3]


@HOURS
def test_each_gpu_has_a_worker(executor_with, play, plan_of, same, alone, monkeypatch):
    """The GPUs exist in Ray's books only, and processors compute."""
    from fedrec.cluster import ray_executor

    # Now a processor counts as a device.
    monkeypatch.setattr(ray_executor, "CPU", torch.device("meta"))
    executor = executor_with()
    same(play(learner_of(plan_of(), executor), ROUNDS[:2]), alone[:2])
    import ray

    def given(worker):
        return ray.get_runtime_context().get_node_id(), ray.get_gpu_ids()

    found = ray.get([actor.__ray_call__.remote(given) for actor in executor._actors])
    assert len({node for node, _ in found}) == len(found) == 2
    assert [ids for _, ids in found] == [[0], [0]]
    with pytest.raises(SettingsError, match="has 2 GPUs"):
        executor_with(3)._connect(torch.device("cpu"))
    executor.close()


@HOURS
def test_a_killed_run_resumes_to_the_same_bytes(address, fedrec, settings_file, tmp_path):
    given = sets(*SMALL, "rounds.total=5")
    on_ray = [*given, *sets("client.engine=ray", f"client.ray_address={address}")]
    alone = fedrec("simulate", settings_file, *given)
    model = Path(alone.out.splitlines()[-1], "model.safetensors").read_bytes()
    before = set((tmp_path / "runs").iterdir())
    code = (
        "import os, signal, sys\n"
        "from fedrec.cli.main import main\n"
        "from fedrec.cluster.ray_executor import RayExecutor\n"
        "from fedrec_lab.simulation import runner\n"
        "results = RayExecutor._results\n"
        "runner._SECONDS_BETWEEN_CHECKPOINTS = 0.0\n"
        "calls = []\n"
        "def dying(executor, shards, call):\n"
        "    calls.append(call.__qualname__)\n"
        "    for found in results(executor, shards, call):\n"
        "        if calls.count('RayExecutor.train.<locals>.call') == 3:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield found\n"
        "RayExecutor._results = dying\n"
        "main(sys.argv[1:])\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", code, "simulate", settings_file, *on_ray],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    (run,) = set((tmp_path / "runs").iterdir()) - before
    assert not (run / "model.safetensors").exists()
    rounds = (run / "rounds.jsonl").read_text().splitlines()
    assert len(rounds) >= 2
    resumed = fedrec("simulate", settings_file, *on_ray, "--resume", run)
    assert resumed.code == 0, resumed.err
    assert (run / "model.safetensors").read_bytes() == model


@HOURS
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
            if b"ray::TroubledWorker" in (place / "cmdline").read_bytes():
                workers.append(place)
    assert len(workers) >= 2
    assert not any(b"do-not-tell" in (place / "environ").read_bytes() for place in workers)
    assert ray.is_initialized()
    pair.close()
    assert not ray.is_initialized()


@HOURS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("os.environ['RAY_AUTH_TOKEN_PATH'] = sys.argv[1]", "can join with its token"),
        ("ray.__version__ = '2.59.0'", "another Ray or Python"),
        ("utils.compute_version_info = lambda: (ray.__version__, '3.11.1')", "another Ray or Py"),
    ],
    ids=["token", "ray", "python"],
)
def test_a_machine_that_does_not_fit_is_refused(change, message, address, tmp_path):
    (tmp_path / "token").write_text(secrets.token_hex(32))
    (tmp_path / "token").chmod(0o600)
    code = (
        "import os, sys\n"
        "os.environ['RAY_AUTH_MODE'] = 'token'\n"
        "import ray, torch\n"
        "from ray._private import utils\n"
        f"{change}\n"
        "from fedrec.cluster.engine import engine_of\n"
        "from fedrec.settings.schema import ClientSettings\n"
        f"client = ClientSettings(engine='ray', ray_address='{address}', workers=1)\n"
        "engine_of(client)._connect(torch.device('cpu'))\n"
    )
    environment = clean_environment() | {"RAY_AUTH_TOKEN_PATH": os.environ["RAY_AUTH_TOKEN_PATH"]}
    found = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "token"],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 1 and "SettingsError" in found.stderr
    assert message in found.stderr


@HOURS
def test_a_node_killed_in_mid_round_changes_no_bit(
    executor_with, folder, address, play, plan_of, same, alone
):
    """From here on, the second node is gone."""
    executor = executor_with(4, TroubledWorker)
    (folder / "end-second").touch()
    same(play(learner_of(plan_of(), executor), ROUNDS[:2]), alone[:2])
    executor.close()
    wait_for_nodes(address, 1)


@HOURS
def test_a_node_that_computes_other_bits_is_refused(executor_with, folder, address, places):
    other = Node(
        folder, "other", (places[1][0], places[1][1]), f"--address={address}",
        ATEN_CPU_CAPABILITY="default",
    )  # fmt: skip
    try:
        wait_for_nodes(address, 2, other)
        executor = executor_with()
        with pytest.raises(SettingsError, match="ATEN_CPU_CAPABILITY is default, not absent"):
            # Until the first node knows of the other one, Ray starts both workers on the first.
            while True:
                executor._connect(torch.device("cpu"))
                executor._dismiss()
    finally:
        other.end()


@HOURS
def test_a_cluster_without_a_token_is_refused(head, folder, places):
    """The last test: its cluster takes the place of the module's."""
    import ray

    # Ray ends a process whose cluster is gone.
    ray.shutdown()
    head[0].end()
    (folder / "open").mkdir()
    made, address = start_head(folder / "open", places[0], RAY_AUTH_MODE="disabled")
    client = ClientSettings(engine="ray", ray_address=address)
    executor = engine_of(client)
    try:
        with pytest.raises(SettingsError, match=r"RAY_AUTH_MODE=token"):
            executor._connect(torch.device("cpu"))
    finally:
        executor.close()
        made.end()
