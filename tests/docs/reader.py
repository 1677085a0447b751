"""A reader who types what stands in a page, in a folder of their own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from docs.pages import Typed
from world.clock import poll
from world.kits import descendants

RUNS_ON = re.compile(r"fedrec (coordinator run|keys authority run|client run|client serve)\b")
"""What is left running in a terminal of its own."""
LONGEST_SECONDS = 600.0
"""How long a command may take on a busy machine."""
PORTS = ("7447", "7448", "7480")
"""Ports of the pages, each of which stands for a free one."""

MACHINES = ("recommender.example", "fedrec.example", "0.0.0.0")
"""Names and addresses of other machines, where a test has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How a page is typed, where it is not typed as it stands.

    Attributes:
        given: what the page takes for granted: makes it.
        instead: pieces of the text, and what is typed in their place.
        files: beginnings of blocks that are no commands, and the files that a reader adds them to.
        before: beginnings of commands, and what a reader does or waits for before them.
        after: beginnings of commands, and what is held against their output, or shown in its place.
        shows: beginnings of commands, and which lines of the next `text` block their output has.
    """

    given: Callable[[Reader], None] = lambda reader: None
    instead: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, Callable[[Reader], None]] = field(default_factory=dict)
    after: Mapping[str, Callable[[Reader, str], str | None]] = field(default_factory=dict)
    shows: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Something that runs, and where its stdout goes; stderr goes beside it."""

    pid: int
    log: Path

    @property
    def output(self) -> str:
        """What it has printed so far."""
        logs = (self.log, Path(f"{self.log}.err"))
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    @property
    def runs(self) -> bool:
        """Whether it still runs."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return status.rpartition(")")[2].split()[0] not in "ZX"

    def interrupt(self) -> None:
        """Press Ctrl-C, but not before its first word: that would hide that it is refused."""
        poll(lambda: self.output or not self.runs, f"a word in {self.log}")
        if self.runs:
            os.kill(self.pid, signal.SIGINT)


class Reader:
    """A shell that keeps its folder from line to line, and terminals for what goes on running.

    Args:
        folder: where the first line is typed.
        page: the page's name.
        script: how it is typed.
    """

    def __init__(self, folder: Path, page: str, script: Script) -> None:
        self.folder, self.page, self.script = folder, page, script
        self._logs = folder.with_name(folder.name + "-logs")
        self._logs.mkdir()
        self.ports = {port: _free_port() for port in PORTS}
        self.instead = dict(script.instead)
        self.running: dict[str, Terminal] = {}
        self._count = 0
        environment = os.environ | {
            "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            text=True,
        )
        # Without job control a shell's background commands would ignore Ctrl-C.
        self._send("set -m")

    def _send(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text + "\n")
        self._shell.stdin.flush()

    def in_place_of(self, text: str) -> str:
        """Return what is typed where the page has a text."""
        for old, new in {
            **self.instead,
            **dict.fromkeys(MACHINES, "127.0.0.1"),
            **self.ports,
        }.items():
            text = text.replace(old, new)
        return text

    def types(self, typed: Typed) -> str:
        """Type what stands in the page and return what it printed."""
        if typed.language not in ("sh", "python"):
            (name,) = (at for begin, at in self.script.files.items() if begins(typed, begin))
            self.command(f"mkdir -p {shlex.quote(str(Path(name).parent))}", typed)
            with (self.cwd / name).open("a") as file:
                file.write(self.in_place_of(typed.text) + "\n")
            return ""
        for begin, act in self.script.before.items():
            if begins(typed, begin):
                act(self)
        text = self.in_place_of(typed.text)
        if typed.language == "python":
            (self._logs / f"{typed.line}.py").write_text(text)
            text = f"python {shlex.quote(str(self._logs / f'{typed.line}.py'))}"
        if RUNS_ON.match(text) and "--once" not in text:
            return self.start(text, typed)
        output = self.command(text, typed)
        for begin, look in self.script.after.items():
            if begins(typed, begin):
                output = look(self, output) or output
        return output

    @property
    def cwd(self) -> Path:
        """The folder that the shell is in."""
        return Path(f"/proc/{self._shell.pid}/cwd").resolve()

    def command(self, text: str, typed: Typed | None = None, code: int = 0) -> str:
        """Type a command, wait for its end, and return what it printed."""
        self._count += 1
        log, ended = self._logs / f"{self._count}.log", self._logs / f"{self._count}.code"
        self._send(f"{{ {text}\n}} > {log} 2>&1 </dev/null; echo $? > {ended}.new")
        self._send(f"mv {ended}.new {ended}")
        try:
            poll(lambda: ended.exists() or self._shell.poll() is not None, text, LONGEST_SECONDS)
            found = int(ended.read_text())
        except (AssertionError, FileNotFoundError):
            found = -1
        output = log.read_text(errors="replace") if log.exists() else ""
        assert found == code, self.failed(typed, text, f"ended with {found}", output)
        return output

    def failed(self, typed: Typed | None, text: str, how: str, output: str) -> str:
        """Return the message of a failure: where it stands, what was typed, what it printed."""
        at = f"{self.page}:{typed.line}" if typed else f"{self.page}, beside the page"
        logs = [
            f"\n--- {name}\n{one.output[-1500:]}"
            for name, one in self.running.items()
            if name != text
        ]
        return f"{at}: `{text}` {how}\n{output[-4000:]}{''.join(logs)}"

    def start(self, text: str, typed: Typed | None = None) -> str:
        """Type a command into a terminal of its own; wait until a service says where it is."""
        self._count += 1
        log, pid = self._logs / f"{self._count}.log", self._logs / f"{self._count}.pid"
        self._send(f"{text} > {log} 2> {log}.err </dev/null &")
        self._send(f"echo $! > {pid}.new; mv {pid}.new {pid}")
        poll(pid.exists, text)
        found = self.running[text] = Terminal(pid=int(pid.read_text()), log=log)
        serves = RUNS_ON.match(text)
        if serves is None or serves[1] not in ("coordinator run", "client serve"):
            return ""

        def answers() -> bool:
            assert found.runs, self.failed(typed, text, "ended", found.output)
            return log.exists() and "\n" in log.read_text()

        poll(answers, f"a line of `{text}`")
        return log.read_text()

    def ends(self, begin: str = "") -> None:
        """Press Ctrl-C in the terminals of what begins so: it saves and ends, or had ended."""
        for text, terminal in self.running.items():
            if text.startswith(begin):
                terminal.interrupt()
        self.awaits_end(begin, codes=(0, 130))

    def awaits_end(self, begin: str, codes: tuple[int, ...] = (0,)) -> None:
        """Wait until whatever begins so has ended by itself."""
        for text, terminal in list(self.running.items()):
            if not text.startswith(begin):
                continue
            try:
                poll(lambda terminal=terminal: not terminal.runs, "its end")
            except AssertionError:
                raise AssertionError(self.failed(None, text, "runs on", terminal.output)) from None
            found = int(self.command(f"wait {terminal.pid}; echo $?").split()[-1])
            assert found in codes, self.failed(None, text, f"ended with {found}", terminal.output)
            del self.running[text]

    def close(self) -> None:
        """End what still runs, by its pid."""
        for pid in descendants(self._shell.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._shell.kill()
        self._shell.communicate()


def begins(typed: Typed, begin: str) -> bool:
    """Tell whether something typed begins so."""
    return typed.text.startswith(begin)


def _free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
