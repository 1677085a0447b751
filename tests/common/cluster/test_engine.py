"""What a cluster computes is what one process does, and what it can't be used for is told."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance.histories import counted
from world import ray_in_process
from world.rounds import EXACT, KINDS

from fedrec.cluster import engine, shard_worker
from fedrec.cluster.engine import engine_of
from fedrec.cluster.shard_worker import NodeReport
from fedrec.errors import InternalError, SettingsError, StorageError, TrainingError
from fedrec.settings.schema import ClientSettings
from fedrec.training.executors.processes import executor_of
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources


@pytest.fixture(scope="module")
def report():
    return replace(NodeReport.of_this_process(), safe=True)


@pytest.fixture
def cluster(monkeypatch, report):
    examine = NodeReport.of_this_process

    def examined(device):
        return report if device == "cpu" else replace(examine(device), safe=True)

    monkeypatch.setattr(NodeReport, "of_this_process", examined)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(engine, "require", lambda name: None)
    return ray_in_process.installed(monkeypatch)


FAST = ("fedmf, colr", "under noise", "fedals", "sketch")


def made(**settings):
    return engine_of(ClientSettings(engine="ray", **settings))


def learner_of(plan, executor):
    return Learner(plan, 200, device="cpu", resources=Resources(workers=executor))


def everything(learner, users):
    """A round of training, and its measuring, with every reference."""
    shared, private = counted(learner, users)
    trained = learner.contribute("train", 2, shared, users, private)
    shared = learner.server.apply("train", 2, shared, trained.vector)
    measured = learner.contribute("evaluate", 3, shared, users, trained.private)
    private = trained.private.tensors
    return [trained.vector, measured.vector, *(private[name] for name in sorted(private))]


@pytest.mark.parametrize(
    "n_workers", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 8))]
)
def test_shards_give_the_bits_of_one_process(n_workers, plan_of, play, same, cluster):
    same(
        play(learner_of(plan_of(), made(workers=n_workers))),
        play(Learner(plan_of(), 200, device="cpu")),
    )
    assert len(cluster.homes) == n_workers


@pytest.mark.parametrize(
    "kind",
    [
        *FAST,
        pytest.param("accelerated, candidates", marks=pytest.mark.slow),
        *(
            pytest.param(kind, marks=pytest.mark.long)
            for kind in sorted({*KINDS, *EXACT} - {*FAST, "accelerated, candidates"})
        ),
    ],
)
def test_every_algorithm_trains_and_measures_there(kind, plan_of, users, cluster):
    plan = plan_of(**(KINDS | EXACT)[kind])
    found = everything(learner_of(plan, made(workers=3)), users)
    assert all(map(np.array_equal, found, everything(Learner(plan, 200, device="cpu"), users)))


def test_some_users_or_none_may_train(plan_of, play, same, users, cluster):
    for some in (np.arange(len(users)) % 5 == 0, np.zeros(len(users), bool)):
        learners = [learner_of(plan_of(), executor) for executor in (1, made(workers=2))]
        same(*(play(learner, participating=some) for learner in learners))


def test_a_repeated_call_counts_once(plan_of, play, same, cluster):
    cluster.lost = 1
    same(play(learner_of(plan_of(), made(workers=2))), play(Learner(plan_of(), 200, device="cpu")))


def test_a_worker_without_a_shards_tables_gets_them_again(plan_of, users, cluster, monkeypatch):
    executor = made(workers=2)
    learner = learner_of(plan_of(), executor)
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    counted = learner.contribute("count", 1, shared, users, private)
    shared = learner.server.apply("count", 1, shared, counted.vector)

    def vector():
        return learner.contribute("train", 2, shared, users, private).vector

    def lose():
        for reference in executor._kept[learner.local._cohorts[True].value].values():
            reference.raw = None

    first = vector()
    assert first.any()
    lose()
    assert np.array_equal(vector(), first)
    assert cluster.killed == 0
    lose()
    monkeypatch.setattr(executor, "_forget", lambda shard: None)
    with pytest.raises(TrainingError, match=r"lost 5 times.*no copy is left"):
        vector()


def test_the_others_do_the_work_of_a_lost_worker(plan_of, play, same, cluster, monkeypatch):
    import ray

    executor, get = made(workers=3), ray.get

    def losing(found, **named):
        if not isinstance(found, list) and len(executor._actors) == 3:
            raise ray.exceptions.RayActorError("no answer")
        return get(found, **named)

    monkeypatch.setattr(ray, "get", losing)
    same(play(learner_of(plan_of(), executor)), play(Learner(plan_of(), 200, device="cpu")))
    assert len(executor._actors) == 2


@pytest.mark.slow
def test_large_tables_go_out_in_smaller_shards(plan_of, play, same, cluster, tmp_path):
    plan = plan_of(**KINDS["pfedrec"])
    resources = Resources(workers=made(workers=2), scratch=tmp_path, table_bytes=1, memory_mib=0)
    found = play(Learner(plan, 200, device="cpu", resources=resources), (2,))
    assert found[0].private.in_files
    same(found, play(Learner(plan, 200, device="cpu"), (2,)))


def test_tables_are_sent_once_and_the_cluster_is_left(plan_of, play, cluster):
    executor = made(ray_address="head:6379")
    learner = learner_of(plan_of(), executor)
    play(learner, (2,))
    assert cluster.address == "head:6379" and cluster.homes == ["one", "one", "two", "two"]
    first = cluster.n_bytes
    play(learner, (2,))
    # All that the first round also sent are the tables, at most once.
    tables = first - (cluster.n_bytes - first)
    once = sum(len(one.raw) for one in executor._kept[learner.local._cohorts[True].value].values())
    assert once < tables < 3 * once
    executor.close()
    assert cluster.killed == 4 and not cluster.connected
    # A program that had joined the cluster itself stays in it.
    cluster.connected = True
    play(learner, (2,))
    executor.close()
    assert cluster.connected


def test_nodes_that_cannot_be_used_are_told(cluster, report, plan_of, play, monkeypatch):
    arithmetic = replace(report.arithmetic, torch_capability="AVX2")
    for found, message in {
        replace(report, safe=False): r"without a token.*get-auth-token",
        replace(report, version="0.0.9"): r"has fedrec 0\.0\.9.*Install the same fedrec",
        replace(report, fingerprint="0" * 16): r"different bits.*fingerprint is 0000.*doctor",
        replace(report, arithmetic=arithmetic): "torch_capability is AVX2, not ",
    }.items():
        with pytest.raises(SettingsError) as caught:
            report.check(found, "node-b")
        assert "node-b" in caught.value.message
        caught.match(message)
    report.check(report, "node-b")
    # A node that joins later is refused by its first call.
    executor = made(workers=2)
    play(learner_of(plan_of(), executor), (2,))
    monkeypatch.setattr(
        shard_worker.NodeReport, "of_this_process", lambda _: replace(report, version="0.0.9")
    )
    with pytest.raises(SettingsError, match=r"0\.0\.9"):
        play(learner_of(plan_of(), executor), (2,))
    assert cluster.killed == 2


def test_a_cluster_that_cannot_be_joined_is_told(cluster, plan_of, play):
    for error, message in {
        ConnectionError("Failed to connect"): r"no Ray cluster at.*auto.*ray start --head",
        RuntimeError("Version mismatch: Ray: 2.59"): r"another Ray or Python.*2\.59.*Install",
    }.items():
        cluster.refused = error
        with pytest.raises(SettingsError, match=message):
            play(learner_of(plan_of(), made()))


def test_a_worker_that_ends_at_once_is_told(cluster, plan_of, play, monkeypatch):
    import ray

    def get(found, **_):
        raise ray.exceptions.RayActorError("The actor died.\nA long story.")

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(SettingsError, match=r"before the check: The actor died\. .*=token"):
        play(learner_of(plan_of(), made()))
    assert not cluster.connected


def test_rays_errors_are_told_with_a_remedy(cluster, plan_of, play, monkeypatch):
    import ray

    kinds = {
        "OutOfDiskError": (StorageError, rf"Node {socket.gethostname()} .*no room.*--temp-dir"),
        "RayError": (TrainingError, r"lost 5 times.*no answer.*client\.engine"),
        "AuthenticationError": (SettingsError, r"token.*auth_token"),
        "GetTimeoutError": (SettingsError, r"within 300 s.*client\.workers"),
    }
    for name, (kind, message) in kinds.items():

        def wait(waiting, num_returns, name=name):
            raise getattr(ray.exceptions, name)("no answer.\nA long story.")

        with monkeypatch.context() as patched:
            patched.setattr(ray, "wait", wait)
            with pytest.raises(kind, match=message):
                play(learner_of(plan_of(), made(workers=2)))


def test_a_defect_in_a_worker_is_told_without_its_arguments(cluster, plan_of, play, monkeypatch):
    monkeypatch.setattr(shard_worker, "fit_of", lambda *_: None)
    with pytest.raises(InternalError, match=r"TypeError.*not callable"):
        play(learner_of(plan_of(), made(workers=2)))


def test_each_device_has_a_worker(cluster, report, monkeypatch):
    # No worker computes here.
    monkeypatch.setattr(NodeReport, "of_this_process", lambda device: report)
    gpu, cpu = torch.device("cuda:0"), torch.device("cpu")
    executor = made()
    for device, homes, reserved in (
        (gpu, ["one", "two"], 1),
        (cpu, ["one", "one", "two", "two"], 0),
    ):
        executor._connect(device)
        assert (cluster.homes, cluster.reserved) == (homes, [reserved] * len(homes))
        cluster.homes, cluster.reserved = [], []
    assert cluster.killed == 2
    with pytest.raises(SettingsError, match=r"workers is 3, but .* has 2 GPUs.*auto"):
        made(workers=3)._connect(gpu)
    cluster.n_gpus = 0
    with pytest.raises(SettingsError, match=r"no GPUs, but .*chose cuda:0.*--num-gpus"):
        made()._connect(gpu)


def test_a_node_without_the_device_is_told(report, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device = replace(report.arithmetic, device="cuda, NVIDIA H100")
    failure = shard_worker.ShardWorker().check(replace(report, arithmetic=device))
    assert failure["error"] == "SettingsError"
    assert (
        f"Node {socket.gethostname()} of the Ray cluster can't train on CUDA" in failure["message"]
    )
    with pytest.raises(SettingsError, match="device is cpu, not cuda, NVIDIA H100"):
        replace(report, arithmetic=device).check(report, "node-b")


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["fedmf, colr", "pfedrec", "fedals", "accelerated, candidates"])
def test_a_device_of_a_cluster_computes_what_this_one_does(kind, plan_of, users, cluster):
    """As in `test_cuda`, regrouped sums agree within 1e-4 of their norm and a grid's step."""
    plan, device = plan_of(**(KINDS | EXACT)[kind]), os.environ.get("FEDREC_DEVICE", "cuda")
    resources = Resources(workers=made(workers=2))
    shards = everything(Learner(plan, 200, device=device, resources=resources), users)
    alone = everything(Learner(plan, 200, device=device), users)
    assert cluster.reserved == [device != "cpu"] * 2
    for found, expected in zip(shards, alone, strict=True):
        step = 0.0 if expected.dtype.kind == "f" else expected.size**0.5
        away = np.linalg.norm((found - expected).astype(np.float64))
        assert away <= 1e-4 * np.linalg.norm(expected.astype(np.float64)) + step


@pytest.mark.slow
def test_ray_is_imported_only_when_it_is_asked_for():
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from fedrec.cluster.engine import engine_of; "
            "from fedrec.settings.schema import ClientSettings; engine_of(ClientSettings()); "
            "print(sorted(name for name in sys.modules if name.partition('.')[0] == 'ray'))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == "[]"


def test_ray_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setattr("fedrec.extras.is_missing", lambda name: name == "ray")
    with pytest.raises(SettingsError, match=r"needs ray.*\[ray\]"):
        made()


def test_the_local_engine_is_the_default(monkeypatch, tmp_path):
    client = ClientSettings(workers=2, threads=3)
    assert type(engine_of(client, folder=tmp_path)) is type(executor_of(2))
