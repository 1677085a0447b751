"""A small federation from its kits, whose parties are commands of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from e2e.commands import Command
from integration.support.bench import N_ITEMS, Accepted, compute
from world.clock import poll

from fedrec.data import generate
from fedrec.data.reading import DataSettings
from fedrec.data.source import read_users
from fedrec.data.writing import write_interactions
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.settings.validation import load_settings
from fedrec.wire.messages import RoundKind
from fedrec_client.state.private_store import PrivateStore

SETTINGS = """
[federation]
name = "days"
maximum_users = 64
minimum_item_users = 6
[algorithm]
{algorithm}
[update]
structure = "dense"
[protection]
name = "bfv"
[rounds]
total = {total}
[parties]
address = "127.0.0.1:7447"
clients = ["a", "b", "c"]
"""


def fedrec(folder: Path, *arguments: str, under: Sequence[str] = ()) -> str:
    """Run a command to its end; return what it said on stdout."""
    done = subprocess.run(
        [*under, sys.executable, "-m", "fedrec", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class Kits:
    """The kits of the clients a, b and c, and everybody's commands.

    Args:
        folder: an empty one.
        start: starts commands; see `commands`.
        algorithm: lines of the settings' section.
        total: rounds that train.
        under: a command that starts the one which makes the kits.

    Attributes:
        path: the folder of all kits.
        address: the coordinator's, once it was started.
    """

    def __init__(
        self,
        folder: Path,
        start: Callable[..., Command],
        *,
        algorithm: str = 'name = "fedmf"\ndim = 4',
        total: int = 3,
        under: Sequence[str] = (),
    ) -> None:
        self._folder, self._start = folder, start
        self.path, self.address = folder / "kits", ""
        made = generate(
            n_users=40, n_items=60, n_clusters=4, interactions_per_user=12, noise=0.2, seed=5
        )
        write_interactions(folder / "data.csv", made.interactions)
        text = SETTINGS.format(algorithm=algorithm, total=total)
        (folder / "federation.toml").write_text(text, encoding="utf-8")
        fedrec(folder, "provision", "--data", "data.csv", under=under)
        self._rewrite("port = 7447", "port = 0")

    def set_coordinator(self, *lines: str) -> None:
        """Add lines to the coordinator's own section."""
        self._rewrite("[coordinator]\n", "\n".join(("[coordinator]", *lines, "")))

    def coordinator(self, log: str = "coordinator", **how: Any) -> Command:
        """Start the coordinator, again at the address that it had before."""
        made = self.start_coordinator(log, **how)
        self.address = json.loads(made.first_line())["address"]
        self._rewrite("port = 0", f"port = {self.address.rpartition(':')[2]}")
        return made

    def start_coordinator(self, log: str, **how: Any) -> Command:
        """Start the coordinator, and do not wait for its address."""
        settings = str(self._settings)
        return self._start(
            self._log(log), "coordinator", "run", settings, "--until-finished", **how
        )

    def authority(self, log: str = "authority", **how: Any) -> Command:
        """Start the key authority; stdout has an object for each event."""
        return self._start(
            self._log(log), "keys", "authority", "run", self.address, "--json",
            "--into", str(self.path / "authority"), "--every-seconds", "0.2", **how,
        )  # fmt: skip

    def client(self, name: str, log: str = "", **how: Any) -> Command:
        """Start the client of a kit."""
        settings = self.path / "clients" / name / "client.toml"
        return self._start(
            self._log(log or name), "client", "run", str(settings),
            "--coordinator", self.address, **how,
        )  # fmt: skip

    def models(self, names: str) -> set[bytes]:
        """Return the canonical bytes of the models that some clients ended with."""
        found = set()
        for name in names:
            store = PrivateStore(self.path / "clients" / name / "state", read_only=True)
            assert store.state.shared is not None
            kept = SharedState.from_bytes(store.read(store.state.shared))
            found.add(kept.canonical_bytes())
        return found

    def undisturbed(self) -> bytes:
        """Return that model as one party that holds everybody computes it."""
        plan = load_settings(self.path / "clients" / "a" / "client.toml").plan
        data = DataSettings(path=str(self._folder / "data.csv"))
        users, items = read_users(data, reader="a test")
        assert len(items) == N_ITEMS
        kinds: list[RoundKind] = ["count", *(["train"] * plan.rounds.total), "evaluate"]
        rounds = [
            Accepted(round=RoundId(number), kind=kind, clients=frozenset({0}))
            for number, kind in enumerate(kinds, start=1)
        ]
        return compute(plan, [users], rounds).model

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    @property
    def _settings(self) -> Path:
        return self.path / "coordinator" / "coordinator.toml"

    def _rewrite(self, before: str, after: str) -> None:
        text = self._settings.read_text(encoding="utf-8")
        self._settings.write_text(text.replace(before, after), encoding="utf-8")


def events_of(authority: Command) -> list[dict[str, Any]]:
    """Return what a key authority told so far."""
    lines = authority.out.splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for_event(authority: Command, name: str, **fields: Any) -> dict[str, Any]:
    """Wait until a key authority tells of something, and return it."""

    def found() -> dict[str, Any] | None:
        told = [event for event in events_of(authority) if event["name"] == name]
        assert authority.process.poll() is None, authority.told
        return next((one for one in told if fields.items() <= one.items()), None)

    event = poll(found, name)
    assert event is not None
    return event
