"""The federation of deploy/compose.yaml, under a project name of the test's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.engine import Engine, call, poll

CLIENTS = ("client-1", "client-2", "client-3")
PARTIES = ("coordinator", "authority", *CLIENTS)
_OVERRIDE = """
services:
  setup:
    environment: {FEDREC_CACHE: /cache}
    volumes: ["%(cache)s:/cache:ro"]
  coordinator:
    environment: {FEDREC_COORDINATOR__LOG_FORMAT: json}
  client-1: &client
    environment: {FEDREC_CLIENT__LOG_FORMAT: json}
  client-2: *client
  client-3: *client
  prometheus:
    ports: !reset []
"""
"""Besides the shipped file: data that is fetched already, logs for a program, and no fixed port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """A compose project.

    Attributes:
        name: of the project; its containers, volumes and networks begin with it.
        files: compose files, the shipped one first.
        environment: what they take from outside.
    """

    engine: Engine
    name: str
    files: tuple[Path, ...]
    environment: Mapping[str, str]

    def compose(self, *arguments: str, check: bool = True) -> str:
        """Return what a command of compose prints."""
        files = [part for path in self.files for part in ("--file", str(path))]
        return call(
            (*self.engine.compose, "--project-name", self.name, *files, *arguments),
            environment={**self.engine.environment, **self.environment},
            check=check,
        )

    def up(self) -> None:
        """Start every client, monitoring without its pages, too."""
        self.compose(
            "--profile", "monitoring", "up", "--detach", "--no-build", *PARTIES, "prometheus"
        )

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        label = "label=com.docker.compose"
        found = self.engine.run(
            "ps", "--all", "--quiet", "--no-trunc",
            "--filter", f"{label}.project={self.name}", "--filter", f"{label}.service={service}",
        ).split()  # fmt: skip
        assert len(found) == 1, f"{service} has the containers {found}"
        return found[0]

    def inside(self, service: str, *command: str, check: bool = True) -> str:
        """Return what a command prints in a running container."""
        return self.engine.run("exec", self.container(service), *command, check=check)

    def signal(self, service: str, name: str) -> None:
        """Send a signal to a service's first process."""
        self.engine.run("kill", "--signal", name, self.container(service))

    def state(self, service: str) -> dict[str, Any]:
        """Return whether a container runs, and how it ended."""
        return dict(self.engine.inspect(self.container(service))["State"])

    def kill(self, services: Sequence[str]) -> None:
        """End services in the middle of what they do, and start them again."""
        for service in services:
            self.signal(service, "KILL")
        for service in services:
            self.engine.run("start", self.container(service))

    def events(self, service: str) -> list[dict[str, Any]]:
        """Return the events of a service's log, over all its starts."""
        # The first line of a coordinator tells where it listens.
        return [
            found
            for found in objects(self.engine.logs(self.container(service)))
            if "event" in found
        ]

    def rounds(self, event: str) -> list[int]:
        """Return the rounds of which the coordinator's log tells an event."""
        return [found["round"] for found in self.events("coordinator") if found["event"] == event]

    def volume(self, party: str) -> str:
        """Return the name of the volume that holds a party's kit."""
        mounts = self.engine.inspect(self.container(party))["Mounts"]
        (found,) = [mount for mount in mounts if mount["Destination"] == "/var/lib/fedrec"]
        assert found["Type"] == "volume"
        return str(found["Name"])

    def hold_a_round(self, service: str) -> int:
        """Freeze a client, and return the round that has all updates but this client's."""
        poll(lambda: len(self.rounds("round published")) >= 2, "two published rounds")
        self.signal(service, "STOP")

        def held() -> int:
            opened = max(self.rounds("round opened"))
            done = opened in self.rounds("round published")
            counted = self.rounds("update counted").count(opened)
            return 0 if done or counted != len(CLIENTS) - 1 else opened

        def twice() -> int:
            # What the client had handed to the network may still arrive.
            return held() and held()

        return poll(twice, f"a round that waits for {service} alone")

    def wait_for_the_end(self) -> None:
        """Wait until every client has seen the end of the run."""
        for client in CLIENTS:
            poll(lambda client=client: not self.state(client)["Running"], f"the end of {client}")


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a log; whoever is killed leaves a line torn or without its end."""
    decoder, place = json.JSONDecoder(), text.find("{")
    while place >= 0:
        try:
            found, end = decoder.raw_decode(text, place)
        except ValueError:
            end = place + 1
        else:
            yield found
        place = text.find("{", end)


@contextmanager
def federation(
    engine: Engine, settings: Path, cache: Path, folder: Path, **environment: str
) -> Iterator[Federation]:
    """Describe a federation; whatever it started, and its volumes, are gone with the block.

    Args:
        settings: what `fedrec provision` reads in place of deploy/federation.toml.
        cache: a folder that has MovieLens-100K.
        folder: a place for the test's own compose file.
    """
    override = folder / "override.yaml"
    override.write_text(_OVERRIDE % {"cache": cache}, encoding="utf-8")
    more = os.environ.get("COMPOSE_OVERRIDE", "")
    found = Federation(
        engine=engine,
        name=f"fedrec-test-{os.getpid()}-{settings.stem}",
        files=(Path("deploy/compose.yaml"), override, *([Path(more)] if more else ())),
        environment={"FEDREC_SETTINGS": str(settings), **environment},
    )
    try:
        yield found
    finally:
        # A frozen process stops for nothing else; what never started cannot be killed.
        found.compose("--profile", "monitoring", "kill", check=False)
        found.compose("--profile", "monitoring", "down", "--volumes")
