"""Bad days, wrong days, and machines that can't be used.

The table of these days is in docs/how-to/run-a-coordinator.md. `/sys` is a folder in which even
root can't make anything.
"""

import shutil
import signal
import socket
from contextlib import contextmanager

import pytest
from world.kits import Kits, commands, events_of, fedrec, wait_for_event, wrong_clock

OLDER = "import fedrec.wire.messages as messages; messages.PROTOCOL_VERSION = '7.0'"
WAITING, JOINED = "waiting_to_join", "joined"
FINISHED = "all rounds are published"


def finished(*clients):
    """Check that clients took part to the end."""
    for client in clients:
        assert client.ended() == 0, client.output
        assert FINISHED in client.output


def refused(client, code):
    """Return what a client said that ended by itself, without a traceback."""
    assert client.ended() != 0
    assert "Traceback" not in client.output
    _, marked, text = client.output.partition(f"error [{code}]: ")
    assert marked, client.output
    return text


def counted(coordinator):
    """Return how many clients each published round counted, as the log has it."""
    lines = [line for line in coordinator.output.splitlines() if "round published" in line]
    return [int(line.partition("counted=")[2].split()[0]) for line in lines]


@pytest.mark.long
def test_a_coordinator_that_is_killed_while_clients_enrol(tmp_path, start):
    """Who applied need not do so again, before the epoch that admits it and after."""
    kits = Kits(tmp_path, start)
    first = kits.coordinator()
    authority = kits.authority()
    clients = [kits.client("a")]
    clients[0].wait_for(WAITING)
    first.kill()
    # It has nowhere to apply, and its patience is no error.
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
    assert last.ended() == 0, last.output
    assert counted(last) == [3] * 5
    admitted = [one["label"] for one in events_of(authority) if one["name"] == "member admitted"]
    assert sorted(admitted) == ["a", "b", "c"]


@pytest.mark.long
def test_a_kit_that_is_started_twice_and_one_that_was_copied(tmp_path, start):
    """The second of each is refused. The first continues, and no data is counted twice."""
    kits = Kits(tmp_path, start)
    clients = kits.path / "clients"
    shutil.copytree(clients / "a", clients / "copy")
    coordinator = kits.coordinator()
    kits.authority()
    first = kits.client("a")
    first.wait_for(WAITING)

    text = refused(kits.client("a", "again"), "folder_in_use")
    assert f"is in use by process {first.process.pid} on" in text
    assert "Stop that process" in text

    text = refused(kits.client("copy"), "invitation_used")
    assert "This invitation was used already." in text
    assert "A kit works on one machine only" in text and "fedrec provision --add" in text
    assert "client=a code=invitation_used" in coordinator.output

    others = [kits.client("b"), kits.client("c")]
    finished(first, *others)
    assert coordinator.ended() == 0, coordinator.output
    assert counted(coordinator) == [3] * 5
    assert kits.models("abc") == {kits.undisturbed()}


@pytest.mark.long
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
    in_the_copy = third.output.count("  published") + 1
    third = kits.client("c", "third again")
    third.wait_for(f"round {in_the_copy + 1}  sent")
    # So that the run is not over before the copy is here.
    second.process.send_signal(signal.SIGSTOP)
    try:
        text = refused(kits.client("copy"), "folder_is_old_or_copied")
    finally:
        second.process.send_signal(signal.SIGCONT)
    assert "It is an older copy, or another copy runs" in text
    assert "Run the newest copy of the folder, and only that one" in text
    finished(first, second, third)
    assert coordinator.ended() == 0, coordinator.output
    assert counted(coordinator) == [3] * 10
    assert kits.models("abc") == {kits.undisturbed()}
    lines = [one for one in coordinator.output.splitlines() if "remembers another update" in one]
    assert lines and all("client=c " in line for line in lines)


@pytest.mark.long
def test_a_client_of_an_older_release(tmp_path, start):
    """It is told which versions do not go together; once it is updated it is a member."""
    kits = Kits(tmp_path, start)
    coordinator = kits.coordinator()
    kits.authority()
    older = kits.client("c", "older", first=OLDER)
    clients = [kits.client("a"), kits.client("b")]
    text = refused(older, "version_mismatch")
    assert "The client's protocol version is 7.0, the coordinator speaks 8.0." in text
    assert text.count("Install the same fedrec version on both sides.") == 1
    assert "client=c code=version_mismatch" in coordinator.output
    finished(*clients, kits.client("c"))
    assert coordinator.ended() == 0, coordinator.output
    assert counted(coordinator) == [3] * 5


NOT_OURS = "The handshake failed: another authority issued the coordinator's certificate"


@contextmanager
def mistaken(path, other):
    """Have the content of another file in a file's place."""
    right = path.read_bytes()
    path.write_bytes(other.read_bytes())
    yield
    path.write_bytes(right)


@pytest.mark.slow
@pytest.mark.long
def test_files_of_another_authority(tmp_path, start):
    """Each party is told which file it is, and works once the right one is back."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = (Kits(tmp_path / name, start) for name in ("ours", "theirs"))
    own = ours.path / "coordinator" / "coordinator.pem"
    with mistaken(own, theirs.path / "coordinator" / "coordinator.pem"):
        text = refused(ours.start_coordinator("mistaken"), "keys")
        assert "coordinator.certificate: " in text and "from different authorities" in text
        assert "Take coordinator.pem and epoch.json from the same key authority's folder." in text
    coordinator = ours.coordinator()

    kit = ours.path / "clients" / "a"
    with mistaken(kit / "invitation.pem", theirs.path / "clients" / "a" / "invitation.pem"):
        text = refused(ours.client("a", "mistaken a"), "keys")
        assert "client.invitation: " in text and "a different key authority than" in text
        assert "Take both from the authority that invited this client." in text
    for name in "abc":
        client = ours.client(name)
        client.wait_for(WAITING)
        client.kill()
    wait_for_event(ours.authority(), "epoch delivered")
    client = ours.client("a", "a admitted")
    client.wait_for("preparing")
    client.kill()
    with mistaken(kit / "state" / "client.crt", theirs.path / "authority" / "operator.crt"):
        text = refused(ours.client("a", "mistaken member"), "keys")
        assert "client.certificate: " in text and "for another key" in text
        assert "Ask the key authority for the file again" in text
    with mistaken(kit / "authority.pub.json", theirs.path / "authority" / "authority.pub.json"):
        text = refused(ours.client("a", "mistaken authority"), "keys")
        assert "another authority issued it" in text
    ours.client("a", "a again").wait_for("preparing")

    # Whole kits of theirs that call our address cannot know better, and are told what to look at.
    theirs.address = ours.address
    foreign = theirs.client("a")
    foreign.wait_for(NOT_OURS)
    assert "client.authority_key of a client" in foreign.output
    lost = wait_for_event(theirs.authority(), "coordinator lost")
    assert lost["detail"].startswith(NOT_OURS)
    assert coordinator.process.poll() is None


@pytest.mark.slow
@pytest.mark.long
def test_clocks_that_are_off_by_an_hour(tmp_path, start):
    """Kits that were just made on a clock that is ahead, and two hours between two parties."""
    kits = Kits(tmp_path, start, total=1, under=wrong_clock("+1h")["under"])
    coordinator = kits.coordinator(**wrong_clock("-1h"))
    kits.authority(**wrong_clock("+1h"))
    clients = [kits.client("a", **wrong_clock("+1h")), kits.client("b", **wrong_clock("-1h"))]
    finished(*clients, kits.client("c"))
    assert coordinator.ended() == 0, coordinator.output
    assert counted(coordinator) == [3] * 3
    assert kits.models("abc") == {kits.undisturbed()}


@pytest.mark.slow
@pytest.mark.long
def test_an_authority_whose_clock_is_ahead_while_it_admits(tmp_path, start):
    """What it dated is not valid yet; once its clock is right, another epoch mends it."""
    kits = Kits(tmp_path, start)
    kits.coordinator()
    clients = [kits.client(name) for name in "abc"]
    for client in clients:
        client.wait_for(WAITING)
    ahead = kits.authority("ahead", **wrong_clock("+3d"))
    for client in clients:
        text = refused(client, "certificate_expired")
        assert text.startswith("The received certificate is valid from ")
        assert "If the key authority's clock was ahead" in text
    ahead.kill()
    fedrec(tmp_path, "keys", "rotate", "--into", "kits/authority")
    wait_for_event(kits.authority(), "epoch delivered")
    kits.client("a", "a again").wait_for("preparing")


@pytest.mark.slow
@pytest.mark.long
def test_clocks_that_are_off_by_days(tmp_path, start):
    """Whoever has the wrong one is told what it says; at the other end it is one of three."""
    kits = Kits(tmp_path, start)
    early, late = wrong_clock("-2d"), wrong_clock("+15d")
    text = refused(kits.start_coordinator("early", **early), "certificate_expired")
    assert "coordinator.certificate: " in text and "This machine's clock reads" in text
    coordinator = kits.coordinator(**late)
    for name, clock in (("early a", early), ("late a", late)):
        text = refused(kits.client("a", name, **clock), "certificate_expired")
        assert "client.invitation: " in text and "This machine's clock reads" in text
        assert "Set this machine's clock" in text
    client = kits.client("a")
    client.wait_for("out of date by the coordinator's clock")
    coordinator.kill()
    # By the right clock the invitation is good, and the client still tries.
    kits.coordinator("coordinator again")
    client.wait_for(WAITING)
    authority = kits.authority("late authority", **late)
    lost = wait_for_event(authority, "applicant refused")
    assert "The invitation 'a' expired at " in lost["detail"]
    assert "This machine's clock reads" in lost["detail"]
    authority.kill()
    wait_for_event(kits.authority(), "member admitted", label="a")


NOWHERE = "/sys/kernel"
GARBAGE = bytes(range(256)) * 40


@pytest.fixture
def run_fedrec(fedrec, tmp_path, monkeypatch):
    """Call a command that refuses; return what it said on stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        outcome = fedrec(*arguments)
        assert (outcome.code, outcome.out) == (2, ""), outcome.err
        return outcome.err

    return run


@pytest.fixture
def kits(tmp_path):
    """The kits of a trial with three clients."""
    with commands() as start:
        return Kits(tmp_path, start).path


def coordinator(kits, **changes):
    """Change the coordinator's settings, and return their path."""
    path = kits / "coordinator" / "coordinator.toml"
    lines = path.read_text().splitlines()
    for name, value in changes.items():
        (at,) = (at for at, line in enumerate(lines) if line.startswith(f"{name} = "))
        lines[at] = f"{name} = {value}"
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.slow
def test_folders_where_nothing_can_be_written(kits, run_fedrec):
    client = str(kits / "clients" / "a" / "client.toml")
    settings = coordinator(kits, state=f'"{NOWHERE}"')
    below = f"{client}/state"
    for named, arguments in {
        f"coordinator.state: '{NOWHERE}' cannot be written": ["coordinator", "run", settings],
        f"client.state: '{below}' cannot be created": ["client", "run", client, "--state", below],
        f"client.state: '{NOWHERE}/x' cannot be created": [
            "client", "run", client, "--state", f"{NOWHERE}/x",
        ],
        f"--into: '{NOWHERE}' cannot be written": ["keys", "authority", "run", "127.0.0.1:1",
            "--once", "--into", NOWHERE],
        f"--into: '{NOWHERE}/x' cannot be created": ["provision", "--data", "data.csv",
            "--into", f"{NOWHERE}/x"],
    }.items():  # fmt: skip
        text = run_fedrec(*arguments)
        assert text.startswith(f"error [settings]: {named}"), text
        assert text.endswith("\n  Choose a folder in which this user may write.\n")


@pytest.mark.slow
def test_a_recording_where_nothing_can_be_written(kits, run_fedrec):
    text = run_fedrec("coordinator", "run", coordinator(kits), "--record-wire", NOWHERE)
    assert text.startswith(f"error [settings]: {NOWHERE}/wire-"), text


@pytest.mark.slow
def test_a_port_that_another_program_has(kits, run_fedrec):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = run_fedrec("coordinator", "run", coordinator(kits, port=str(port)))
    assert text.startswith(f"error [settings]: coordinator.port: 127.0.0.1:{port} cannot be")
    assert "choose another port" in text
    assert len(text.splitlines()) == 2, text


@pytest.mark.slow
def test_files_that_are_no_text(kits, run_fedrec):
    catalogue = kits / "coordinator" / "catalogue.csv"
    catalogue.write_bytes(GARBAGE)
    text = run_fedrec("coordinator", "run", coordinator(kits))
    assert text.startswith(f"error [data]: The catalogue {catalogue} is not UTF-8 text.")
    data = kits / "clients" / "a" / "interactions.csv"
    data.write_bytes(GARBAGE)
    text = run_fedrec("client", "run", str(kits / "clients" / "a" / "client.toml"))
    assert text.startswith(f"error [data]: {data}, line 1, ") and "not a table of text" in text
    # Nothing was applied for with data that cannot be read.
    assert "starting" not in text
    text = run_fedrec(
        "provision", "other.toml", "--data", str(data), "--clients", "a,b,c",
        "--address", "127.0.0.1:1", "--into", str(kits.parent / "others"),
    )  # fmt: skip
    assert text.startswith(f"error [data]: {data}, line 1, ") and "not a table of text" in text
