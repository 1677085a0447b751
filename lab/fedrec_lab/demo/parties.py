"""The demo's parties as watched processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedrec.cli.operating import status_table
from fedrec.durable import make_private
from fedrec.errors import FedrecError, SettingsError, TrainingError, Unreachable
from fedrec.identity.certificates import Credentials
from fedrec.listening import reached_from_here, split_address, written_address
from fedrec.plan.protections import about_protection
from fedrec.plan.schema import Plan
from fedrec.processes import child_command
from fedrec.wire.admin_link import AdminLink
from fedrec_lab.reports.federation_record import RunView
from fedrec_lab.reports.round_report import RoundReport


def cast_table(plan: Plan, users: Sequence[int]) -> Table:
    """Return each process's operator, its data, and the data that it never sees, as a table.

    Args:
        users: the number of users of each client.
    """
    table = Table(title="Who is who", title_justify="left")
    for column in ("process", "run by", "holds", "never sees"):
        table.add_column(column)
    views = about_protection(plan.protection.name).views
    table.add_row("coordinator", "a service provider", *views)
    alone = plan.authority_opens
    holds = "the list of members, their certificates"
    table.add_row(
        "authority",
        "the data owners together",
        f"{holds}, the key that opens sums" if alone else holds,
        "interactions, a single client's update" if alone else "interactions, updates",
    )
    for number, n_users in enumerate(users, start=1):
        table.add_row(
            f"client-{number}",
            f"data owner {number}",
            f"interactions of {n_users} users, and what it learns from them",
            "another client's interactions or update",
        )
    return table


_GRACE_SECONDS = 15.0
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_REPORTS = 5.0
_TAIL_LINES = 12
SILENCE_SECONDS = 600.0
"""Patience with clients after the run. They run on this machine, so a silent one computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A process that ended with an error.

    Attributes:
        exit_code: what it left with. Minus the number of the signal that ended it.
        log: where its stderr went.
        last_lines: the end of that log.
    """

    name: str
    exit_code: int
    log: Path
    last_lines: str

    def __str__(self) -> str:
        """Return the event, the log's path, and the log's last lines."""
        how = f"ended with exit code {self.exit_code}"
        if self.exit_code < 0:
            how = f"was ended by {_signal_name(-self.exit_code)}"
        if not self.last_lines:
            return f"The process of {self.name} {how}. Its log {self.log} is empty."
        return f"The process of {self.name} {how}. Its log {self.log} ends with:\n{self.last_lines}"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


class Processes:
    """Starts `fedrec ...` in processes of their own, with a log file each.

    Leaving the context ends every process that still runs: politely, then firmly.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        make_private(logs)
        logs.chmod(0o700)
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *arguments: str, talks: bool = False) -> subprocess.Popen[str]:
        """Start `fedrec ARGUMENTS`. Its output goes to the log `name`.log.

        Args:
            talks: its stdout goes to a pipe instead, for `first_line`. A process that prints more
            than a pipe holds would wait there for ever.
        """
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        # Logs of parties are for their owner, whatever the umask.
        handle = os.open(self._log_of(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "ab") as log:
            os.fchmod(handle, 0o600)
            process = subprocess.Popen(
                child_command("fedrec", *arguments),
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._running[name] = process
        return process

    def first_line(self, name: str, *, seconds: float = 60.0) -> dict[str, str]:
        """Return the JSON object that a process prints first.

        Raises:
            Unreachable: the process ends, or its output is not valid.
        """
        process = self._running[name]
        assert process.stdout is not None  # opened as a pipe above
        line = process.stdout.readline()
        try:
            found: dict[str, str] = json.loads(line)
        except json.JSONDecodeError:
            process.wait(timeout=seconds)
            raise Unreachable(
                f"The {name} did not start:\n{self.tail(name)}",
                remedy=f"Its log is {self._log_of(name)}.",
            ) from None
        return found

    def failures(self) -> list[Failure]:
        """Return the processes that ended with an error, in the order of their start."""
        return [
            Failure(
                name=name,
                exit_code=code,
                log=self._log_of(name),
                last_lines=self.tail(name),
            )
            for name, process in self._running.items()
            if (code := process.poll()) not in (None, 0)
        ]

    def tail(self, name: str) -> str:
        """Return the last lines of a process's log, indented."""
        text = self._log_of(name).read_text(encoding="utf-8", errors="replace")
        return "\n".join(f"  {line}" for line in text.splitlines()[-_TAIL_LINES:])

    def _log_of(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def running(self, names: Iterable[str]) -> list[str]:
        """Return the processes among these that still run."""
        return [name for name in names if self._running[name].poll() is None]

    def kill(self, name: str) -> None:
        """End a process as a power cut does."""
        self._running[name].kill()
        self._running[name].wait()

    def close(self) -> None:
        """End every process that still runs."""
        alive = [process for process in self._running.values() if process.poll() is None]
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in alive:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in self._running.values():
            if process.stdout is not None:
                process.stdout.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End what still runs."""
        self.close()


def follow_run(
    link: AdminLink,
    view: RunView,
    console: Console,
    *,
    failures: Callable[[], list[Failure]],
    on_round: Callable[[RoundReport], None],
    logs: Path,
) -> None:
    """Show a run until it ends. A run that had already ended shows no round again.

    Args:
        failures: processes that ended with an error. Looked at several times a second.
        on_round: called with every published round.
        logs: folder of the processes' logs, named in errors.

    Raises:
        TrainingError: if the run fails or a process ends with an error.
        Unreachable: if the coordinator falls silent.
    """
    # The journal is a blocking stream. The main thread stays free for Ctrl-C and dead clients.
    broken: list[FedrecError] = []

    def read() -> None:
        try:
            had_ended = link.status().finished
            if had_ended:
                console.print("The run is already finished. Clients that missed its end catch up")
            for event in link.events():
                report = view.take(event)
                if report is not None:
                    on_round(report)
                    if not (console.is_terminal or had_ended):
                        console.print(view.line(report))
                if view.finished:
                    return
        except FedrecError as error:
            broken.append(error)

    reader = threading.Thread(target=read, name="journal", daemon=True)
    reader.start()
    with _live(console, link) as refresh:
        while reader.is_alive():
            reader.join(timeout=0.2)
            refresh()
            _check(failures(), logs)
    # If the coordinator dies, its journal may end before the processes are checked.
    if broken or view.failed:
        _check(failures(), logs)
    remedy = f"The logs are in {logs}."
    if broken:
        raise Unreachable(f"The coordinator no longer answers: {broken[0].message}", remedy=remedy)
    if view.failed:
        raise TrainingError(f"The run failed: {view.finished}.", remedy=remedy)


def follow_end(
    link: AdminLink,
    console: Console,
    *,
    running: Callable[[], list[str]],
    failures: Callable[[], list[Failure]],
    logs: Path,
) -> None:
    """Wait until all clients of an ended run have its final version and have ended.

    Args:
        running: the names of the clients that still run. Looked at several times a second.

    Raises:
        TrainingError: a process ends with an error, or clients without the final version are
            silent for `SILENCE_SECONDS`.
        Unreachable: if the coordinator falls silent.
    """
    began, told = link.status().now, time.monotonic()
    while left := running():
        _check(failures(), logs)
        found = link.status()
        heard = {one.name: one.heard for one in found.members if one.state != "finished"}
        missed = [name for name in left if name in heard]
        # Clients that have it compute for themselves, for as long as they like.
        last = max([began, *(heard[name] for name in missed)])
        if missed == left and found.now - last >= SILENCE_SECONDS:
            raise TrainingError(
                f"Clients without the final version: {', '.join(missed)}.",
                remedy="Run the same command again. The run has ended, and they catch up. The "
                f"logs are in {logs}.",
            )
        if time.monotonic() - told >= _SECONDS_BETWEEN_REPORTS:
            console.print(f"Clients that still take the final version: {len(left)}")
            told = time.monotonic()
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    _check(failures(), logs)


def _check(dead: list[Failure], logs: Path) -> None:
    if dead:
        raise TrainingError(
            "\n".join(map(str, dead)),
            remedy=f"The other processes were stopped. Their logs are in {logs}. Correct the "
            "problem in the log and run the same command again.",
        )


@contextmanager
def _live(console: Console, link: AdminLink) -> Iterator[Callable[[], None]]:
    """Yield a function that draws the output of `fedrec status` on a terminal."""
    if not console.is_terminal:
        yield lambda: None
        return
    with Live(console=console, auto_refresh=False) as live:

        def refresh() -> None:
            # The end of the journal shows which party failed, and why.
            with suppress(FedrecError):
                live.update(status_table(link.status()), refresh=True)

        yield refresh
        refresh()


AUTHORITY, COORDINATOR, CLIENTS = "authority", "coordinator", "clients"
PARTIES_NEED = ("torch", "grpc_health")
PAGE_NEEDS = ("starlette", "uvicorn")
ANY_PAGE = "127.0.0.1:0"
"""For a trial: on this machine alone, on whichever port is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """The settings files and folders of all parties.

    Attributes:
        coordinator: its settings file.
        authority: the key authority's folder.
        clients: the clients' settings files, in folders with the clients' names.
    """

    coordinator: Path
    authority: Path
    clients: tuple[Path, ...]

    @classmethod
    def of_kits(cls, kits: Path) -> Self:
        """Return the parties of a set of kits from `fedrec provision`.

        Raises:
            SettingsError: the set of kits is incomplete.
        """
        found = cls(
            coordinator=kits / COORDINATOR / "coordinator.toml",
            authority=kits / AUTHORITY,
            clients=tuple(sorted((kits / CLIENTS).glob("*/client.toml"))),
        )
        needed = (found.coordinator, found.operator)
        missing = [str(path) for path in needed if not path.exists()]
        if missing or not found.clients:
            raise SettingsError(
                f"{kits} is not a complete set of kits: "
                f"{', '.join(missing) or f'no client in {kits / CLIENTS}'} is missing.",
                remedy="Make one with `fedrec provision`, or name its folder.",
            )
        return found

    @property
    def operator(self) -> Path:
        """The credentials for the operators' service."""
        return self.authority / "operator.pem"


def run_parties(
    parties: Parties,
    logs: Path,
    view: RunView,
    console: Console,
    *,
    on_start: Callable[[str, str], None],
    on_round: Callable[[RoundReport], None] = lambda report: None,
    accept_exposure: bool = False,
    record_wire: Path | None = None,
    page: str | None = None,
) -> None:
    """Start coordinator, key authority and clients, and show rounds until all have the model.

    When this function ends for any reason, it ends all of them. They saved enough for the next call
    to resume.

    Args:
        logs: the folder of their logs.
        on_start: called with the coordinator's address and that of its page, maybe empty.
        record_wire: a folder for a recording of the coordinator's traffic, or None.
        page: host:port of the page, or None for the coordinator's settings.

    Raises:
        FedrecError: a process failed, or the run cannot be followed.
    """
    accepted = ["--accept-exposure"] if accept_exposure else []
    recorded = [] if record_wire is None else ["--record-wire", str(record_wire)]
    shown = [] if page is None else ["--page", page]
    with Processes(logs) as processes:
        processes.start(
            COORDINATOR, "coordinator", "run", str(parties.coordinator), *accepted, *recorded,
            *shown, talks=True,
        )  # fmt: skip
        started = processes.first_line(COORDINATOR)
        host, port = split_address(started["address"])
        address = written_address(reached_from_here(host), port)
        on_start(address, started.get("page", ""))
        processes.start(
            AUTHORITY, "keys", "authority", "run", address, "--into", str(parties.authority),
            "--every-seconds", "0.5",
        )  # fmt: skip
        for settings in parties.clients:
            processes.start(
                settings.parent.name, "client", "run", str(settings),
                "--set", f"client.coordinator={address}", "--json", *accepted,
            )  # fmt: skip
        link = AdminLink(address, Credentials.load(parties.operator, "the operator's file"))
        try:
            follow_run(
                link,
                view,
                console,
                failures=processes.failures,
                on_round=on_round,
                logs=logs,
            )
            names = [settings.parent.name for settings in parties.clients]
            follow_end(
                link,
                console,
                running=lambda: processes.running(names),
                failures=processes.failures,
                logs=logs,
            )
        finally:
            link.close()
