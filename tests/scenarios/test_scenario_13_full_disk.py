"""Scenario 13, DISK-FULL: without space parties refuse, say so, and go on by themselves."""

import json
import resource
import threading

import pytest
from world.bench import Bench, merged, plan_of
from world.children import ClientProcess, CoordinatorProcess
from world.clock import DEADLINE_SECONDS, poll
from world.links import Gate
from world.parties import Client
from world.plans import params

from fedrec_client.state.private_store import PrivateStore


@pytest.mark.parametrize("limit", params(20_000, long=[0]))
def test_scenario_13_no_file_may_grow(tmp_path, limit):
    bench = Bench.make(tmp_path, plan_of("bfv"))
    coordinator = CoordinatorProcess(bench)
    pid = coordinator.process.pid
    assert pid is not None
    refused = threading.Event()
    full = threading.Lock()

    def on_event(event):
        if (event.name, event.round) == ("protected", 3) and full.acquire(blocking=False):
            limit_file_size(pid, limit)
        if event.name == "unreachable" and "Storage is unavailable" in event.detail:
            refused.set()

    clients: list[Client] = []
    try:
        clients += [
            Client(bench.client_settings(number, coordinator.address), on_event=on_event)
            for number in range(bench.n_clients)
        ]
        assert refused.wait(DEADLINE_SECONDS)
        limit_file_size(pid, resource.RLIM_INFINITY)
        for client in clients:
            assert client.result().reason == "all rounds are published"
    finally:
        for client in clients:
            client.stop()
        coordinator.close()
    assert {bench.model(number) for number in range(bench.n_clients)} == {merged().model}


def limit_file_size(pid, n_bytes):
    """Let a process write no file beyond a size; it gets what a full disk would give it."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    "case", params(("bfv", 20_000, False), long=[("none", 0, False), ("none", 0, True)])
)
def test_scenario_13_a_client_without_space_waits_for_some(tmp_path, case):
    protection, limit, in_files = case
    bench = Bench.make(tmp_path, plan_of(protection))
    coordinator = CoordinatorProcess(bench)
    waits = ClientProcess(bench, 2, coordinator.address, in_files=in_files)
    others: list[Client] = []
    pid = waits.process.pid
    assert pid is not None
    gate = Gate(2)
    try:
        others = [
            Client(bench.client_settings(0, coordinator.address), wrap=gate),
            Client(bench.client_settings(1, coordinator.address)),
        ]
        assert gate.reached.wait(DEADLINE_SECONDS)

        def has_answered():
            store = PrivateStore(bench.state(2), read_only=True)
            sent = store.state.acknowledged if store.is_bound else None
            return sent is not None and sent.round == 2

        poll(has_answered)
        # It cannot keep what follows from round 2, and takes no part in round 3.
        limit_file_size(pid, limit)
        gate.opened.set()
        others[1].wait_for("sent", 3)
        poll(lambda: not list(bench.state(2).glob(".*.new")))
        assert waits.process.is_alive()
        assert others[1].events[-1].round != 4
        limit_file_size(pid, resource.RLIM_INFINITY)
        for client in others:
            assert client.result().reason == "all rounds are published"
        assert waits.answer() == "all rounds are published"
    finally:
        gate.opened.set()
        for client in others:
            client.stop()
        waits.close()
        coordinator.close()
    assert {bench.model(number) for number in range(bench.n_clients)} == {merged().model}
    lines = (bench.state(2) / "client-log.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, len(lines) + 1))
