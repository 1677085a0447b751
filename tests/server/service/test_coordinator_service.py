"""A coordinator over gRPC: what a client gets, and what is refused before it costs anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from blake3 import blake3
from server.support.federations import CATALOGUE, REVEALER, SEALED_BYTES, Bench, identity, operator
from server.support.serving import Serving, serving
from structlog.testing import capture_logs

from fedrec.errors import (
    BadSignature,
    CatalogueMismatch,
    ConflictingUpload,
    CorruptUpload,
    FedrecError,
    KeysError,
    MalformedUpdate,
    NotInRoster,
    PlanMismatch,
    ProtocolError,
    RefusedError,
    RoundClosed,
    RoundError,
    TooLarge,
    VersionMismatch,
)
from fedrec.ids import RoundId
from fedrec.protection import BFV, Paillier, Protection
from fedrec.wire.error_status import from_rpc_error
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import PROTOCOL_VERSION, Finished, Reveal, Train, Wait
from fedrec.wire.v1 import admin_pb2, coordinator_pb2
from fedrec.wire.v1.admin_pb2_grpc import AdminStub

CLIENTS = range(3)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Serving]:
    with serving(Bench.of(3), tmp_path) as found:
        yield found


@pytest.fixture
def collecting(plain: Serving) -> Serving:
    plain.come(CLIENTS)
    return plain


def refusal(found: Serving, *chunks: tuple[int, bytes], **changes: object) -> FedrecError:
    """Return the error that a changed but properly signed upload of client 0 gets."""
    payload = found.bench.payload(0, 1)
    header = found.bench.header(0, 1, payload, found.run, **changes)
    with pytest.raises(grpc.RpcError) as caught:
        found.submit(header, *(chunks or [(0, payload)]))
    return from_rpc_error(caught.value)


class TestWholeRun:
    @pytest.mark.parametrize("kind", ["plain", "veiled", "reveals"])
    def test_from_the_first_call_to_the_last(self, tmp_path: Path, kind: str) -> None:
        bench = Bench.of(3, veiled=kind == "veiled", reveals=kind == "reveals")
        parties = [*CLIENTS, REVEALER] if kind == "reveals" else [*CLIENTS]
        with serving(bench, tmp_path) as found, ThreadPoolExecutor(4) as threads:
            sums = list(threads.map(lambda number: self.live(found, number), parties))
            metrics = [found.coordinator.engine.run.store.entries(0, 1000)]
        wanted = [bench.sum_of(set(CLIENTS), round_id) for round_id in (1, 2, 3)]
        assert sums == [wanted] * len(parties)
        told = "round measured" if kind == "veiled" else "round published"
        shown = [json.loads(e.fields_json)["metrics"] for e in metrics[0] if e.kind == told]
        assert len(shown) == 3 and all(len(values) == 2 for values in shown)

    def live(self, found: Serving, number: int) -> list[bytes]:
        """Be a client until the run is over; return what was published."""
        me = identity(number).client_id
        version = RoundId(0)
        sums = []
        with found.link(number) as link:
            info = link.federation(me)
            assert link.catalogue(me) == CATALOGUE.data
            assert info.wrapped_secrets and info.n_items == 1
            while True:
                answer = link.next_task(me, info.run, version, wait_seconds=10.0)
                while answer.published_round > version:
                    published = link.published(me, info.run, version)
                    assert published is not None
                    version = published.round
                    sums.append(published.blob)
                    if found.coordinator.engine.run.state.rules.shares_key:
                        link.submit_report(found.bench.report(number, version, found.run))
                task = answer.task
                if isinstance(task, Finished):
                    assert link.published(me, info.run, version) is None
                    assert link.snapshot(me, info.run, version) is None
                    return sums
                if isinstance(task, Train):
                    assert not found.upload(number, task.round)
                elif isinstance(task, Reveal):
                    self.reveal(found, link, task)

    def reveal(self, found: Serving, link: GrpcLink, task: Reveal) -> None:
        me = identity(REVEALER).client_id
        parts = [
            link.contribution(me, found.run, task.round, header.client_id)
            for header in task.contributions
        ]
        assert [blake3(part).digest() for part in parts] == [
            header.digest for header in task.contributions
        ]
        total = link.round_sum(me, found.run, task.round)
        # The made-up seal is no seal, so that the test can compare sums.
        digest = blake3(total).digest()
        link.submit_reveal(found.bench.statement(task, found.run, published_digest=digest), total)


class TestAdmission:
    """Every bad input is told what is wrong, and costs neither disk nor the round."""

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, collecting: Serving, tmp_path: Path) -> Iterator[None]:
        yield
        spool = tmp_path / "state"
        assert not list((spool / "updates").iterdir())
        state = collecting.coordinator.engine.run.state
        assert state.current is not None and not state.current.accepted
        assert not collecting.upload(0), "the honest update is still taken"

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"protocol_version": "1.0"}, VersionMismatch),
            ({"federation": "books"}, ProtocolError),
            ({"run": "other"}, ProtocolError),
            ({"round": RoundId(7)}, RoundError),
            ({"kind": "train"}, ProtocolError),
            ({"base_round": RoundId(1)}, ProtocolError),
            ({"epoch": 2}, KeysError),
            ({"catalogue_fingerprint": "d" * 64}, CatalogueMismatch),
            ({"plan_fingerprint": "d" * 64}, PlanMismatch),
            ({"length": 10}, MalformedUpdate),
            ({"length": 17 << 20}, TooLarge),
        ],
    )
    def test_header(
        self, collecting: Serving, changes: dict[str, object], expected: type[FedrecError]
    ) -> None:
        assert type(refusal(collecting, **changes)) is expected

    def test_key_outside_the_roster(self, collecting: Serving) -> None:
        payload = collecting.bench.payload(9, 1)
        header = collecting.bench.header(9, 1, payload, collecting.run)
        with pytest.raises(grpc.RpcError) as caught:
            collecting.submit(header, (0, payload), who=9)
        assert type(from_rpc_error(caught.value)) is NotInRoster

    def test_forged_signature(self, collecting: Serving) -> None:
        payload = collecting.bench.payload(0, 1)
        header = collecting.bench.header(0, 1, payload, collecting.run)
        forged = replace(header, client_id=identity(1).client_id)
        for who, bad in (
            (1, forged),
            (0, replace(header, signature=b"")),
            (0, replace(header, signature=bytes(64))),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                collecting.submit(bad, (0, payload), who=who)
            assert type(from_rpc_error(caught.value)) is BadSignature

    def test_replay_of_another_round(self, collecting: Serving) -> None:
        payload = collecting.bench.payload(0, 1)
        header = collecting.bench.header(0, 2, payload, collecting.run)
        with pytest.raises(grpc.RpcError) as caught:
            collecting.submit(replace(header, round=RoundId(1)), (0, payload))
        assert type(from_rpc_error(caught.value)) is BadSignature

    def test_truncated(self, collecting: Serving) -> None:
        payload = collecting.bench.payload(0, 1)
        assert type(refusal(collecting, (0, payload[:-1]))) is CorruptUpload

    def test_longer_than_announced(self, collecting: Serving) -> None:
        payload = collecting.bench.payload(0, 1)
        error = refusal(collecting, (0, payload), (len(payload), b"more"))
        assert type(error) is CorruptUpload and "beyond" in str(error)

    def test_chunks_out_of_order(self, collecting: Serving) -> None:
        payload = collecting.bench.payload(0, 1)
        error = refusal(collecting, (0, payload[:10]), (11, payload[11:]))
        assert type(error) is CorruptUpload

    def test_chunk_above_its_limit(self, collecting: Serving) -> None:
        assert type(refusal(collecting, (0, bytes((1 << 20) + 1)))) is TooLarge

    def test_message_above_its_limit(self, collecting: Serving) -> None:
        assert type(refusal(collecting, (0, bytes(5 << 20)))) is TooLarge

    def test_wrong_hash(self, collecting: Serving) -> None:
        assert type(refusal(collecting, digest=bytes(32))) is CorruptUpload

    def test_foreign_bytes(self, collecting: Serving) -> None:
        payload = bytes(len(collecting.bench.payload(0, 1)))
        digest = blake3(payload).digest()
        assert type(refusal(collecting, (0, payload), digest=digest)) is MalformedUpdate

    def test_message_of_another_key(self, collecting: Serving) -> None:
        other = Bench.of(3, values=6, minimum_clients=2)
        payload = bytearray(other.payload(0, 1))
        payload[30] ^= 1
        digest = blake3(payload).digest()
        error = refusal(collecting, (0, bytes(payload)), digest=digest)
        assert type(error) is MalformedUpdate

    def test_stream_without_header(self, collecting: Serving) -> None:
        payload = collecting.bench.payload(0, 1)
        header = collecting.bench.header(0, 1, payload, collecting.run)
        with collecting.channel() as channel:
            method = channel.stream_unary("/fedrec.wire.v1.Coordinator/SubmitUpdate")
            with pytest.raises(grpc.RpcError) as caught:
                method(iter([b""]), timeout=5)
            assert type(from_rpc_error(caught.value)) is ProtocolError
        assert header


class TestTransport:
    def test_other_protocol_version(self, plain: Serving) -> None:
        request = coordinator_pb2.GetFederationRequest(
            protocol_version="1.0", client_id=identity(0).client_id
        )
        with capture_logs() as logs, pytest.raises(grpc.RpcError) as caught:
            self.call(plain, "GetFederation", request, timeout=5)
        error = from_rpc_error(caught.value)
        assert type(error) is VersionMismatch
        both = f"The client's protocol version is 1.0, the coordinator speaks {PROTOCOL_VERSION}."
        assert error.message.endswith(both) and error.remedy not in error.message
        (line,) = (line for line in logs if line["event"] == "call refused")
        label = identity(0).public.label
        assert label and (line["client"], line["code"]) == (label, "version_mismatch")

    @pytest.mark.parametrize("seconds", [None, 3600])
    def test_call_without_a_sensible_deadline(self, plain: Serving, seconds: int | None) -> None:
        request = coordinator_pb2.GetFederationRequest(
            protocol_version="2.0", client_id=identity(0).client_id
        )
        with pytest.raises(grpc.RpcError) as caught:
            self.call(plain, "GetFederation", request, timeout=seconds)
        error = from_rpc_error(caught.value)
        assert type(error) is ProtocolError and "deadline" in str(error)

    def call(self, found: Serving, name: str, request: object, timeout: int | None) -> object:
        with found.channel() as channel:
            method = channel.unary_unary(
                f"/fedrec.wire.v1.Coordinator/{name}",
                request_serializer=type(request).SerializeToString,  # type: ignore[attr-defined]
            )
            return method(request, timeout=timeout)

    def test_internal_errors_say_nothing_but_an_incident(
        self, plain: Serving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def defect(*_: object) -> None:
            raise ZeroDivisionError("the secret detail")

        monkeypatch.setattr(type(plain.bench.federation), "info", defect)
        with plain.link() as link, pytest.raises(FedrecError) as caught:
            link.federation(identity(0).client_id)
        assert caught.value.code == "internal"
        assert "secret" not in str(caught.value) and "incident" in str(caught.value)

    def test_health_is_told_to_everybody_with_a_certificate(self, plain: Serving) -> None:
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with plain.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING

    def test_reflection_only_where_asked_for(self, tmp_path: Path) -> None:
        from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

        def services(found: Serving) -> list[str]:
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            with found.channel(operator()) as channel:
                stub = reflection_pb2_grpc.ServerReflectionStub(channel)
                stream = stub.ServerReflectionInfo(iter([ask]), timeout=5)
                return [s.name for a in stream for s in a.list_services_response.service]

        with serving(Bench.of(3), tmp_path) as found, pytest.raises(grpc.RpcError):
            services(found)
        with serving(
            Bench.of(3),
            tmp_path,
            prepare=lambda settings: settings.model_copy(update={"reflection": True}),
        ) as found:
            assert "fedrec.wire.v1.Coordinator" in services(found)


class TestUploads:
    def test_five_at_once_count_once(self, collecting: Serving) -> None:
        with ThreadPoolExecutor(5) as threads:
            found = list(threads.map(lambda _: collecting.upload(0), range(5)))
        assert sorted(found) == [False, True, True, True, True]
        payload = collecting.bench.payload(0, 1, salt=1)
        header = collecting.bench.header(0, 1, payload, collecting.run)
        with collecting.link() as link, pytest.raises(ConflictingUpload):
            link.submit_update(header, payload)

    def test_late(self, collecting: Serving) -> None:
        bench = collecting.bench
        for number in CLIENTS:
            collecting.upload(number)
        collecting.do(collecting.coordinator.engine.run.work.settled())
        assert collecting.upload(0), "a repeated one is told so even after publication"
        payload = bench.payload(0, 1, salt=1)
        with collecting.link() as link, pytest.raises(ConflictingUpload):
            link.submit_update(bench.header(0, 1, payload, collecting.run), payload)

    def test_late_after_abandoned(self, tmp_path: Path) -> None:
        with serving(Bench.of(3), tmp_path) as found:
            found.come(CLIENTS)
            found.do(found.coordinator.engine.stop_run(at_once=True))
            with pytest.raises(RoundClosed):
                found.upload(0)

    def test_several_chunks_resume_where_the_last_call_ended(self, tmp_path: Path) -> None:
        bench = Bench.of(3, values=700_000)
        payload = bench.payload(0, 1)
        assert len(payload) > 2 << 20
        with serving(bench, tmp_path) as found:
            found.come(CLIENTS)
            header = bench.header(0, 1, payload, found.run)
            with pytest.raises(grpc.RpcError):
                found.submit(header, (0, payload[: 1 << 20]))
            with found.link() as link:
                status = link._status(header)
                assert (status.offset, status.accepted) == (1 << 20, False)
                assert not link.submit_update(header, payload)
                assert link._status(header).accepted

    @pytest.mark.parametrize(
        "method", ["NextTask", "GetFederation", "FetchPublished", "SubmitReport"]
    )
    def test_what_is_no_message_is_refused_without_a_traceback(
        self, collecting: Serving, capsys: pytest.CaptureFixture[str], method: str
    ) -> None:
        with collecting.channel() as channel:
            call = channel.unary_unary(f"/fedrec.wire.v1.Coordinator/{method}")
            if method == "FetchPublished":
                call = channel.unary_stream(f"/fedrec.wire.v1.Coordinator/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                found = call(b"\xff" * 1000, timeout=20)
                list(found)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert type(from_rpc_error(caught.value)) is ProtocolError
        assert "Traceback" not in "".join(capsys.readouterr())

    def test_too_many_streams_of_one_client(self, collecting: Serving) -> None:
        release = threading.Event()

        def silent() -> Iterator[bytes]:
            release.wait(20)
            yield from ()

        # By which connections they come does not matter.
        with collecting.channel() as one, collecting.channel() as other:
            name = "/fedrec.wire.v1.Coordinator/SubmitUpdate"
            methods = (one.stream_unary(name), other.stream_unary(name))
            calls = [methods[n % 2].future(silent(), timeout=20) for n in range(21)]
            try:
                first = next(iter(self.done(calls)))
                assert type(from_rpc_error(first.exception())) is TooLarge
            finally:
                release.set()
                for call in calls:
                    call.cancel()

    def done(self, calls: list[grpc.Future]) -> list[grpc.Future]:
        ended = threading.Event()
        for call in calls:
            call.add_done_callback(lambda _: ended.set())
        assert ended.wait(10)
        return [call for call in calls if call.done()]


def revealing(found: Serving) -> Reveal:
    """Bring a round to where the key authority opens it, and return its task."""
    found.come(CLIENTS)
    for number in CLIENTS:
        found.upload(number)
    found.do(found.coordinator.engine.run.work.settled())
    with found.link(REVEALER) as link:
        me = identity(REVEALER).client_id
        task = link.next_task(me, found.run, RoundId(0), wait_seconds=0.0).task
    assert isinstance(task, Reveal)
    return task


class TestRevealing:
    def test_nobody_else_fetches_contributions_or_speaks(self, tmp_path: Path) -> None:
        bench = Bench.of(3, reveals=True)
        with serving(bench, tmp_path) as found:
            task = revealing(found)
            me, other = identity(0).client_id, identity(1).client_id
            with found.link(0) as link:
                assert isinstance(
                    link.next_task(me, found.run, RoundId(0), wait_seconds=0.0).task, Wait
                )
                with pytest.raises(RefusedError):
                    link.contribution(me, found.run, RoundId(1), other)
                with pytest.raises(RefusedError):
                    link.round_sum(me, found.run, RoundId(1))
                said = replace(bench.statement(task, found.run), client_id=me)
                signed = replace(said, signature=identity(0).sign(said.statement()))
                with pytest.raises(RefusedError):
                    link.submit_reveal(signed, b"sealed")

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"manifest_digest": bytes(32)}, ProtocolError),
            ({"metrics": bytes(8)}, ProtocolError),
            ({"published_digest": bytes(32)}, ProtocolError),
            ({"epoch": 2}, KeysError),
            ({"run": "other"}, ProtocolError),
        ],
    )
    def test_statements_are_checked(
        self, tmp_path: Path, changes: dict[str, object], expected: type[FedrecError]
    ) -> None:
        bench = Bench.of(3, reveals=True)
        sealed = b"honest" * SEALED_BYTES
        with serving(bench, tmp_path) as found, found.link(REVEALER) as link:
            task = revealing(found)
            with pytest.raises(expected) as caught:
                link.submit_reveal(bench.statement(task, found.run, **changes), sealed)
            assert type(caught.value) is expected
            unsigned = replace(bench.statement(task, found.run), signature=bytes(64))
            with pytest.raises(BadSignature):
                link.submit_reveal(unsigned, sealed)
            link.submit_reveal(bench.statement(task, found.run), sealed)

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"metrics": b""}, ProtocolError),
            ({"round": RoundId(2)}, RoundError),
            ({"epoch": 2}, KeysError),
            ({"run": "other"}, ProtocolError),
            ({"client_id": identity(1).client_id}, BadSignature),
            ({"client_id": identity(8).client_id}, NotInRoster),
        ],
    )
    def test_reports_are_checked(
        self, tmp_path: Path, changes: dict[str, object], expected: type[FedrecError]
    ) -> None:
        bench = Bench.of(3, veiled=True)
        with serving(bench, tmp_path) as found:
            found.come(CLIENTS)
            for number in CLIENTS:
                found.upload(number)
            found.do(found.coordinator.engine.run.work.settled())
            named = changes.get("client_id")
            who = next((n for n in (1, 8) if identity(n).client_id == named), 0)
            with found.link(who) as link, pytest.raises(expected) as caught:
                link.submit_report(bench.report(0, 1, found.run, **changes))
            assert type(caught.value) is expected
            with found.link(0) as link:
                for _ in range(2):
                    link.submit_report(bench.report(0, 1, found.run))
                with pytest.raises(ConflictingUpload):
                    link.submit_report(bench.report(0, 1, found.run, "lie"))
            assert found.coordinator.engine.run.state.reporting is not None
            with found.link(1) as link:
                link.submit_report(bench.report(1, 1, found.run))
            assert found.coordinator.engine.run.state.reporting is None
            with found.link(2) as link:
                link.submit_report(bench.report(2, 1, found.run))


class TestAdmin:
    def test_status_events_and_stop(self, collecting: Serving) -> None:
        collecting.upload(0)
        with collecting.channel(operator()) as channel:
            stub = AdminStub(channel)
            status = stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=5)
            assert (status.federation, status.rounds_planned) == ("movies", 3)
            assert (status.current.phase, status.current.arrived) == ("collecting", 1)
            assert (status.current.expected, status.clients_in_roster) == (3, 3)
            follow = admin_pb2.WatchEventsRequest(follow=True)
            events = stub.WatchEvents(follow)
            assert next(events).kind == "round opened"
            assert next(events).kind == "update counted"
            reply = stub.StopRun(admin_pb2.StopRunRequest(now=True), timeout=5)
            assert "over" in reply.message
            assert [next(events).kind for _ in range(3)] == [
                "stop asked for",
                "round abandoned",
                "run finished",
            ]
            events.cancel()
            status = stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=5)
            assert status.finished and status.rounds_abandoned == 1


@pytest.mark.parametrize("kind", [BFV, Paillier])
def test_context_with_a_secret_key_stops_the_start(kind: type[Protection]) -> None:
    from server.support.federations import authority, spec_of

    from fedrec.config.schema import ProtectionSettings
    from fedrec_server.federation import Federation

    spec = spec_of()
    protection = kind(spec, kind.plan(spec))
    context, secret = protection.generate()
    plan = Bench.of(3).federation.plan.model_copy(
        update={"protection": ProtectionSettings(name=kind.name, key_holder="members")}
    )

    def start(server_context: bytes, fingerprint: str = protection.chosen.fingerprint()) -> None:
        keys = authority().new_epoch(
            federation="movies",
            epoch=1,
            members=[identity(n).public for n in CLIENTS],
            minimum_summands=3,
            protection=kind.name,
            protection_fingerprint=fingerprint,
            server_context=server_context,
            protection_secret=b"",
        )
        Federation.of(plan, CATALOGUE, spec, keys)

    start(context)
    with pytest.raises(KeysError, match="no key"):
        start(context + secret.export_for_wrapping())
    with pytest.raises(KeysError, match="no key"):
        start(secret.export_for_wrapping())
    with pytest.raises(KeysError, match="other settings"):
        start(context, "ab" * 32)
