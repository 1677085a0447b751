"""Coordinators and clients in processes of their own, so that they can be killed;
a proxy that reads what the test lets it read.

The processes are forked from a server that has imported torch and gRPC already, which takes
longer than a whole federation.

It ends TLS on both sides, which takes the coordinator's key and the client's: nothing but a test
that made the whole federation has both.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from world.bench import N_ITEMS, Bench
from world.clock import DEADLINE_SECONDS
from world.links import Passing

from fedrec.errors import FolderInUse, SettingsError
from fedrec.ids import ClientId, RoundId
from fedrec.settings.schema import Settings
from fedrec.telemetry import log_to_stderr
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.chunks import ByteChunk
from fedrec.wire.link import Link
from fedrec.wire.messages import StepMessage, UploadHeader
from fedrec_server.rounds.state import State

PRELOADED = [
    "fedrec.algorithms.accelerators.fedmf",
    "fedrec.training.learner",
    "fedrec_client.app",
    "fedrec_server.app",
    "tenseal",
]
PR_SET_PDEATHSIG = 1
INTERRUPTED = 130
PIECE_BYTES = 16 * 1024
"""Updates of the tests are sent in pieces of this size, so that half of one can be there."""


def processes() -> Any:
    """Return the way in which all processes of the tests are made."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@dataclass(frozen=True, kw_only=True)
class KillClient:
    """Where a client dies.

    Attributes:
        place: "in training", "before the upload", "in the upload" (it sends half of it and then
            waits to be killed), the name of an event, or under masks "before" or "after" the
            sending of a step's message.
        round: None where the event is about no round.
        number: the signal that it gets.
    """

    place: str
    round: int | None
    number: signal.Signals = signal.SIGKILL

    def strike(self) -> None:
        """Send the signal to this process."""
        os.kill(os.getpid(), self.number)


@dataclass(frozen=True, kw_only=True)
class KillCoordinator:
    """Where a coordinator dies.

    Attributes:
        failpoint: the name of the place in the code.
        phase: of the round in progress at that moment; "reporting" where it is published, and
            clients have yet to say alike what is in its sum.
        counted: updates that it has; how many are counted at once depends on when they arrive.
        reports: of clients that it has.

    None stands for what does not matter.
    """

    failpoint: str
    round: int
    phase: str | None = None
    counted: int | None = None
    reports: int | None = None

    def is_here(self, name: str, state: State) -> bool:
        """Tell whether the coordinator has come to the place."""
        round_, waiting = state.current, state.reporting
        if waiting is not None:
            found = (waiting.round, "reporting", self.counted, len(waiting.reports))
        elif round_ is not None:
            found = (round_.number, round_.phase, len(round_.accepted), self.reports)
        else:
            return False
        number, phase, counted, reports = found
        return (
            (name, number) == (self.failpoint, self.round)
            and self.phase in (None, phase)
            and self.counted in (None, counted)
            and self.reports in (None, reports)
        )


class Child:
    """A process of the tests."""

    def __init__(self, work: Any, *arguments: Any) -> None:
        context = processes()
        self._ours, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=work, args=(*arguments, theirs))
        self.process.start()
        theirs.close()

    def answer(self) -> Any:
        """Return the next thing that the child tells."""
        assert self._ours.poll(DEADLINE_SECONDS), "the child says nothing"
        return self._ours.recv()

    def ended(self, where: object = "") -> int:
        """Wait for the end and return the exit code."""
        self.process.join(DEADLINE_SECONDS)
        assert self.process.exitcode is not None, f"the child does not end {where}"
        return self.process.exitcode

    def close(self) -> None:
        """End the process if it still runs."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(DEADLINE_SECONDS)
        self._ours.close()


class ClientProcess(Child):
    """A client of the roster; `answer` returns the reason why its run ended.

    Args:
        in_files: its private tables lie in files of two users each, as if they outgrew memory.
    """

    def __init__(
        self,
        bench: Bench,
        number: int,
        address: str,
        kill: KillClient | None = None,
        *,
        in_files: bool = False,
    ) -> None:
        super().__init__(_run_client, bench.client_settings(number, address), kill, in_files)


class DidNotStart(Exception):
    """A coordinator that ended before it listened, with the sentence that it gave."""


class CoordinatorProcess(Child):
    """A coordinator; killed at one of several places, if any are given.

    Raises:
        DidNotStart: where it ends with an error of its own before it listens.
    """

    def __init__(
        self, bench: Bench, *, kill: KillCoordinator | None = None, **changes: Any
    ) -> None:
        super().__init__(_run_coordinator, bench.coordinator_settings(**changes), kill)
        first = self.answer()
        if isinstance(first, DidNotStart):
            self.close()
            raise first
        self.address: str = first


def _die_with_the_tests() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _run_client(
    settings: Settings, kill: KillClient | None, in_files: bool, parent: Connection
) -> None:
    from fedrec.follower.events import ClientEvent
    from fedrec.follower.patient_link import Backoff, Stopped, StopSwitch
    from fedrec.wire import grpc_link
    from fedrec_client.app import ClientApp
    from fedrec_client.connecting import open_link

    _die_with_the_tests()
    log_to_stderr(logging.ERROR)
    if in_files:
        _put_tables_into_files(settings)
    grpc_link.CHUNK_BYTES = PIECE_BYTES
    training: list[int] = []
    grpc_link.chunks = lambda data, start=0: _chunks(data, start, kill, training)

    def on_event(event: ClientEvent) -> None:
        if event.name == "training" and event.round is not None:
            training[:] = [event.round]
        if kill is not None and (event.name, event.round) == (kill.place, kill.round):
            kill.strike()

    if kill is not None and kill.place == "in training":
        _die_in_training(kill, training)
    link: Link = open_link(settings)
    if kill is not None and kill.place.startswith(("before ", "after ")):
        link = _DyingLink(link, kill)
    stop = StopSwitch()
    client = ClientApp(
        settings,
        link=link,
        accept_exposure=True,
        on_event=on_event,
        backoff=Backoff(stop, jitter=lambda: 0.1),
    )
    try:
        with stop.on_signals():
            parent.send(client.run().reason)
    except Stopped:
        sys.exit(INTERRUPTED)


def _put_tables_into_files(settings: Settings) -> None:
    from fedrec.model import blocked_table
    from fedrec.model.tables import TableRoom, table_bytes
    from fedrec.plan.algorithm import algorithm_of

    widths = algorithm_of(settings.plan, N_ITEMS).derived.private_widths
    blocked_table.BLOCK_BYTES = table_bytes(2, widths)
    TableRoom.is_enough_for = lambda self, n_users, widths: False  # type: ignore[method-assign]


def _chunks(
    data: bytes, start: int, kill: KillClient | None, training: list[int]
) -> Iterator[ByteChunk]:
    for offset in range(start, len(data), PIECE_BYTES):
        # The update is the first that a client sends once it trained.
        if kill is not None and kill.place == "in the upload" and training == [kill.round]:
            while offset >= len(data) / 2:
                signal.pause()
        yield ByteChunk(offset=offset, data=data[offset : offset + PIECE_BYTES])


def _die_in_training(kill: KillClient, training: list[int]) -> None:
    """Die where a chunk of users has been trained but nothing of it is kept."""
    from fedrec.training import fitting

    summed = fitting.training_sums

    def dying(*values: Any) -> Any:
        if training == [kill.round]:
            kill.strike()
        return summed(*values)

    fitting.training_sums = dying


class _DyingLink(Passing):
    def __init__(self, link: Link, kill: KillClient) -> None:
        super().__init__(link)
        self._kill = kill

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        self._strike("before the upload", header.round)
        return self.link.submit_update(header, payload)

    def own_model(self, client_id: ClientId, run: str, round_id: RoundId, parameter: str) -> bytes:
        found = self.link.own_model(client_id, run, round_id, parameter)
        self._strike("after its own model", round_id)
        return found

    def submit_masks(self, message: StepMessage) -> bool:
        self._strike(f"before {message.step}", message.round)
        duplicate: bool = self.link.submit_masks(message)
        self._strike(f"after {message.step}", message.round)
        return duplicate

    def _strike(self, place: str, round_id: int) -> None:
        if (place, round_id) == (self._kill.place, self._kill.round):
            self._kill.strike()


def _run_coordinator(settings: Settings, kill: KillCoordinator | None, parent: Connection) -> None:
    from fedrec_server.app import Coordinator
    from fedrec_server.federation import PublicCatalogue

    _die_with_the_tests()
    log_to_stderr(logging.WARNING)
    known: list[Coordinator] = []

    def failpoint(name: str) -> None:
        running = known and known[0]._engine is not None
        if kill is not None and running and kill.is_here(name, known[0].engine.run.state):
            os.kill(os.getpid(), signal.SIGKILL)

    catalogue = PublicCatalogue.load(Path(settings.data.catalogue or ""))
    spec = RoundVectors.of(settings.plan, N_ITEMS)
    coordinator = Coordinator.from_settings(
        settings, catalogue, spec, accept_exposure=True, failpoint=failpoint
    )
    known.append(coordinator)
    try:
        asyncio.run(coordinator.serve(lambda address, run: parent.send(address)))
    except (SettingsError, FolderInUse) as error:
        # What it writes goes where its fork server's output went, which another test began.
        parent.send(DidNotStart(str(error)))
        sys.exit(1)


def close_all(children: Iterable[Child]) -> None:
    """End what still runs."""
    for child in children:
        child.close()


PROXY_BYTES = 8 * 1024


class Proxy:
    """Passes bytes on in both directions.

    Args:
        address: host:port of the coordinator.
        on_sent: called with the bytes that the client sends before they are passed on.
        coordinator: the coordinator's key and certificate.
        client: the client's.

    Attributes:
        address: where clients connect to.
    """

    def __init__(
        self, address: str, on_sent: Callable[[bytes], None], *, coordinator: Path, client: Path
    ) -> None:
        host, _, port = address.rpartition(":")
        self._upstream = (host, int(port))
        self._on_sent = on_sent
        self._inwards = _context(ssl.PROTOCOL_TLS_SERVER, coordinator)
        self._onwards = _context(ssl.PROTOCOL_TLS_CLIENT, client)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Cut everything."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._take, "127.0.0.1", 0, ssl=self._inwards)

    async def _cut(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            onwards = await asyncio.open_connection(*self._upstream, ssl=self._onwards)
            await asyncio.gather(
                _pass_on(reader, onwards[1], self._on_sent),
                _pass_on(onwards[0], writer, lambda data: None),
            )


def _context(kind: int, own: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(own)
    context.set_alpn_protocols(["h2"])
    return context


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_data: Callable[[bytes], None]
) -> None:
    try:
        while data := await reader.read(PROXY_BYTES):
            on_data(data)
            writer.write(data)
            await writer.drain()
    finally:
        writer.transport.abort()
