"""The coordinator's numbers over HTTP, beside its gRPC port."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.support.federations import Bench, identity
from server.support.serving import serving, settings_of

from fedrec.errors import FedrecError, SettingsError, StorageError
from fedrec.ids import RoundId
from fedrec.settings.schema import CoordinatorSettings
from fedrec_server.app import Coordinator


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def at(address: str) -> Callable[[CoordinatorSettings], CoordinatorSettings]:
    return lambda settings: settings.model_copy(update={"metrics_address": address})


def test_numbers_are_served_while_the_coordinator_runs(tmp_path):
    address = free_address()
    with serving(Bench.of(3), tmp_path, prepare=at(address)) as server:
        with server.link(0) as link, pytest.raises(FedrecError):
            link.next_task(identity(0).client_id, "another run", RoundId(0), wait_seconds=0.0)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        samples = {
            (one.name, *one.labels.values()): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }
        refused = {
            key[1]: value for key, value in samples.items() if "calls_refused_total" in key[0]
        }
        assert sum(refused.values()) == 1
        assert samples["fedrec_roster_clients",] == 3
        assert samples["fedrec_certificate_expiry_timestamp_seconds",] > 1.7e9
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=10)


def test_a_port_that_is_taken_starts_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        coordinator = Coordinator(
            settings_of(tmp_path, metrics_address=address), Bench.of(3).federation
        )
        with pytest.raises(SettingsError, match=r"coordinator\.metrics_address.*cannot be opened"):
            asyncio.run(coordinator.start())
        with pytest.raises(StorageError, match="not started"):
            _ = coordinator.engine
    # Its state is let go of: the next start, now that the port is free, takes it.
    with serving(Bench.of(3), tmp_path, prepare=at(address)):
        pass
