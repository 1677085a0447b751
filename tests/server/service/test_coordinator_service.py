"""The calls of clients and of the authority."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest
from blake3 import blake3
from structlog.testing import capture_logs
from world.engine import (
    CATALOGUE,
    REVEALER,
    Bench,
    authority,
    credentials,
    identity,
    operator,
)
from world.serving import serving

from fedrec.errors import (
    FedrecError,
    KeysError,
    NotInRoster,
    ProtocolError,
    RefusedError,
    VersionMismatch,
)
from fedrec.ids import RoundId
from fedrec.protection import BFV, Paillier
from fedrec.wire.grpc_calls import from_rpc_error
from fedrec.wire.messages import PROTOCOL_VERSION, Finished, Reveal, Train
from fedrec.wire.v1 import admin_pb2, coordinator_pb2
from fedrec.wire.v1.admin_pb2_grpc import AdminStub

CLIENTS = range(3)


class TestWholeRun:
    @pytest.mark.parametrize("kind", ["plain", "veiled", "reveals"])
    def test_from_the_first_call_to_the_last(self, tmp_path, kind):
        bench = Bench.of(3, veiled=kind == "veiled", reveals=kind == "reveals")
        parties = [*CLIENTS, REVEALER] if kind == "reveals" else [*CLIENTS]
        with serving(bench, tmp_path) as found, ThreadPoolExecutor(4) as threads:
            sums = list(threads.map(lambda number: self.live(found, number), parties))
            metrics = [found.coordinator.engine.run.store.entries(0, 1000)]
        wanted = [bench.sum_of(set(CLIENTS), round_id) for round_id in (1, 2, 3)]
        assert sums == [wanted] * len(parties)
        seen = "round measured" if kind == "veiled" else "round published"
        shown = [json.loads(e.fields_json)["metrics"] for e in metrics[0] if e.kind == seen]
        assert len(shown) == 3 and all(len(values) == 2 for values in shown)

    def live(self, found, number):
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

    def reveal(self, found, link, task):
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


class TestTransport:
    def test_other_protocol_version(self, plain):
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
    def test_call_without_a_sensible_deadline(self, plain, seconds):
        request = coordinator_pb2.GetFederationRequest(
            protocol_version="2.0", client_id=identity(0).client_id
        )
        with pytest.raises(grpc.RpcError) as caught:
            self.call(plain, "GetFederation", request, timeout=seconds)
        error = from_rpc_error(caught.value)
        assert type(error) is ProtocolError and "deadline" in str(error)

    def call(self, found, name, request, timeout):
        with found.channel() as channel:
            method = channel.unary_unary(
                f"/fedrec.wire.v1.Coordinator/{name}",
                request_serializer=type(request).SerializeToString,  # type: ignore[attr-defined]
            )
            return method(request, timeout=timeout)

    def test_internal_errors_say_nothing_but_an_incident(self, plain, monkeypatch):
        def defect(*_):
            raise ZeroDivisionError("the secret detail")

        monkeypatch.setattr(type(plain.bench.federation), "info", defect)
        with plain.link() as link, pytest.raises(FedrecError) as caught:
            link.federation(identity(0).client_id)
        assert caught.value.code == "internal"
        assert "secret" not in str(caught.value) and "incident" in str(caught.value)

    def test_health_is_told_to_every_holder_of_a_certificate(self, plain):
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with plain.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING

    def test_reflection_only_where_asked_for(self, tmp_path):
        from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

        def services(found):
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


class TestAdmin:
    def test_status_events_and_stop(self, collecting):
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
def test_context_with_a_secret_key_stops_the_start(kind):
    from world.engine import authority, spec_of

    from fedrec.protection import ProtectionSettings
    from fedrec_server.federation import Federation

    spec = spec_of()
    protection = kind(spec, kind.plan(spec))
    context, secret = protection.generate()
    plan = Bench.of(3).federation.plan.model_copy(
        update={"protection": ProtectionSettings(name=kind.name, key_holder="members")}
    )

    def start(server_context, fingerprint=None):
        keys = authority().new_epoch(
            federation="movies",
            epoch=1,
            members=[identity(n).public for n in CLIENTS],
            minimum_summands=3,
            protection=kind.name,
            protection_fingerprint=fingerprint or protection.chosen.fingerprint(),
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


FIRST, OPENER = RoundId(1), 1000


def held_by_the_authority():
    """Return a federation whose revealer is client 1000."""
    bench = Bench.of(3, minimum_clients=2)
    roster = bench.federation.keys.roster
    keys = authority().new_epoch(
        federation=roster.federation,
        epoch=1,
        members=roster.members,
        minimum_summands=1,
        protection=roster.protection,
        protection_fingerprint=roster.protection_fingerprint,
        server_context=bench.federation.keys.server_context,
        protection_secret=b"",
        revealer=identity(OPENER).public,
    )
    return Bench(federation=replace(bench.federation, keys=keys))


def contribution(link, who, run):
    link.contribution(identity(who).client_id, run, FIRST, identity(1).client_id)


def round_sum(link, who, run):
    link.round_sum(identity(who).client_id, run, FIRST)


def refusal(found, fetch, who):
    """Return what is logged of a fetch that is refused; the caller gets no more than "Refused"."""
    named = who if isinstance(who, int) else 0
    with found.link(who) as link, pytest.raises(RefusedError, match="Refused") as seen:
        fetch(link, named, found.run)
    assert type(seen.value) is RefusedError
    return seen.value.code


@pytest.mark.parametrize("fetch", [contribution, round_sum])
def test_member_fetches_contribution(tmp_path, fetch, capfd):
    """Where the authority opens sums no client but the revealer gets them, not even in a round."""
    with serving(held_by_the_authority(), tmp_path) as found:
        refusal(found, fetch, 0)
        # The revealer passes, and is told that no round is being revealed.
        refusal(found, fetch, OPENER)
    seen = capfd.readouterr().out
    assert seen.count("A caller with the role member may not call") == 1
    assert seen.count("Round 1 is not being revealed") == 1


@pytest.mark.parametrize("fetch", [contribution, round_sum])
@pytest.mark.parametrize("holder", ["authority", "members"])
def test_operator_fetches_contribution(tmp_path, fetch, holder, capfd):
    bench = held_by_the_authority() if holder == "authority" else Bench.of(3)
    with serving(bench, tmp_path) as found:
        refusal(found, fetch, operator())
    assert "A caller with the role operator" in capfd.readouterr().out


@pytest.mark.parametrize("fetch", [contribution, round_sum])
def test_where_members_decrypt_no_client_fetches_an_update(tmp_path, fetch, capfd):
    with serving(Bench.of(3, minimum_clients=2), tmp_path) as found:
        refusal(found, fetch, 0)
        with found.link(OPENER) as link, pytest.raises(NotInRoster):
            fetch(link, OPENER, found.run)
    assert "A caller with the role member" in capfd.readouterr().out


def test_operators_do_what_operators_do_and_nothing_else(tmp_path):
    with serving(held_by_the_authority(), tmp_path) as found:
        with found.link(operator()) as link, pytest.raises(RefusedError):
            link.next_task(identity(0).client_id, found.run, RoundId(0), wait_seconds=0.0)
        found.task(OPENER)
        assert credentials(0).certificate != operator().certificate
