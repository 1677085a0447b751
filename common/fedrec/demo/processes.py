"""Child processes that end with their parent, whatever happens to it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from fedrec.errors import Unreachable

__all__ = ["Processes"]

_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 15.0


def _end_with_parent() -> None:
    """Ask Linux to end this process when its parent dies; elsewhere `close` alone does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Processes:
    """Starts `python -m fedrec ...` in processes of their own, with a log file each.

    Leaving the context ends every process that still runs: politely, then firmly.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._logs.mkdir(parents=True, exist_ok=True)
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start `fedrec ARGUMENTS`; its stderr goes to the log `name`.log, stdout to a pipe."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with (self._logs / f"{name}.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedrec", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent,
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
                remedy=f"Its log is {self._logs / f'{name}.log'}.",
            ) from None
        return found

    def failed(self) -> list[str]:
        """Return the names of processes that ended with an error."""
        return [name for name, process in self._running.items() if process.poll() not in (None, 0)]

    def tail(self, name: str, lines: int = 12) -> str:
        """Return the last lines of a process's log."""
        text = (self._logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_for(self, prefix: str, *, seconds: float) -> None:
        """Wait for the processes with such names to end by themselves, at most so long."""
        deadline = time.monotonic() + seconds
        for name, process in self._running.items():
            if name.startswith(prefix):
                try:
                    process.wait(timeout=max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    return

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
