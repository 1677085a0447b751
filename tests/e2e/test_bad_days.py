"""What goes wrong on an operator's bad days, with every party a process: who is told what.

The days that need no processes are tested beside what they are about; the table is in
docs/how-to/run-a-coordinator.md.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator

import pytest
from e2e.commands import Command, commands
from e2e.kits import Kits, events_of, wait_for_event

pytestmark = pytest.mark.long

Start = Callable[..., Command]
OLDER = "import fedrec.wire.messages as messages; messages.PROTOCOL_VERSION = '7.0'"
WAITING, JOINED = "waiting_to_join", "joined"
FINISHED = "all rounds are published"


@pytest.fixture
def start() -> Iterator[Start]:
    with commands() as started:
        yield started


def finished(*clients: Command) -> None:
    """Check that clients took part to the end."""
    for client in clients:
        assert client.ended() == 0, client.told
        assert FINISHED in client.told


def refused(client: Command, code: str) -> str:
    """Return what a client said that ended by itself, without a traceback."""
    assert client.ended() != 0
    assert "Traceback" not in client.told
    _, marked, said = client.told.partition(f"error [{code}]: ")
    assert marked, client.told
    return said


def counted(coordinator: Command) -> list[int]:
    """Return how many clients each published round counted, as the log has it."""
    lines = [line for line in coordinator.told.splitlines() if "round published" in line]
    return [int(line.partition("counted=")[2].split()[0]) for line in lines]


def test_a_coordinator_that_is_killed_while_clients_enrol(tmp_path, start):
    """Who applied need not do so again, before the epoch that admits it and after."""
    kits = Kits(tmp_path, start)
    first = kits.coordinator()
    authority = kits.authority()
    clients = [kits.client("a")]
    clients[0].wait_for(WAITING)
    first.kill()
    # It applies to nobody, and its patience is no error.
    clients.append(kits.client("b"))
    clients[1].wait_for("unreachable")
    second = kits.coordinator("second")
    clients[1].wait_for(WAITING)
    wait_for_event(authority, "awaiting")
    second.kill()
    third = kits.coordinator("third")
    clients.append(kits.client("c"))
    wait_for_event(authority, "member admitted", label="c")
    third.kill()
    last = kits.coordinator("last")
    finished(*clients)
    assert last.ended() == 0, last.told
    assert counted(last) == [3] * 5
    admitted = [one["label"] for one in events_of(authority) if one["name"] == "member admitted"]
    assert sorted(admitted) == ["a", "b", "c"]


def test_a_kit_that_is_started_twice_and_one_that_was_copied(tmp_path, start):
    """The second of each is told; the first goes on, and nobody's data is counted twice."""
    kits = Kits(tmp_path, start)
    clients = kits.path / "clients"
    shutil.copytree(clients / "a", clients / "copy")
    coordinator = kits.coordinator()
    kits.authority()
    first = kits.client("a")
    first.wait_for(WAITING)

    said = refused(kits.client("a", "again"), "folder_in_use")
    assert f"is in use by process {first.process.pid} on" in said
    assert "Stop that process" in said

    said = refused(kits.client("copy"), "invitation_used")
    assert "This invitation was used already." in said
    assert "A kit is for one machine" in said and "fedrec provision --add" in said
    assert "client=a code=invitation_used" in coordinator.told

    others = [kits.client("b"), kits.client("c")]
    finished(first, *others)
    assert coordinator.ended() == 0, coordinator.told
    assert counted(coordinator) == [3] * 5
    assert kits.models("abc") == {kits.undisturbed()}


def test_a_folder_that_was_copied_after_it_enrolled(tmp_path, start):
    """The copy ends once the first one was heard, and the operator reads whose copy it is."""
    kits = Kits(tmp_path, start, total=8)
    coordinator = kits.coordinator()
    kits.authority()
    first, second = kits.client("a"), kits.client("b")
    third = kits.client("c")
    third.wait_for("round 1  published")
    third.interrupt()
    assert third.ended() == 130
    # As a machine is moved: stopped, copied, and then both are started.
    shutil.copytree(kits.path / "clients" / "c", kits.path / "clients" / "copy")
    in_the_copy = third.told.count("  published") + 1
    third = kits.client("c", "third again")
    third.wait_for(f"round {in_the_copy + 1}  sent")
    # So that the run is not over before the copy is here.
    second.process.send_signal(signal.SIGSTOP)
    try:
        said = refused(kits.client("copy"), "folder_is_old_or_copied")
    finally:
        second.process.send_signal(signal.SIGCONT)
    assert "it is an older copy, or another copy of it runs" in said
    assert "Run the newest copy of the folder, and only that one" in said
    finished(first, second, third)
    assert coordinator.ended() == 0, coordinator.told
    assert counted(coordinator) == [3] * 10
    assert kits.models("abc") == {kits.undisturbed()}
    lines = [one for one in coordinator.told.splitlines() if "remembers another update" in one]
    assert lines and all("client=c " in line for line in lines)


def test_a_client_of_an_older_release(tmp_path, start):
    """It is told which versions do not go together; once it is updated it is a member."""
    kits = Kits(tmp_path, start)
    coordinator = kits.coordinator()
    kits.authority()
    older = kits.client("c", "older", first=OLDER)
    clients = [kits.client("a"), kits.client("b")]
    said = refused(older, "version_mismatch")
    assert "The client's protocol version is 7.0, the coordinator speaks 8.0." in said
    assert said.count("Install the same fedrec version on both sides.") == 1
    assert "client=c code=version_mismatch" in coordinator.told
    finished(*clients, kits.client("c"))
    assert coordinator.ended() == 0, coordinator.told
    assert counted(coordinator) == [3] * 5
