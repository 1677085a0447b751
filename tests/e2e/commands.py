"""The command `fedrec` in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from world.clock import DEADLINE_SECONDS, poll

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
    def told(self) -> str:
        """What came on stderr so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait for a text on stderr."""

        def seen() -> bool:
            ended = self.process.poll() is not None
            if text in self.told:
                return True
            assert not ended, f"ended with {self.process.returncode} before {text!r}: {self.told}"
            return False

        poll(seen, text)

    @property
    def out(self) -> str:
        """What came on stdout so far."""
        return self._out.read_text(errors="replace")

    def first_line(self) -> str:
        """Return the first line on stdout."""

        def seen() -> bool:
            assert self.process.poll() is None, self.told
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
    """Tell whether a process is there and is no zombie that nobody collected."""
    status = _status(pid)
    return status is not None and status[0] not in "ZX"


def _status(pid: int) -> tuple[str, int] | None:
    """Return a process's state and its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1])
