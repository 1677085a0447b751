"""Disks that fill in the middle of a run: their party says so, waits, and loses nothing.

The coordinator's is tested in tests/scenarios/test_scenario_13_full_disk.py, where files of a
client are bounded, too; here each disk is one, as small as it has to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.commands import Command, commands
from e2e.kits import Kits, events_of, wait_for_event
from e2e.small_disk import SmallDisk
from e2e.test_bad_days import counted, finished
from integration.support.bench import N_ITEMS, Accepted, compute

from fedrec.config.loading import load_settings
from fedrec.data.settings import DataSettings
from fedrec.data.source import read_users
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.wire.messages import RoundKind
from fedrec_client.state.private_store import PrivateStore

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROUNDS = 4
KIB = 2048
FEDRAP = 'name = "fedrap"\ndim = 4\nlocal_epochs = 1'
Start = Callable[..., Command]


@pytest.fixture
def start() -> Iterator[Start]:
    with commands() as started:
        yield started


def model_of(kits: Kits, name: str) -> bytes:
    store = PrivateStore(kits.state(name), read_only=True)
    assert store.state.shared is not None
    return SharedState.from_bytes(store.read(store.state.shared)).canonical_bytes()


def undisturbed(kits: Kits) -> bytes:
    """Return the model as one party that holds everybody computes it."""
    plan = load_settings(kits.path / "clients" / "a" / "client.toml").plan
    users, items = read_users(DataSettings(path=str(kits.path.parent / "data.csv")), reader="this")
    assert len(items) == N_ITEMS
    kinds: list[RoundKind] = ["count", *(["train"] * ROUNDS), "evaluate"]
    rounds = [
        Accepted(round=RoundId(number), kind=kind, clients=frozenset({0}))
        for number, kind in enumerate(kinds, start=1)
    ]
    return compute(plan, [users], rounds).model


def test_the_key_authority_s_disk_fills(tmp_path: Path, start: Start) -> None:
    """No sum is opened while what is said of it could not be kept; then the run goes on."""
    kits = Kits(tmp_path, start, total=ROUNDS)
    coordinator = kits.coordinator()
    disk = SmallDisk(kits.path / "authority", KIB)
    authority = kits.authority(under=disk.under)
    clients = [kits.client(name) for name in "abc"]
    wait_for_event(authority, "sum revealed", round=2)
    disk.fill(authority)
    full = wait_for_event(authority, "disk full")
    assert "cannot be written" in full["detail"] and "Free disk space" in full["detail"]
    assert "Tried again until there is some." in full["detail"]
    opened = [event["round"] for event in events_of(authority) if event["name"] == "sum revealed"]
    disk.free(authority)
    finished(*clients)
    assert coordinator.ended() == 0, coordinator.told
    assert authority.process.poll() is None, authority.told
    assert counted(coordinator) == [3] * (ROUNDS + 2)
    told = [event["round"] for event in events_of(authority) if event["name"] == "sum revealed"]
    assert told == sorted(set(told)) and told[: len(opened)] == opened
    assert {model_of(kits, name) for name in "abc"} == {undisturbed(kits)}
    assert "Traceback" not in authority.told


def test_a_client_s_disk_fills_under_private_tables(tmp_path: Path, start: Start) -> None:
    """Its users' tables are those of the last round that it kept, and no round goes without it."""
    kits = Kits(tmp_path, start, algorithm=FEDRAP, total=ROUNDS)
    coordinator = kits.coordinator()
    kits.authority()
    disk = SmallDisk(kits.path / "clients" / "c", KIB)
    client = kits.client("c", under=disk.under)
    others = [kits.client("a"), kits.client("b")]
    client.wait_for("round 2  sent")
    disk.fill(client)
    client.wait_for("disk_full")
    assert "Tried again until there is some." in client.told
    published = len(counted(coordinator))
    assert published < ROUNDS + 2
    disk.free(client)
    finished(client, *others)
    assert coordinator.ended() == 0, coordinator.told
    assert counted(coordinator) == [3] * (ROUNDS + 2)
    # What it trained after that started from the tables that it had kept.
    assert {model_of(kits, name) for name in "ab"} == {undisturbed(kits)}
    assert "Traceback" not in client.told
