"""Kits: one folder a party, with its own files alone, and members only once they applied."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from authority.members.test_guests import World, people
from world.clock import FakeClock
from world.federation import rotate

from fedrec.cli.main import main
from fedrec.data import Catalogue, generate, read_interactions
from fedrec.data.writing import write_interactions
from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import Credentials, hosts_of
from fedrec.identity.identity import Identity
from fedrec.identity.public import PublicIdentity
from fedrec.settings.validation import load_settings
from fedrec.wire.admin_link import RunStatus
from fedrec_authority.delivery import AuthorityEvent, Delivery
from fedrec_authority.folder.authority_folder import AuthorityFolder

pytestmark = pytest.mark.slow

NOW = int(time.time())
USERS, CLIENTS = 40, ("north", "south", "west")
MOST_FILES = 6


@pytest.fixture
def data(tmp_path):
    made = generate(n_users=USERS, n_items=60, n_clusters=4, interactions_per_user=12, seed=5)
    path = tmp_path / "data.csv"
    write_interactions(path, made.interactions)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def call(*arguments):
    """Run `fedrec provision ARGUMENTS`; return its exit code."""
    return run("provision", *arguments)


def run(*arguments):
    """Run `fedrec ARGUMENTS`; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    code = ended.value.code
    return code if isinstance(code, int) else 0


def trial(data, *more):
    return call(
        "--data", data, "--clients", ",".join(CLIENTS), "--address", "127.0.0.1:7447", *more
    )


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_trial_from_one_file(here, data, capsys):
    assert trial(data, "--json") == 0
    seen = json.loads(capsys.readouterr().out)
    assert [kit["party"] for kit in seen["kits"]] == ["coordinator", *CLIENTS]
    whole, _ = read_interactions(data)
    dealt: list[str] = []
    for name in CLIENTS:
        kit = here / "kits" / "clients" / name
        assert files(kit) == {
            "client.toml", "authority.pub.json", "invitation.pem", "interactions.csv",
        }  # fmt: skip
        assert kit.stat().st_mode & 0o777 == 0o700
        assert (kit / "interactions.csv").stat().st_mode & 0o777 == 0o600
        part, _ = read_interactions(kit / "interactions.csv")
        dealt += set(part.user_ids)
        settings = load_settings(kit / "client.toml")
        assert settings.client.label == name and settings.client.coordinator == "127.0.0.1:7447"
        assert settings.plan == load_settings(here / "federation.toml").plan
    assert sorted(dealt) == sorted(set(whole.user_ids)), "every user is with one client"
    assert len(files(here / "kits" / "coordinator")) <= MOST_FILES
    first = AuthorityFolder(here / "kits" / "authority").newest
    assert first is not None and first.roster.members == ()


def test_no_kit_has_what_is_another_partys(here, data):
    assert trial(data) == 0
    kits = here / "kits"
    secrets = {
        path: path.read_bytes()
        for path in (kits / "authority").rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    }
    assert len(secrets) == 2 + len(CLIENTS), "coordinator, operator, invitations"
    authority = (kits / "authority" / "authority" / "authority.key").read_text()
    key = json.loads(authority)["signing_key"]
    for kit in (kits / "coordinator", *(kits / "clients" / name for name in CLIENTS)):
        held = {path.name: path.read_bytes() for path in kit.rglob("*") if path.is_file()}
        assert not any(key.encode() in content for content in held.values())
        private = [name for name, content in held.items() if b"PRIVATE KEY" in content]
        own = "coordinator.pem" if kit.name == "coordinator" else "invitation.pem"
        assert private == [own]
    invitations = {(kits / "clients" / name / "invitation.pem").read_bytes() for name in CLIENTS}
    assert len(invitations) == len(CLIENTS)


def test_a_kit_as_one_file(here, data, capsys):
    assert trial(data, "--archive", "--json") == 0
    for kit in json.loads(capsys.readouterr().out)["kits"]:
        file = here / kit["archive"]
        assert file.stat().st_mode & 0o777 == 0o600
        assert hashlib.sha256(file.read_bytes()).hexdigest() == kit["sha256"]
        carried = here / "carried" / kit["party"]
        with tarfile.open(file) as packed:
            assert {(entry.uid, entry.uname) for entry in packed} == {(0, "")}
        carried.mkdir(parents=True)
        subprocess.run(["tar", "xzf", file], cwd=carried, check=True)
        folder = here / kit["folder"]
        assert files(carried / folder.name) == files(folder)
        assert not open_to_others(carried / folder.name)
        for name in files(folder):
            assert (carried / folder.name / name).read_bytes() == (folder / name).read_bytes()
    assert call("--add", "east", "--archive") == 0
    (seen,) = re.findall(r"east\.tar\.gz: SHA-256 ([0-9a-f]{64})", capsys.readouterr().out)
    east = here / "kits" / "clients" / "east.tar.gz"
    assert seen == hashlib.sha256(east.read_bytes()).hexdigest()


def open_to_others(folder):
    """Return what others than its owner could enter, read or change."""
    return [str(path) for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_kits_are_their_owners_whatever_the_umask(here, data, umask):
    before = os.umask(umask)
    try:
        assert trial(data, "--into", "new/kits") == 0
        assert call("--add", "east", "--into", "new/kits") == 0
        assert call("--operator", "maria", "--into", "new/kits") == 0
    finally:
        os.umask(before)
    assert open_to_others(here / "new" / "kits" / "coordinator") == []
    assert open_to_others(here / "new" / "kits" / "clients") == []
    # What the authority hands out stays readable, in folders that only their owner enters.
    handed_out = {Path(path) for path in open_to_others(here / "new")}
    assert all(path.is_file() for path in handed_out)
    assert {path.name for path in handed_out if path.suffix != ".crt"} == {
        "00000001.json", "authority.pub.json", "epoch.json", "identity.pub.json",
    }  # fmt: skip


def test_clients_with_data_of_their_own(here, data):
    whole, _ = read_interactions(data)
    Catalogue.from_interactions(whole).save(here / "items.csv")
    given = ("--clients", ",".join(CLIENTS), "--address", "fedrec.example:7447")
    assert call("--catalogue", "items.csv", *given) == 0
    kits = here / "kits"
    assert not list(kits.rglob("interactions.csv"))
    coordinator = load_settings(kits / "coordinator" / "coordinator.toml").coordinator
    assert (coordinator.host, coordinator.port) == ("0.0.0.0", 7447)
    assert "fedrec.example" in hosts_at(kits)
    # The file that was written says it all: the same kits once more, elsewhere.
    assert call("federation.toml", "--into", "again") == 0
    assert files(here / "again" / "clients") == files(kits / "clients")


def hosts_at(kits):
    """Return the names and addresses in the coordinator's certificate."""
    made = Credentials.load(kits / "coordinator" / "coordinator.pem", "it")
    return hosts_of(made.certificate)


@pytest.mark.parametrize(
    ("address", "passed_on", "listens_at", "named"),
    [
        ("[0::1]:7447", "[::1]:7447", "::1", "::1"),
        ("[2001:db8::7]:7447", "[2001:db8::7]:7447", "0.0.0.0", "2001:db8::7"),
        ("[fe80::1%eth0]:7447", "[fe80::1%eth0]:7447", "0.0.0.0", "fe80::1"),
        (
            "b\xfccher.example:7447",
            "xn--bcher-kva.example:7447",
            "0.0.0.0",
            "xn--bcher-kva.example",
        ),
    ],
)
def test_addresses_in_kits(here, data, address, passed_on, listens_at, named, capsys):
    assert trial(data, "--address", address, "--json") == 0
    assert json.loads(capsys.readouterr().out)["authority"].split()[4] == passed_on
    kits = here / "kits"
    client = load_settings(kits / "clients" / "north" / "client.toml").client
    assert client.coordinator == passed_on
    coordinator = load_settings(kits / "coordinator" / "coordinator.toml").coordinator
    assert (coordinator.host, coordinator.port) == (listens_at, 7447)
    assert set(hosts_at(kits)) == {named, "localhost", "127.0.0.1", "::1"}
    # And later, for another one.
    assert run("keys", "rotate", "--into", kits / "authority", "--host", "[::2]") == 0
    made = Credentials.load(kits / "authority" / "coordinator.pem", "it")
    assert "::2" in hosts_of(made.certificate)


@pytest.mark.parametrize(
    "address",
    ["https://fedrec.example:7447", "0.0.0.0:7447", "[::]:7447", "my_host:7447", ":7447",
     "fedrec.example:7447/x", "me@fedrec.example:7447", "fedrec example:7447", "fedrec.example:0",
     "fedrec.example:65536", "[::1]x:7447"],
)  # fmt: skip
def test_an_address_that_cannot_be_called_makes_nothing(here, data, address, capsys):
    before = files(here)
    assert trial(data, "--address", address) == 2
    seen = capsys.readouterr().err
    assert "--address: '" in seen and ("Write" in seen or "Use" in seen)
    assert files(here) == before and not (here / "kits").exists()
    (here / "federation.toml").write_text(f"[parties]\naddress = {json.dumps(address)}\n")
    assert call("--data", data, "--clients", "a,b,c") == 2
    assert "parties.address: '" in capsys.readouterr().err
    assert not (here / "kits").exists()
    assert run("keys", "rotate", "--host", address.removesuffix(":7447") or "me@") == 2
    assert "--host: '" in capsys.readouterr().err


def test_one_more_client(here, data, capsys):
    assert call("--add", "east") == 2
    refused = capsys.readouterr().err
    assert "federation.toml --add east --into kits" in refused
    assert "fedrec init" not in refused, "another plan than the others'"
    assert trial(data) == 0
    capsys.readouterr()
    assert call("--add", "east") == 0
    assert "  fedrec client run kits/clients/east/client.toml\n" in capsys.readouterr().out
    assert files(here / "kits" / "clients" / "east") == {
        "client.toml", "authority.pub.json", "invitation.pem",
    }  # fmt: skip
    before = files(here / "kits")
    assert call("--add", "../east") == 2
    assert files(here / "kits") == before
    # Its invitation was lost on the way, or ran out.
    lost = (here / "kits" / "clients" / "east" / "invitation.pem").read_bytes()
    capsys.readouterr()
    assert call("--add", "east") == 0
    assert "This revokes the earlier invitation" in capsys.readouterr().out
    assert (here / "kits" / "clients" / "east" / "invitation.pem").read_bytes() != lost
    assert files(here / "kits") == before


def test_one_more_client_calls_the_address_of_the_others(here, data, capsys):
    assert trial(data) == 0
    settings = here / "federation.toml"
    text = settings.read_text()
    settings.write_text(text.replace('address = "127.0.0.1:7447"', ""))
    assert call("--add", "east") == 0, "the default is their address"
    for kit in (here / "kits" / "clients").glob("*/client.toml"):
        kit.write_text(kit.read_text().replace("127.0.0.1:7447", "127.0.0.1:7557"))
    assert call("--add", "east") == 2
    assert "Add --address 127.0.0.1:7557" in capsys.readouterr().err
    assert call("--add", "east", "--address", "127.0.0.1:7557") == 0
    east = here / "kits" / "clients" / "east" / "client.toml"
    assert 'coordinator = "127.0.0.1:7557"' in east.read_text()


def test_one_more_client_that_would_wait_for_others(here, data, capsys, monkeypatch):
    """The first members are summed together already; one newcomer makes no cell."""
    assert trial(data) == 0
    world = World(here / "running")
    world.join(*people(3))
    monkeypatch.setattr(AuthorityFolder, "last_roster", world.roster)
    capsys.readouterr()
    assert call("--add", "east") == 0
    seen = capsys.readouterr().out.splitlines()[-1]
    assert seen.startswith("Once it has joined, east waits: newcomers are summed with at least 2 ")
    assert "2 more have to join. To invite one, run `fedrec provision --add NAME`" in seen


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--clients", "a,b", "--address", "127.0.0.1:1"), "fewer than 3"),
        (("--clients", "a,A,c", "--address", "127.0.0.1:1"), "--clients"),
        (("--clients", "a,b/../c,d", "--address", "127.0.0.1:1"), "--clients"),
        (("--clients", "a,b,c", "--address", "nowhere"), "--address"),
        (("--clients", "a,b,c"), "does not exist"),
        (("--clients", "41", "--address", "127.0.0.1:1"), "40 users for 41 clients"),
    ],
)
def test_wrong_words_make_no_kit(here, data, arguments, text, capsys):
    assert call("--data", data, *arguments) == 2
    assert text in " ".join(capsys.readouterr().err.split())
    assert not (here / "kits").exists()


def test_the_catalogue_of_other_data_makes_no_kit(here, data, capsys):
    Catalogue.of(["x"]).save(data.parent / "catalogue.csv")
    assert trial(data) == 5
    assert "catalogue.csv is not the catalogue of these data" in capsys.readouterr().err
    assert not (here / "kits").exists()


def test_a_second_call_and_a_coordinators_folder_are_refused(here, data, capsys):
    assert trial(data) == 0
    before = {path: path.read_bytes() for path in (here / "kits").rglob("*") if path.is_file()}
    assert call("federation.toml", "--data", data) == 5
    assert "--add NAME" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in (here / "kits").rglob("*") if p.is_file()} == before
    used = here / "used"
    used.mkdir()
    (used / "coordinator.sqlite").touch()
    assert call("federation.toml", "--data", data, "--into", used) == 5
    assert "coordinator" in capsys.readouterr().err and files(used) == {"coordinator.sqlite"}


class FakeCoordinator:
    """Relays applications and takes epochs."""

    def __init__(self, epoch):
        self.epoch = epoch
        self.waiting: list[SignedApplication] = []
        self.members: list[int] = []

    def status(self):
        values = dict.fromkeys(
            ("published_round", "rounds_published", "rounds_planned", "rounds_abandoned",
             "clients_seen", "clients_in_roster", "last_event", "next_epoch"), 0,
        )  # fmt: skip
        names = dict.fromkeys(("federation", "run", "protection", "finish_reason", "waits_for"), "")
        more = {"authority_heard": 0.0}
        return RunStatus(
            **values, **names, **more, epoch=self.epoch, finished=False, current=None  # type: ignore[arg-type]
        )  # fmt: skip

    def applicants(self):
        return self.waiting

    def install_epoch(self, bundle):
        found = json.loads(json.loads(bundle)["roster"])
        self.epoch = found["epoch"]
        self.members.append(len(found["members"]))
        return True


@pytest.mark.parametrize("rotated", [False, True])
def test_the_first_members_begin_together(here, data, rotated):
    """Unless the authority's people say that it begins without those who did not come."""
    assert trial(data) == 0
    folder = AuthorityFolder(here / "kits" / "authority")
    link, events = FakeCoordinator(epoch=1), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    for number, name in enumerate(CLIENTS, start=1):
        delivery.look()
        assert link.members == []
        own = Identity.create(name)
        kit = here / "kits" / "clients" / name / "invitation.pem"
        invitation = Credentials.load(kit, "client.invitation")
        link.waiting.append(SignedApplication.make(own.public, invitation))
        if rotated and number == 2:
            delivery.look()
            rotate(folder)
            delivery.look()
            assert link.members == [2]
            return
    seen = [event.detail for event in events if event.name == "awaiting"]
    assert seen == [
        "south, west to apply. To begin without them, run `fedrec keys rotate`",
        "west to apply. To begin without them, run `fedrec keys rotate`",
    ]
    delivery.look()
    assert link.members == [3]
    assert all(isinstance(member, PublicIdentity) for member in folder.membership.present)


def test_on_one_machine_nothing_is_carried(here, data, capsys):
    """What is printed can be typed where one stands."""
    assert trial(data, "--into", "my kits") == 0
    seen = capsys.readouterr().out
    assert "carry" not in seen
    commands = [shlex.split(line) for line in re.findall(r"^  (fedrec .*)$", seen, re.MULTILINE)]
    started = [command[-1] for command in commands if command[2] == "run"]
    assert len(started) == 4
    assert all((here / file).is_file() for file in started)


def test_six_commands_for_three_clients(here, data, capsys):
    """Provision, and then one for each party: coordinator, authority and three clients."""
    whole, _ = read_interactions(data)
    Catalogue.from_interactions(whole).save(here / "items.csv")
    given = ("--clients", ",".join(CLIENTS), "--address", "fedrec.example:7447")
    assert call("--catalogue", "items.csv", *given) == 0
    seen = capsys.readouterr().out
    commands = re.findall(r"^  (fedrec .*)$", seen, flags=re.MULTILINE)
    separate = [command for command in commands if not command.startswith("fedrec up")]
    assert len(separate) + 1 == 6
    assert all(shlex.split(command)[0] == "fedrec" for command in separate)
    assert "kits/coordinator: carry it to fedrec.example:7447, and run there" in seen
    assert "  fedrec coordinator run coordinator/coordinator.toml\n" in seen
    assert "  fedrec client run north/client.toml\n" in seen
