"""A container engine: docker or podman as found, or the command that CONTAINERS names."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 240.0
"""How long a test waits for what must happen."""
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none")
"""What a party's container is confined to in deploy/compose.yaml, and no network besides."""
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


def poll(look: Callable[[], T], what: str) -> T:
    """Look again and again until there is something."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (seen := look()):
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(0.5)
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A command that builds images and runs containers, and the one that reads compose files.

    Attributes:
        command: as in ("docker",).
        compose: as in ("docker", "compose").
        is_podman: podman builds images with a health check only when it is told so.
    """

    command: tuple[str, ...]
    compose: tuple[str, ...]
    is_podman: bool
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls) -> Engine:
        """Return the engine of this machine; there is no test without one."""
        chosen = os.environ.get("CONTAINERS")
        commands = (shlex.split(chosen),) if chosen else (["docker"], ["podman"])
        for command in commands:
            if shutil.which(command[0]) and _works([*command, "info"]):
                break
        else:
            raise AssertionError(
                f"None of these works here: {[' '.join(command) for command in commands]}. "
                "Install Docker or podman, or name another command in CONTAINERS."
            )
        news = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        compose = [*command, "compose"]
        if not _works([*compose, "version"]):
            # Debian's podman has no `compose` of its own; the one of the development extra does.
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            found = shutil.which("podman-compose", path=path)
            assert found, "There is no `compose`: pip install podman-compose"
            compose = [found, "--podman-path", command[0]]
        # A client's settings of proxies, which engines hand on to containers, are no image's.
        environment = {
            name: value for name, value in os.environ.items() if name.lower() not in _PROXIES
        }
        return cls(
            command=tuple(command),
            compose=tuple(compose),
            is_podman="podman" in news.stdout,
            environment=environment,
        )

    def run(self, *arguments: str, check: bool = True) -> str:
        """Return what a command of the engine prints on stdout."""
        return call((*self.command, *arguments), environment=self.environment, check=check)

    def logs(self, container: str) -> str:
        """Return what a container's process said, on stdout and on stderr."""
        command = [*self.command, "logs", container]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        )
        return done.stdout

    def build(self, file: str, tag: str, *arguments: str) -> None:
        """Build an image of this tree; proxies of this machine reach the build."""
        form = ("--format", "docker") if self.is_podman else ()
        more = shlex.split(os.environ.get("BUILD_ARGS", ""))
        call(
            (*self.command, "build", *form, *more, *arguments, "--file", file, "--tag", tag, "."),
            environment=os.environ,
        )

    def inspect(self, name: str, kind: str = "container") -> dict[str, Any]:
        """Return what the engine knows of a container or an image."""
        (found,) = json.loads(self.run(kind, "inspect", name))
        return dict(found)

    def alone(self, image: str, *arguments: str, options: Sequence[str] = ()) -> str:
        """Run a container of its own without network, and return what it prints on stdout."""
        return self.run("run", "--rm", *HARDENED, *options, image, *arguments)

    def healthcheck(self, image: str) -> list[str]:
        """Return the command of an image's health check."""
        found = self.inspect(image, "image")
        check = found.get("Healthcheck") or found["Config"].get("Healthcheck")
        assert check, f"{image} has no health check"
        kind, *command = check["Test"]
        assert kind == "CMD"
        return [str(part) for part in command]


def call(command: Sequence[str], *, environment: Mapping[str, str], check: bool = True) -> str:
    """Return what a command prints on stdout; fail with everything it said."""
    done = subprocess.run(
        command, cwd=ROOT, env=dict(environment), capture_output=True, text=True, check=False
    )
    note = f"{shlex.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}"
    assert not check or done.returncode == 0, note
    return done.stdout


def _works(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
