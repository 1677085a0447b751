"""Folders, files and ports that cannot be used: what a command says, and nothing before it.

`/sys` is a folder in which nobody can make anything, root neither.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.commands import Command, commands

from fedrec.data import generate
from fedrec.data.writing import write_interactions

pytestmark = pytest.mark.slow

NOWHERE = "/sys/kernel"
GARBAGE = bytes(range(256)) * 40
Fedrec = Callable[..., str]


@pytest.fixture
def fedrec(tmp_path: Path) -> Iterator[Fedrec]:
    """Run a command that refuses; return what it said on stderr."""
    with commands() as start:

        def run(*arguments: str) -> str:
            command: Command = start(tmp_path / f"{len(list(tmp_path.iterdir()))}.log", *arguments)
            assert command.ended() == 2, command.told
            assert command.out == ""
            return command.told

        yield run


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """The kits of a trial with three clients."""
    made = generate(
        n_users=30, n_items=60, n_clusters=4, interactions_per_user=12, noise=0.2, seed=5
    )
    write_interactions(tmp_path / "data.csv", made.interactions)
    with commands() as start:
        command = start(
            tmp_path / "provision.log", "provision", "--data", "data.csv", "--clients", "a,b,c",
            "--address", "127.0.0.1:1",
        )  # fmt: skip
        assert command.ended() == 0, command.told
    return tmp_path / "kits"


def coordinator(kits: Path, **changes: str) -> str:
    """Change the coordinator's settings, and return their path."""
    path = kits / "coordinator" / "coordinator.toml"
    lines = path.read_text().splitlines()
    for name, value in changes.items():
        (at,) = (at for at, line in enumerate(lines) if line.startswith(f"{name} = "))
        lines[at] = f"{name} = {value}"
    path.write_text("\n".join(lines))
    return str(path)


def test_folders_where_nothing_can_be_written(kits, fedrec):
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
        f"--into: '{NOWHERE}/x' cannot be created": ["provision", "--into", f"{NOWHERE}/x"],
    }.items():  # fmt: skip
        said = fedrec(*arguments)
        assert said.startswith(f"error [settings]: {named}"), said
        assert said.endswith("\n  Choose a folder in which this user may write.\n")


def test_a_recording_where_nothing_can_be_written(kits, fedrec):
    said = fedrec("coordinator", "run", coordinator(kits), "--record-wire", NOWHERE)
    assert said.startswith(f"error [settings]: {NOWHERE}/wire-"), said


def test_a_port_that_another_program_has(kits, fedrec):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = fedrec("coordinator", "run", coordinator(kits, port=str(port)))
    assert said.startswith(f"error [settings]: coordinator.port: 127.0.0.1:{port} cannot be")
    assert "choose another port" in said
    assert len(said.splitlines()) == 2, said


def test_files_that_are_no_text(kits, fedrec):
    catalogue = kits / "coordinator" / "catalogue.csv"
    catalogue.write_bytes(GARBAGE)
    said = fedrec("coordinator", "run", coordinator(kits))
    assert said.startswith(f"error [data]: The catalogue {catalogue} is not UTF-8 text.")
    data = kits / "clients" / "a" / "interactions.csv"
    data.write_bytes(GARBAGE)
    said = fedrec("client", "run", str(kits / "clients" / "a" / "client.toml"))
    assert said.startswith(f"error [data]: {data}, line 1, ") and "not a table of text" in said
    # Nothing was applied for with data that cannot be read.
    assert "starting" not in said
    said = fedrec(
        "provision", "other.toml", "--data", str(data), "--clients", "a,b,c",
        "--address", "127.0.0.1:1", "--into", str(kits.parent / "others"),
    )  # fmt: skip
    assert said.startswith(f"error [data]: {data}, line 1, ") and "not a table of text" in said
