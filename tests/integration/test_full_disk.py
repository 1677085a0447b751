"""A coordinator without space refuses, says so, and goes on by itself when there is some."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest
from integration.conftest import Found
from integration.support.bench import Bench, merged, plan_of
from integration.support.children import CoordinatorProcess
from integration.support.links import DEADLINE_SECONDS
from integration.support.parties import Client

from fedrec_client.events import ClientEvent


@pytest.mark.parametrize("limit", [20_000, 0])
def test_no_file_may_grow(tmp_path: Path, limit: int) -> None:
    bench = Bench.make(tmp_path, plan_of("bfv"))
    coordinator = CoordinatorProcess(bench)
    pid = coordinator.process.pid
    assert pid is not None
    refused = threading.Event()
    full = threading.Lock()

    def on_event(event: ClientEvent) -> None:
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


def limit_file_size(pid: int, n_bytes: int) -> None:
    """Let a process write no file beyond a size; it gets what a full disk would give it."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))


def test_the_reserve_is_kept_free(found: Found) -> None:
    federation = found(plan_of("none", total=1), reserve_bytes=1 << 60)
    client = federation.start_all(maximum_attempts=3)[0]
    failure = client.failure()
    assert failure.code == "storage"
    assert "try again later" in failure.message
