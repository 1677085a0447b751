"""`fedrec keys rotate --new-ca` in the middle of a run: processes, and files carried by hand."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.commands import Command, commands, poll

from fedrec.data import generate
from fedrec.data.writing import write_interactions
from fedrec.identity.certificates import Credentials, hosts_of
from fedrec.wire.admin_link import AdminLink

pytestmark = pytest.mark.slow

SETTINGS = """
[federation]
name = "stolen"
maximum_users = 64
minimum_item_users = 6
[algorithm]
name = "fedmf"
dim = 4
[update]
structure = "dense"
[protection]
name = "bfv"
[rounds]
total = 8
[parties]
address = "127.0.0.1:7447"
clients = ["a", "b", "c"]
"""
REFUSED = "The handshake failed"
Start = Callable[..., Command]


@pytest.fixture
def start() -> Iterator[Start]:
    with commands() as started:
        yield started


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """The kits of three clients, whose coordinator takes a free port."""
    made = generate(
        n_users=40, n_items=60, n_clusters=4, interactions_per_user=12, noise=0.2, seed=5
    )
    write_interactions(tmp_path / "data.csv", made.interactions)
    (tmp_path / "federation.toml").write_text(SETTINGS, encoding="utf-8")
    fedrec(tmp_path, "provision", "--data", "data.csv")
    settings = tmp_path / "kits" / "coordinator" / "coordinator.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("port = 7447", "port = 0"), encoding="utf-8")
    return tmp_path / "kits"


def fedrec(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedrec", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_run_goes_on_with_another_issuer(kits, start, tmp_path):
    def coordinator(log: str, *more: str) -> tuple[Command, str]:
        made = start(
            tmp_path / log, "coordinator", "run", str(kits / "coordinator" / "coordinator.toml"),
            "--until-finished", *more,
        )  # fmt: skip
        return made, json.loads(made.first_line())["address"]

    def client(name: str, log: str, address: str) -> Command:
        return start(
            tmp_path / f"{name}-{log}",
            "client", "run", str(kits / "clients" / name / "client.toml"),
            "--set", f"client.coordinator={address}",
        )  # fmt: skip

    def authority(log: str, address: str) -> Command:
        return start(
            tmp_path / log, "keys", "authority", "run", address,
            "--into", str(kits / "authority"), "--every-seconds", "0.2",
        )  # fmt: skip

    first, address = coordinator("first.log")
    others = [authority("authority.log", address)]
    others += [client(name, "first.log", address) for name in "abc"]
    first.wait_for("round published")
    # Clients end when they have the last round: no member may be left without it.
    own = str(kits / "authority" / "operator.pem")
    fedrec(tmp_path, "stop", address, "--operator", own)
    assert first.ended() == 0, first.told
    for command in others[1:]:
        assert command.ended() == 0, command.told
    others[0].interrupt()
    others[0].ended()
    fedrec(tmp_path, "provision", "--operator", "maria")
    before = {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()}
    hosts = hosts_of(certificate_in(kits / "authority" / "coordinator.pem"))

    told = fedrec(tmp_path, "keys", "rotate", "--new-ca")
    assert "carried by hand" in told and "--operator NAME` again: maria" in told
    made = kits / "authority"
    assert hosts_of(certificate_in(made / "coordinator.pem")) == hosts
    assert (made / "authority.pub.json").read_bytes() != before[made / "authority.pub.json"]
    # The coordinator takes no half of it.
    shutil.copy(made / "coordinator.pem", kits / "coordinator")
    half = start(
        tmp_path / "half.log", "coordinator", "run", str(kits / "coordinator" / "coordinator.toml")
    )
    assert half.ended() != 0
    assert "epoch.json" in half.told and "Traceback" not in half.told
    for name in ("epoch.json", "operator.crt"):
        shutil.copy(made / name, kits / "coordinator")

    second, address = coordinator("second.log", "--resume")
    late = client("a", "late.log", address)
    # Its own authority.pub.json still names the old issuer, and so does its certificate.
    late.wait_for(REFUSED)
    assert "Traceback" not in late.told
    late.interrupt()
    late.ended()
    stale = tmp_path / "stale.pem"
    stale.write_bytes(before[kits / "operators" / "maria.pem"])
    stale.chmod(0o600)
    with pytest.raises(Exception, match=r"handshake failed|was closed"):
        AdminLink(address, Credentials.load(stale, "--operator")).status()

    for name in "abc":
        kit = kits / "clients" / name
        shutil.copy(made / "authority.pub.json", kit)
        shutil.copy(made / "clients" / f"{name}.crt", kit / "state" / "client.crt")
    again = [authority("again.log", address)]
    again += [client(name, "second.log", address) for name in "abc"]
    assert second.ended() == 0, second.told
    for command in again[1:]:
        assert command.ended() == 0, command.told
    assert "all rounds are published" in second.told


def certificate_in(path: Path) -> bytes:
    return Credentials.load(path, "it").certificate


def test_a_second_operator_comes_and_goes(kits, start, tmp_path):
    coordinator = start(
        tmp_path / "log", "coordinator", "run", str(kits / "coordinator" / "coordinator.toml")
    )
    address = json.loads(coordinator.first_line())["address"]
    fedrec(tmp_path, "provision", "--operator", "maria")
    maria = str(kits / "operators" / "maria.pem")

    def exit_code() -> int:
        asked = start(tmp_path / "status.log", "status", address, "--operator", maria)
        return asked.ended()

    assert exit_code() != 0, "the coordinator was not told yet"
    shutil.copy(kits / "authority" / "operator.crt", kits / "coordinator")
    poll(lambda: exit_code() == 0, "maria is an operator")
    fedrec(tmp_path, "provision", "--remove-operator", "maria")
    shutil.copy(kits / "authority" / "operator.crt", kits / "coordinator")
    assert exit_code() != 0
    # The authority's own process was an operator all the time.
    own = str(kits / "authority" / "operator.pem")
    assert start(tmp_path / "own.log", "status", address, "--operator", own).ended() == 0
