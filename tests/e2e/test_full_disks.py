"""Disks that fill in the middle of a run: their party says so, waits, and loses nothing.

What the coordinator then refuses is tested in tests/scenarios/test_scenario_13_full_disk.py, where
files of a client are bounded, too; here each disk is one, as small as it has to be.
"""

import pytest
from e2e.test_bad_days import counted, finished
from world.clock import poll
from world.kits import Kits, SmallDisk, events_of, fedrec, wait_for_event

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROUNDS = 8
KIB = 2048
RESERVE = 262_144
FEDRAP = 'name = "fedrap"\ndim = 4\nlocal_epochs = 1'


def test_the_key_authority_s_disk_fills(tmp_path, start):
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
    assert "until there is space." in full["detail"]
    opened = [event["round"] for event in events_of(authority) if event["name"] == "sum revealed"]
    disk.free(authority)
    finished(*clients)
    assert coordinator.ended() == 0, coordinator.output
    assert authority.process.poll() is None, authority.output
    assert counted(coordinator) == [3] * (ROUNDS + 2)
    revealed = [event["round"] for event in events_of(authority) if event["name"] == "sum revealed"]
    assert revealed == sorted(set(revealed)) and revealed[: len(opened)] == opened
    assert kits.models("abc") == {kits.undisturbed()}
    assert "Traceback" not in authority.output


def test_a_client_s_disk_fills_under_private_tables(tmp_path, start):
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
    assert "until there is space." in client.output
    published = len(counted(coordinator))
    assert published < ROUNDS + 2
    disk.free(client)
    finished(client, *others)
    assert coordinator.ended() == 0, coordinator.output
    assert counted(coordinator) == [3] * (ROUNDS + 2)
    # What it trained after that started from the tables that it had kept.
    assert kits.models("ab") == {kits.undisturbed()}
    assert "Traceback" not in client.output


def test_a_coordinator_that_is_killed_while_its_disk_is_full(tmp_path, start):
    """The next one starts on what is left of the reserve; the round goes on once there is space."""
    kits = Kits(tmp_path, start, total=ROUNDS)
    kits.set_coordinator(f"reserve_bytes = {RESERVE}")
    # Before its folder is another one for it, every client learns where it listens.
    kits.coordinator("before").kill()
    disk = SmallDisk(kits.path / "coordinator", 2 * KIB)
    with disk.kept():
        first = kits.coordinator("first", under=disk.under)
        kits.authority()
        clients = [kits.client(name) for name in "abc"]
        clients[0].wait_for("round 2  published")
        disk.fill(first, but=RESERVE // 2)
        poll(lambda: "bytes are free" in first.output, "an upload that is refused")
        assert first.output.count("disk full") == 1, "a warning, and not one for each try"
        operator = str(kits.path / "authority" / "operator.pem")
        shown = fedrec(tmp_path, "status", kits.address, "--operator", operator)
        assert "\ndisk " in shown and "bytes are free" in shown
        first.kill()
        second = kits.coordinator("second", under=disk.under)
        poll(lambda: "bytes are free" in second.output, "an upload that is refused again")
        disk.free(second)
        finished(*clients)
        assert second.ended() == 0, second.output
    assert len(counted(first)) + len(counted(second)) == ROUNDS + 2
    assert set(counted(first) + counted(second)) == {3}
    assert kits.models("abc") == {kits.undisturbed()}
    for client in clients:
        assert client.output.count("Storage is unavailable") <= 2, "once for each coordinator"
