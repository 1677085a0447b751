"""The life of a coordinator: start, serve, and stop without losing data."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import grpc
import structlog

from fedrec.clock import Clock, SystemClock
from fedrec.durable import DiskFull
from fedrec.errors import StorageError
from fedrec.extras import require
from fedrec.identity.certificates import expires_at
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.monitoring import MetricsEndpoint, Monitored, metrics_endpoint
from fedrec.plan.agreement import check_continued, plan_of_run
from fedrec.plan.algorithm import about_algorithm, algorithm_of
from fedrec.plan.exposure import check_exposure, check_one_process
from fedrec.privacy import BUDGET_SPENT
from fedrec.processes import handled_signals
from fedrec.protection import VectorSpec
from fedrec.settings.schema import CoordinatorSettings, Settings
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.v1 import admin_pb2, coordinator_pb2
from fedrec.wire.v1.admin_pb2_grpc import add_AdminServicer_to_server
from fedrec.wire.v1.coordinator_pb2_grpc import add_CoordinatorServicer_to_server
from fedrec_server.engine import Engine
from fedrec_server.federation import Federation, PublicCatalogue
from fedrec_server.metrics import CoordinatorMetrics
from fedrec_server.rounds.state import State
from fedrec_server.service.admin_service import AdminService
from fedrec_server.service.call_guard import CallGuard, StreamLimits
from fedrec_server.service.callers import Callers
from fedrec_server.service.coordinator_service import CoordinatorService
from fedrec_server.service.tls_port import (
    allow_connections,
    check_protocol,
    listen,
    options,
    own_credentials,
)
from fedrec_server.service.wire_recorder import WireRecorder
from fedrec_server.store.durable_files import DurabilityLost, Failpoint, no_failpoint
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.state_folder import installed_bundle, read_former_folder

if TYPE_CHECKING:
    from fedrec_server.page.serving import Page


Ending = Literal["interrupted", "terminated", "finished", "failed", "spent"]
"""Why a coordinator stopped serving: Ctrl-C or SIGHUP, SIGTERM, or the run's end.

The run ended as planned, failed, or spent its privacy budget.
"""

TICK_SECONDS = 0.25
GRACE_SECONDS = 30.0
SILENCE_SECONDS = 30.0
"""How long after a member's last sign the coordinator waits for others to learn of the end."""
FAREWELL_SECONDS = 600.0
"""How long it waits for them in all."""
_SECONDS_BETWEEN_REPORTS = 5.0
INTERRUPTED = 130


class Coordinator:
    """One run behind one port.

    Args:
        settings: the settings of this machine.
        federation: the constant part of the run.
        clock: the source of the time.
        failpoint: a hook for tests that kill the process.
        resume: whether to continue a failed or stopped run.
        recorder: the recorder of every message, for `fedrec audit --recording`.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        federation: Federation,
        *,
        clock: Clock | None = None,
        failpoint: Failpoint = no_failpoint,
        resume: bool = False,
        recorder: WireRecorder | None = None,
    ) -> None:
        self._settings = settings
        self._federation = federation
        self._clock = clock or SystemClock()
        self._failpoint = failpoint
        self._resume = resume
        self._recorder = recorder
        self._own = own_credentials(settings, federation.keys.roster)
        self._callers = Callers(self._roster, Path(settings.operators))
        self._engine: Engine | None = None
        self._server: Any = None
        self._health: Any = None
        self._ticker: asyncio.Task[None] | None = None
        self._metrics: CoordinatorMetrics | None = None
        self._endpoint: MetricsEndpoint | None = None
        self._page: Page | None = None

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        catalogue: PublicCatalogue,
        vectors: RoundVectors | VectorSpec,
        *,
        clock: Clock | None = None,
        failpoint: Failpoint = no_failpoint,
        resume: bool = False,
        accept_exposure: bool = False,
        recorder: WireRecorder | None = None,
    ) -> Self:
        """Assemble a coordinator. Only the key epoch is read.

        Args:
            accept_exposure: whether the operator accepts what a plan without encryption exposes.

        Raises:
            SettingsError: if the coordinator cannot start with these settings.
            CertificateExpired: if this machine's clock is outside the certificate's dates.
            RefusedError: if the plan exposes clients and the operator did not accept that.
            KeysError: if there is no key epoch, it belongs to different settings, or its context
                contains a secret key.
        """
        check_exposure(settings.plan, accepted=accept_exposure)
        check_one_process(settings.plan)
        if algorithm_of(settings.plan, 1).derived.personalises:
            require("threadpoolctl", *about_algorithm(settings.plan).modules)
        keys = _key_epoch(settings.coordinator)
        known = read_former_folder(Path(settings.coordinator.state)).plan_fingerprint
        plan = plan_of_run(settings.plan, known)
        check_continued(plan)
        federation = Federation.of(plan, catalogue, vectors, keys)
        return cls(
            settings.coordinator,
            federation,
            clock=clock,
            failpoint=failpoint,
            resume=resume,
            recorder=recorder,
        )

    @property
    def engine(self) -> Engine:
        """Return the running engine. It only exists between `start` and `stop`."""
        if self._engine is None:
            raise StorageError("The coordinator is not started.")
        return self._engine

    @property
    def page_url(self) -> str:
        """Return the page's address, or an empty string if no page is served."""
        return "" if self._page is None else self._page.url

    async def start(self) -> str:
        """Open the store and the port. Return `host:port`."""
        store = SqliteStore(
            Path(self._settings.state),
            self._federation.identity,
            reserve_bytes=self._settings.reserve_bytes,
            failpoint=self._failpoint,
        )
        try:
            engine = Engine(
                self._federation,
                store,
                clock=self._clock,
                maximum_upload_bytes=self._settings.maximum_upload_bytes,
                failpoint=self._failpoint,
            )
            self._open_metrics(engine)
            self._open_page(engine)
            self._server = self._new_server(engine)
            address = listen(self._server, self._settings, self._own)
            await engine.start(resume=self._resume)
        except BaseException:
            if self._server is not None:
                await self._server.stop(None)
            if self._endpoint is not None:
                self._endpoint.close()
            if self._page is not None:
                await self._page.close()
            store.close()
            raise
        self._engine = engine
        await self._server.start()
        try:
            await asyncio.to_thread(check_protocol, self._settings, address)
        except BaseException:
            await self.stop(grace_seconds=0.0)
            raise
        self._ticker = asyncio.create_task(self._tick(engine))
        if self._page is not None:
            self._page.start()
        structlog.get_logger().info("coordinator listens", address=address, run=engine.run.name)
        return address

    async def serve(
        self, on_start: Callable[[str, str], None], *, until_finished: bool = False
    ) -> Ending:
        """Serve until a signal, a lost disk or, if asked for, the run's end. Return the reason.

        The first SIGTERM, SIGINT or SIGHUP stops gracefully, the second one at once. Neither loses
        data.

        Args:
            on_start: called with the address and the run's name.
            until_finished: stop once the run has ended and its members know of it.

        Raises:
            StorageError: if the store's state is unknown.
        """
        allow_connections(len(self._federation.keys.roster.holders))
        try:
            address = await self.start()
        except DiskFull as error:
            # No client is connected yet that would retry.
            raise StorageError(
                error.message,
                remedy="The coordinator has ended, and no data is lost. Free disk space, then "
                "start it again.",
            ) from error
        except DurabilityLost as error:
            raise _failed(str(error)) from error
        signals = _Signals()
        loop = asyncio.get_running_loop()
        stopping = handled_signals()
        # First, because a caller of `on_start` may stop the coordinator at once.
        for number in stopping:
            loop.add_signal_handler(number, signals.take, number)
        try:
            on_start(address, self.engine.run.name)
        except BaseException:
            await self.stop(grace_seconds=0.0)
            raise
        waits: list[Coroutine[Any, Any, object]] = [
            signals.came.wait(),
            self.engine.run.work.lost.wait(),
            self.engine.run.halted.wait(),
        ]
        if until_finished:
            waits.append(self._finished())
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            run = self.engine.run
            lost, run_end = run.work.lost.is_set(), _end_of(run.state)
            only_waited = until_finished and run.state.ending is not None
            await self.stop(grace_seconds=0.0 if lost else GRACE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            for number in stopping:
                loop.remove_signal_handler(number)
        if lost:
            raise _failed(run.work.why_lost)
        if run.problem is not None:
            raise run.problem
        for task in done:
            task.result()
        return run_end if only_waited else signals.ending or run_end

    async def stop(self, *, grace_seconds: float = GRACE_SECONDS) -> None:
        """Accept no further calls, finish started work, and close everything."""
        engine = self.engine
        engine.stop_waiting()
        structlog.get_logger().info(
            "coordinator stops", run=engine.run.name, published_round=engine.run.state.published
        )
        await self._health.enter_graceful_shutdown()
        if self._page is not None:
            await self._page.close()
        await self._server.stop(grace_seconds)
        # Calls arrived until here. The roster of the run's epoch decides which callers are allowed.
        self._engine = None
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        if self._recorder is not None:
            self._recorder.close()
        if self._endpoint is not None:
            self._endpoint.close()
        await engine.close()

    def _open_metrics(self, engine: Engine) -> None:
        """Count events, and serve metrics if the settings name an address."""
        local = self._settings
        where = Monitored.of(
            local.metrics_address,
            local.metrics_token,
            local.metrics_certificate,
            section="coordinator",
        )
        if where.address:
            ends = expires_at(self._own.certificate)
            self._metrics = CoordinatorMetrics(engine, local, certificate_ends=ends)
            self._endpoint = metrics_endpoint(self._metrics.registry, where)

    def _open_page(self, engine: Engine) -> None:
        """Start the page's port if the settings name an address.

        It responds once the run is loaded.
        """
        if self._settings.page:
            # Without a page, no web server is needed.
            from fedrec_server.page.serving import Page

            self._page = Page(engine, self._settings)

    def _new_server(self, engine: Engine) -> Any:
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc

        guard = CallGuard(
            callers=self._callers,
            limits=StreamLimits(),
            stopping=lambda: engine.run.stopping,
            on_refused=None if self._metrics is None else self._metrics.refused,
        )
        # In front, to see calls that the guard rejects. Absent unless recording was requested.
        recorders = [] if self._recorder is None else [self._recorder]
        n_clients = len(engine.run.federation.keys.roster.members)
        n_clients = min(n_clients, engine.run.federation.plan.rounds.clients_per_round or n_clients)
        server = grpc.aio.server(interceptors=[*recorders, guard], options=options(n_clients))
        add_CoordinatorServicer_to_server(CoordinatorService(engine), server)  # type: ignore[no-untyped-call]  # generated
        add_AdminServicer_to_server(AdminService(engine, self._page), server)  # type: ignore[no-untyped-call]  # generated
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [
            coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name,
            admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
            health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
        ]
        if self._settings.reflection:
            from grpc_reflection.v1alpha import reflection

            reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
        return server

    def _roster(self) -> Roster:
        """Return the roster in force, which changes when an epoch is installed."""
        federation = self._federation if self._engine is None else self._engine.run.federation
        return federation.keys.roster

    async def _tick(self, engine: Engine) -> None:
        async def look() -> None:
            if self._metrics is not None:
                self._metrics.tick()

        async def repeat(step: Callable[[], Awaitable[None]]) -> None:
            while not engine.run.work.lost.is_set():
                await asyncio.sleep(TICK_SECONDS)
                # `Work` logs failures. Without the next tick, deadlines would never pass.
                with contextlib.suppress(Exception):
                    await step()

        # A tick waits for the run's lock and a busy disk. Metrics must not stand still.
        await asyncio.gather(repeat(engine.tick), repeat(look))

    async def _finished(self) -> None:
        """Wait until the run has ended and its members know of it."""
        engine, run = self.engine, self.engine.run
        had_ended = run.state.ending is not None
        while run.state.ending is None:
            # A resumed run had ended before, and the event is still set.
            engine.finished.clear()
            await engine.finished.wait()
        members = {one.client_id for one in run.federation.keys.roster.members}
        if not had_ended:
            # Presence begins with the process. Earlier clients may still be on their way back.
            counted = engine.counted
            members = {one for one in members if one in run.presence.seen or counted.of(one).round}
        await self._farewells(members)

    async def _farewells(self, members: Collection[ClientId]) -> None:
        """Wait until members have taken the final version, and said goodbye after that."""
        presence, began = self.engine.run.presence, self._clock.now()
        log, told = structlog.get_logger().bind(run=self.engine.run.name), began
        while left := [one for one in members if not presence.is_done(one)]:
            now = self._clock.now()
            last = max(began, *map(presence.last_sign, members))
            if now - last >= SILENCE_SECONDS or now - began >= FAREWELL_SECONDS:
                # The others still compute, for themselves.
                if missed := sum(not presence.has_end(one) for one in left):
                    log.warning("clients missed the end", clients=missed)
                return
            if now - told >= _SECONDS_BETWEEN_REPORTS:
                log.info("waits for clients to take the final version", clients=len(left))
                told = now
            await asyncio.sleep(TICK_SECONDS)


class _Signals:
    """The first signal requests a stop. The second one ends the process."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.ending: Ending | None = None

    def take(self, number: int) -> None:
        if self.came.is_set():
            # The store is consistent at every moment.
            os._exit(INTERRUPTED)
        self.ending = "terminated" if number == signal.SIGTERM else "interrupted"
        self.came.set()


def _failed(why: str) -> StorageError:
    return StorageError(
        f"The store failed. {why}",
        remedy="Check the disk, then start the coordinator again. It checks the state folder.",
    )


def _end_of(state: State) -> Ending:
    """Return how a run ended that was not interrupted."""
    ending = state.ending
    if ending is None or not ending.failed:
        return "finished"
    return "spent" if ending.reason.startswith(BUDGET_SPENT) else "failed"


def _key_epoch(settings: CoordinatorSettings) -> KeyEpoch:
    """Return the epoch from the settings' file or, without that file, the last installed one.

    If both exist, the engine continues in the newer one. Operators may delete the file, to keep no
    secrets of past epochs.
    """
    path = Path(settings.epoch)
    installed = None if path.exists() else installed_bundle(Path(settings.state))
    return KeyEpoch.load(path) if installed is None else KeyEpoch.from_json(installed)
