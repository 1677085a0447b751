"""Certificates of another authority, and clocks that are wrong, with every party a process.

What a handshake does with them is tested in tests/scenarios/test_scenario_18_handshakes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.commands import Command, commands
from e2e.kits import Kits, fedrec, wait_for_event
from e2e.test_bad_days import WAITING, counted, finished, refused
from e2e.wrong_clock import wrong_clock

pytestmark = [pytest.mark.slow, pytest.mark.long]

Start = Callable[..., Command]
NOT_OURS = "The handshake failed: another authority issued the coordinator's certificate"


@pytest.fixture
def start() -> Iterator[Start]:
    with commands() as started:
        yield started


@contextmanager
def mistaken(path: Path, other: Path) -> Iterator[None]:
    """Have the content of another file in a file's place."""
    right = path.read_bytes()
    path.write_bytes(other.read_bytes())
    yield
    path.write_bytes(right)


def test_files_of_another_authority(tmp_path, start):
    """Each party is told which file it is, and works once the right one is back."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = (Kits(tmp_path / name, start) for name in ("ours", "theirs"))
    own = ours.path / "coordinator" / "coordinator.pem"
    with mistaken(own, theirs.path / "coordinator" / "coordinator.pem"):
        said = refused(ours.start_coordinator("mistaken"), "keys")
        assert "coordinator.certificate: " in said and "of another authority" in said
        assert "Take coordinator.pem and epoch.json of one key authority's folder." in said
    coordinator = ours.coordinator()

    kit = ours.path / "clients" / "a"
    with mistaken(kit / "invitation.pem", theirs.path / "clients" / "a" / "invitation.pem"):
        said = refused(ours.client("a", "mistaken a"), "keys")
        assert "client.invitation: " in said and "another key authority than" in said
        assert "Take both from the authority that invited this client." in said
    for name in "abc":
        client = ours.client(name)
        client.wait_for(WAITING)
        client.kill()
    wait_for_event(ours.authority(), "epoch delivered")
    client = ours.client("a", "a admitted")
    client.wait_for("preparing")
    client.kill()
    with mistaken(kit / "state" / "client.crt", theirs.path / "authority" / "operator.crt"):
        said = refused(ours.client("a", "mistaken member"), "keys")
        assert "client.certificate: " in said and "for another key" in said
        assert "Ask the key authority for the file again" in said
    with mistaken(kit / "authority.pub.json", theirs.path / "authority" / "authority.pub.json"):
        said = refused(ours.client("a", "mistaken authority"), "keys")
        assert "another authority issued it" in said
    ours.client("a", "a again").wait_for("preparing")

    # Whole kits of theirs that call our address cannot know better, and are told what to look at.
    theirs.address = ours.address
    foreign = theirs.client("a")
    foreign.wait_for(NOT_OURS)
    assert "client.authority_key of a client" in foreign.told
    lost = wait_for_event(theirs.authority(), "coordinator lost")
    assert lost["detail"].startswith(NOT_OURS)
    assert coordinator.process.poll() is None


def test_clocks_that_are_off_by_an_hour(tmp_path, start):
    """Kits that were just made on a clock that is ahead, and two hours between two parties."""
    kits = Kits(tmp_path, start, total=1, under=wrong_clock("+1h")["under"])
    coordinator = kits.coordinator(**wrong_clock("-1h"))
    kits.authority(**wrong_clock("+1h"))
    clients = [kits.client("a", **wrong_clock("+1h")), kits.client("b", **wrong_clock("-1h"))]
    finished(*clients, kits.client("c"))
    assert coordinator.ended() == 0, coordinator.told
    assert counted(coordinator) == [3] * 3
    assert kits.models("abc") == {kits.undisturbed()}


def test_an_authority_whose_clock_is_ahead_while_it_admits(tmp_path, start):
    """What it dated is good for nobody as yet; once its clock is right, another epoch mends it."""
    kits = Kits(tmp_path, start)
    kits.coordinator()
    clients = [kits.client(name) for name in "abc"]
    for client in clients:
        client.wait_for(WAITING)
    ahead = kits.authority("ahead", **wrong_clock("+3d"))
    for client in clients:
        said = refused(client, "certificate_expired")
        assert said.startswith("what the coordinator sent is valid from ")
        assert "If the key authority's clock was ahead" in said
    ahead.kill()
    fedrec(tmp_path, "keys", "rotate", "--into", "kits/authority")
    wait_for_event(kits.authority(), "epoch delivered")
    kits.client("a", "a again").wait_for("preparing")


def test_clocks_that_are_off_by_days(tmp_path, start):
    """Whoever has the wrong one is told what it says; at the other end it is one of three."""
    kits = Kits(tmp_path, start)
    early, late = wrong_clock("-2d"), wrong_clock("+15d")
    said = refused(kits.start_coordinator("early", **early), "certificate_expired")
    assert "coordinator.certificate: " in said and "This machine's clock reads" in said
    coordinator = kits.coordinator(**late)
    for name, clock in (("early a", early), ("late a", late)):
        said = refused(kits.client("a", name, **clock), "certificate_expired")
        assert "client.invitation: " in said and "This machine's clock reads" in said
        assert "Set this machine's clock" in said
    client = kits.client("a")
    client.wait_for("out of date by the coordinator's clock")
    coordinator.kill()
    # By the right clock the invitation is good, and the client still tries.
    kits.coordinator("coordinator again")
    client.wait_for(WAITING)
    authority = kits.authority("late authority", **late)
    lost = wait_for_event(authority, "applicant refused")
    assert "The invitation 'a' ran out at " in lost["detail"]
    assert "This machine's clock reads" in lost["detail"]
    authority.kill()
    wait_for_event(kits.authority(), "member admitted", label="a")
