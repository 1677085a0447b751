"""A small federation from its kits, whose parties are commands of their own."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from debian import install
from world.bench import N_ITEMS, Accepted, compute
from world.clock import DEADLINE_SECONDS, poll

from fedrec.data import generate
from fedrec.data.reading import DataSettings
from fedrec.data.source import read_users
from fedrec.data.writing import write_interactions
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.settings.validation import load_settings
from fedrec.wire.messages import RoundKind
from fedrec_client.state.private_store import PrivateStore

T = TypeVar("T")


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
"""Makes packages look as if they were not installed."""


class Command:
    """A running `fedrec ...`.

    Args:
        log: where stderr goes; stdout goes beside it.
        arguments: of the command.
        missing: packages that look as if they were not installed.
        first: lines of Python to run before the command.
        under: a command that starts it, and becomes it.
    """

    def __init__(
        self,
        log: Path,
        *arguments: str,
        missing: Sequence[str] = (),
        first: str = "",
        under: Sequence[str] = (),
    ) -> None:
        first = WITHOUT.format(missing=tuple(missing)) if missing else first
        call = ["-c", f"{first}\nfrom fedrec.cli.main import main; main()"]
        call = call if first else ["-m", "fedrec"]
        self.log, self._out = log, log.with_suffix(".out")
        with log.open("a") as stderr, self._out.open("a") as stdout:
            self.process = subprocess.Popen(
                [*under, sys.executable, *call, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
                cwd=log.parent,
            )

    @property
    def output(self) -> str:
        """What came on stderr so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait for a text on stderr."""

        def seen() -> bool:
            ended = self.process.poll() is not None
            if text in self.output:
                return True
            assert not ended, f"ended with {self.process.returncode} before {text!r}: {self.output}"
            return False

        poll(seen, text)

    @property
    def out(self) -> str:
        """What came on stdout so far."""
        return self._out.read_text(errors="replace")

    def first_line(self) -> str:
        """Return the first line on stdout."""

        def seen() -> bool:
            assert self.process.poll() is None, self.output
            return "\n" in self.out

        poll(seen, "a line on stdout")
        return self.out.partition("\n")[0]

    def kill(self) -> None:
        """End it as a power cut does."""
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        """End the process if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def commands() -> Iterator[Callable[..., Command]]:
    """Start commands; all of them end with the block."""
    started: list[Command] = []

    def start(log: Path, *arguments: str, **how: Any) -> Command:
        started.append(Command(log, *arguments, **how))
        return started[-1]

    try:
        yield start
    finally:
        for command in started:
            command.close()


def descendants(pid: int) -> set[int]:
    """Return the processes that a process started, and those that they started."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        status = _status(int(folder.name))
        if status is not None:
            parents[int(folder.name)] = status[1]
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_running(pid: int) -> bool:
    """Tell whether a process is there and is no zombie that is not collected."""
    status = _status(pid)
    return status is not None and status[0] not in "ZX"


def _status(pid: int) -> tuple[str, int] | None:
    """Return a process's state and its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1])


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
name = "{protection}"
[rounds]
total = {total}
{rounds}
[parties]
address = "127.0.0.1:7447"
clients = {clients}
{parties}
"""


def fedrec(folder: Path, *arguments: str, under: Sequence[str] = ()) -> str:
    """Run a command to its end; return what it said on stdout."""
    done = subprocess.run(
        [*under, sys.executable, "-m", "fedrec", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


class Kits:
    """The kits of some clients, and every client's commands.

    Args:
        folder: an empty one.
        start: starts commands; see `commands`.
        clients: their names, a letter each.
        protection: its name.
        algorithm: lines of the settings' section.
        rounds, parties: further lines of these sections.
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
        clients: str = "abc",
        protection: str = "bfv",
        algorithm: str = 'name = "fedmf"\ndim = 4',
        rounds: str = "",
        parties: str = "",
        total: int = 3,
        under: Sequence[str] = (),
    ) -> None:
        self._folder, self._start = folder, start
        self.path, self.address = folder / "kits", ""
        made = generate(
            n_users=40, n_items=60, n_clusters=4, interactions_per_user=12, noise=0.2, seed=5
        )
        write_interactions(folder / "data.csv", made.interactions)
        text = SETTINGS.format(
            algorithm=algorithm, protection=protection, total=total, rounds=rounds,
            clients=json.dumps(list(clients)), parties=parties,
        )  # fmt: skip
        (folder / "federation.toml").write_text(text, encoding="utf-8")
        fedrec(folder, "provision", "--data", "data.csv", under=under)
        self._rewrite("port = 7447", "port = 0")

    def set_coordinator(self, *lines: str) -> None:
        """Add lines to the coordinator's own section."""
        self._rewrite("[coordinator]\n", "\n".join(("[coordinator]", *lines, "")))

    def coordinator(self, log: str = "coordinator", *more: str, **how: Any) -> Command:
        """Start the coordinator, again at the address that it had before."""
        made = self.start_coordinator(log, *more, **how)
        self.address = json.loads(made.first_line())["address"]
        self._rewrite("port = 0", f"port = {self.address.rpartition(':')[2]}")
        return made

    def start_coordinator(self, log: str, *more: str, **how: Any) -> Command:
        """Start the coordinator, and do not wait for its address."""
        call = ("coordinator", "run", str(self._settings), "--until-finished", *more)
        return self._start(self._log(log), *call, **how)

    def authority(self, log: str = "authority", **how: Any) -> Command:
        """Start the key authority; stdout has an object for each event."""
        return self._start(
            self._log(log), "keys", "authority", "run", self.address, "--json",
            "--into", str(self.path / "authority"), "--every-seconds", "0.2", **how,
        )  # fmt: skip

    def client(self, name: str, log: str = "", *more: str, **how: Any) -> Command:
        """Start the client of a kit."""
        settings = self.path / "clients" / name / "client.toml"
        return self._start(
            self._log(log or name), "client", "run", str(settings),
            "--set", f"client.coordinator={self.address}", *more, **how,
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
        """Return that model as one party that holds every client computes it."""
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
        events = [event for event in events_of(authority) if event["name"] == name]
        assert authority.process.poll() is None, authority.output
        return next((one for one in events if fields.items() <= one.items()), None)

    event = poll(found, name)
    assert event is not None
    return event


_FILLER = ".filler"
_PAGE = 4096


class SmallDisk:
    """Puts a small file system in a folder's place, with what the folder holds.

    It takes `unshare`, which Debian has, and the right to a user namespace.

    Args:
        folder: seen as before by every client but the command.
        kib: its size.
    """

    def __init__(self, folder: Path, kib: int) -> None:
        self._folder = folder
        self._keeper = 0
        place, aside = shlex.quote(str(folder)), shlex.quote(f"{folder}.aside")
        script = (
            f"set -e; mkdir -p {aside}; cp -a {place}/. {aside}; "
            f"mount -t tmpfs -o size={kib}k,mode=0700 tmpfs {place}; cp -a {aside}/. {place}; "
            'exec "$@"'
        )
        self.under: tuple[str, ...] = ("unshare", "-rm", "sh", "-c", script, "sh")
        """What a command is started under."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Have one disk for all commands of the block, whichever of them ends."""
        script = "echo there; exec sleep infinity"
        with subprocess.Popen(
            [*self.under, "sh", "-c", script], stdout=subprocess.PIPE, text=True
        ) as keeper:
            try:
                assert keeper.stdout is not None and keeper.stdout.readline() == "there\n"
                self._keeper = keeper.pid
                self.under = (
                    "nsenter",
                    "-t",
                    f"{keeper.pid}",
                    "-U",
                    "-m",
                    "--preserve-credentials",
                )
                yield
            finally:
                keeper.kill()

    def seen_by(self, command: Command) -> Path:
        """Return the folder as the command sees it."""
        return Path(f"/proc/{self._keeper or command.process.pid}/root{self._folder}")

    def fill(self, command: Command, *, but: int = 0) -> None:
        """Leave no space but so many bytes, of whole pages."""
        with (self.seen_by(command) / _FILLER).open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(_PAGE))
            except OSError as error:
                assert error.errno == errno.ENOSPC
            file.truncate(file.tell() - but)

    def free(self, command: Command) -> None:
        """Make the space that there was."""
        (self.seen_by(command) / _FILLER).unlink()


# libfaketime and clock_nanosleep do not go together, and Python sleeps by that.
_SLEEP = (
    "import select, time; time.sleep = lambda seconds: select.select([], [], [], seconds) and None"
)


def wrong_clock(offset: str) -> dict[str, Any]:
    """Return how a command is started for which it is earlier or later, as in "-1h" or "+15d".

    All of the process has that time of day, C's libraries and their handshakes too; it takes
    Debian's libfaketime. How long something takes is measured as ever.
    """
    install("faketime", "faketime")
    preloaded = "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1"
    under = ("env", preloaded, f"FAKETIME={offset}", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    return {"under": under, "first": _SLEEP}
