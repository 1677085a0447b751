"""A coordinator on an event loop of its own, and clients in threads, over real sockets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from world.bench import N_ITEMS, Bench, accepted, compute, federal
from world.clock import DEADLINE_SECONDS, AheadOfTime, poll
from world.links import Wrap

from fedrec.errors import FedrecError
from fedrec.follower.events import ClientEvent
from fedrec.follower.patient_link import Backoff, Stopped, StopSwitch
from fedrec.identity.certificates import Credentials
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.settings.schema import Settings
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.admin_link import AdminLink, RunEvent
from fedrec.wire.messages import PublishedRound
from fedrec_client.app import ClientApp, ClientOutcome
from fedrec_client.connecting import certificate_path, open_link
from fedrec_server.app import Coordinator
from fedrec_server.federation import PublicCatalogue
from fedrec_server.service.wire_recorder import WireRecorder
from fedrec_server.store.durable_files import Failpoint, no_failpoint

T = TypeVar("T")


class Loop:
    """One event loop in one thread for all coordinators: gRPC's own poller serves one well."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="coordinators")
        self._thread.start()

    @classmethod
    @cache
    def shared(cls) -> Loop:
        """Return the loop of this process, whichever folder's tests ask for it."""
        return cls()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_SECONDS)

    def close(self) -> None:
        """End the thread; a second call does nothing."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """A `ClientApp` in a thread.

    Args:
        settings: as the command would load them.
        wrap: puts something between the client and its gRPC link.
        on_event: told of every event, in the client's thread.
        maximum_attempts: give up after so many failed calls in a row.
        accept_exposure: as the flag of the command.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        wrap: Wrap = lambda link: link,
        on_event: Callable[[ClientEvent], None] = lambda event: None,
        maximum_attempts: int = 0,
        new_run: bool = False,
        accept_exposure: bool = True,
    ) -> None:
        self.events: list[ClientEvent] = []
        self._news = threading.Condition()
        self._pass_on = on_event
        self._switch = StopSwitch()
        self._outcome: ClientOutcome | None = None
        self._error: BaseException | None = None
        # Who was only invited opens its link by itself, once it has a certificate.
        known = certificate_path(settings).exists()
        self.link = wrap(open_link(settings)) if known else None
        self._app = ClientApp(
            settings,
            link=self.link,
            accept_exposure=accept_exposure,
            on_event=self._on_event,
            backoff=Backoff(self._switch, jitter=lambda: 0.1, maximum_attempts=maximum_attempts),
        )
        self._new_run = new_run
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)
        self._thread.start()

    def result(self) -> ClientOutcome:
        """Return how the run ended for this client; raise what stopped it."""
        self._join()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def failure(self) -> FedrecError:
        """Return the error that stopped this client."""
        self._join()
        assert isinstance(self._error, FedrecError), repr(self._error or self._outcome)
        return self._error

    def wait_for(self, name: str, round_id: int | None = None) -> ClientEvent:
        """Wait for an event and return it."""

        def found() -> ClientEvent | None:
            fits = (e for e in self.events if e.name == name and round_id in (None, e.round))
            return next(fits, None)

        with self._news:
            event = (
                self._news.wait_for(lambda: found() or self._ended, timeout=DEADLINE_SECONDS)
                and found()
            )
        assert event, f"no {name} of round {round_id}: {self._summary()}"
        return event

    def stop(self) -> None:
        """Stop, wherever the client is."""
        with suppress(Stopped, KeyboardInterrupt):
            self._switch.request()
        if self.link is not None:
            self.link.close()
        self._thread.join(DEADLINE_SECONDS)

    @property
    def _ended(self) -> bool:
        return self._outcome is not None or self._error is not None

    def _run(self) -> None:
        try:
            self._outcome = self._app.run(new_run=self._new_run)
        except BaseException as error:
            self._error = error
        with self._news:
            self._news.notify_all()

    def _on_event(self, event: ClientEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()
        self._pass_on(event)

    def _join(self) -> None:
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), f"still running: {self._summary()}"

    def _summary(self) -> str:
        events = [f"{e.name} {e.round} {e.detail}" for e in self.events[-8:]]
        return f"{events}, {self._error!r}, {self._outcome!r}"


class Federation:
    """A coordinator and its clients.

    Args:
        bench: their folders.
        loop: where the coordinator lives.
        failpoint: handed to the coordinator.
        recorder: handed to the coordinator.
        coordinator: changes of the coordinator's settings.
    """

    def __init__(
        self,
        bench: Bench,
        loop: Loop,
        *,
        failpoint: Failpoint = no_failpoint,
        recorder: WireRecorder | None = None,
        **coordinator: Any,
    ) -> None:
        self.bench = bench
        self.clients: list[Client] = []
        self.clock = AheadOfTime()
        self._loop = loop
        self._options: dict[str, Any] = {"failpoint": failpoint, "recorder": recorder}
        self.coordinator, self.address = self._start(**coordinator)
        self._stopped = False

    def _start(self, **coordinator: Any) -> tuple[Coordinator, str]:
        settings = self.bench.coordinator_settings(**coordinator)
        assert settings.data.catalogue is not None
        made = Coordinator.from_settings(
            settings,
            PublicCatalogue.load(_path(settings.data.catalogue)),
            RoundVectors.of(self.bench.plan, N_ITEMS),
            accept_exposure=True,
            clock=self.clock,
            **self._options,
        )
        return made, self._loop.run(made.start())

    def start_again(self) -> None:
        """Start a stopped coordinator at the same address, on what its folder holds now."""
        assert self._stopped
        self.coordinator, _ = self._start(port=int(self.address.rpartition(":")[2]))
        self._stopped = False

    def client(self, number: int, **options: Any) -> Client:
        """Start a client of the roster; options of `Client`, the rest are settings."""
        known = {"wrap", "on_event", "maximum_attempts", "new_run", "accept_exposure"}
        settings = {name: options.pop(name) for name in set(options) - known}
        found = self.bench.client_settings(number, self.address, **settings)
        self.clients.append(Client(found, **options))
        return self.clients[-1]

    def start_all(self, **options: Any) -> list[Client]:
        """Start every client of the roster."""
        return [self.client(number, **options) for number in range(self.bench.n_clients)]

    def tick(self) -> None:
        """Have the coordinator look at its clock now."""
        self._loop.run(self.coordinator.engine.tick())

    def until_waiting(self, *numbers: int) -> None:
        """Wait until clients of the roster have nothing to do."""
        wanted = {Identity.load(self.bench.state(number)).client_id for number in numbers}
        poll(lambda: wanted <= self.coordinator.engine.run.presence.waiters)

    def published(self, number: int = 0) -> list[PublishedRound]:
        """Return all published rounds as a client fetches them."""
        return published_rounds(self.bench, self.address, number)

    def journal(self) -> list[RunEvent]:
        """Return what the operator sees."""
        link = operators_link(self.bench, self.address)
        try:
            return list(link.events(follow=False))
        finally:
            link.close()

    def metrics(self) -> dict[int, list[int]]:
        """Return the published metric sums by round."""
        events = (event for event in self.journal() if event.kind.startswith("round "))
        return {e.round: e.fields["metrics"] for e in events if "metrics" in e.fields}

    def stop(self) -> None:
        """Stop every client."""
        for client in self.clients:
            client.stop()
        self.stop_coordinator()

    def stop_coordinator(self) -> None:
        """Stop the coordinator alone."""
        if not self._stopped:
            self._stopped = True
            self._loop.run(self.coordinator.stop(grace_seconds=0.2))


def operators_link(bench: Bench, address: str) -> AdminLink:
    """Return what `fedrec status` calls with."""
    return AdminLink(address, Credentials.load(bench.workspace.operator, "the test"))


def published_rounds(
    bench: Bench, address: str, number: int = 0, **changes: Any
) -> list[PublishedRound]:
    """Return all published rounds as a client fetches them."""
    link = open_link(bench.client_settings(number, address, **changes))
    client_id = Identity.load(bench.state(number)).client_id
    rounds: list[PublishedRound] = []
    try:
        run = link.federation(client_id).run
        while True:
            after = rounds[-1].round if rounds else RoundId(0)
            found = link.published(client_id, run, after)
            if found is None:
                return rounds
            rounds.append(found)
    finally:
        link.close()


def _path(name: str) -> Any:
    from pathlib import Path

    return Path(name)


def check_against_one_process(federation: Federation, *, floor: int = 1) -> list[frozenset[int]]:
    """Compare everything with the same accepted sets in one process; return the sets.

    Args:
        floor: every client's `client.minimum_own_item_users`.
    """
    bench = federation.bench
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    rounds = accepted(bench, federation.published())
    wanted = compute(bench.plan, bench.users(), rounds, floor=floor)
    assert federal(federation.metrics()) == federal(wanted.metrics)
    for number in range(bench.n_clients):
        assert bench.model(number) == wanted.model
        kept, expected = bench.private(number).tensors, wanted.private[number].tensors
        assert kept.keys() == expected.keys()
        assert all(np.array_equal(kept[name], values) for name, values in expected.items())
    return [played.clients for played in rounds]


_SLOW = 3 * DEADLINE_SECONDS
"""Starting it imports what a client imports, beside everything else that runs."""


class AuthorityProcess:
    """`fedrec keys authority run`, which opens sums where the plan says so."""

    def __init__(self, bench: Bench, address: str) -> None:
        workspace = bench.workspace
        keys = workspace.folder / "keys"
        options: list[str | Path] = [
            *("--into", keys, "--every-seconds", "0.2", "--json"),
        ]
        command = [sys.executable, "-m", "fedrec", "keys", "authority", "run", address]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, name: str, round_id: int | None = None) -> dict[str, Any]:
        """Wait for an event and return it."""

        def found() -> dict[str, Any] | None:
            fits = (e for e in self.events if e["name"] == name and round_id in (None, e["round"]))
            return next(fits, None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._reader.is_alive(), timeout=_SLOW)
            event = found()
        assert event, f"no {name} of round {round_id}: {self.events}"
        return event

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def kill(self) -> None:
        """End it as a power cut does."""
        self._process.kill()
        self._process.wait()
        self._reader.join(DEADLINE_SECONDS)

    def close(self) -> None:
        """End the process if it still runs."""
        self.kill()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()
