"""Child processes that end with their parent, whatever happens to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from fedrec.child_process import child_command
from fedrec.durable import make_private
from fedrec.errors import Unreachable

__all__ = ["Failure", "Processes"]

_GRACE_SECONDS = 15.0
_TAIL_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A process that ended with an error.

    Attributes:
        exit_code: what it left with; minus the number of the signal that ended it.
        log: where its stderr went.
        last_lines: the end of that log.
    """

    name: str
    exit_code: int
    log: Path
    last_lines: str

    def __str__(self) -> str:
        """Return what happened, where the log is, and how it ends."""
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
        """Start `fedrec ARGUMENTS`; what it prints goes to the log `name`.log.

        Args:
            talks: its stdout goes to a pipe instead, for `first_line`. A process that prints more
            than
                a pipe holds would wait there for ever.
        """
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        # What parties tell of themselves is for their owner, whatever the umask leaves to others.
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
            Unreachable: when it ends or says nothing sensible.
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

    def wait_for(self, name: str, *, seconds: float) -> None:
        """Wait for a process to end by itself, at most so long."""
        with suppress(subprocess.TimeoutExpired):
            self._running[name].wait(timeout=seconds)

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
