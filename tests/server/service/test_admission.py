"""Who is let in: handshakes, TLS versions and the port."""

import json
import os
import socket
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from blake3 import blake3
from world.engine import REVEALER, SEALED_BYTES, Bench, identity
from world.serving import serving

from fedrec.errors import (
    BadSignature,
    CatalogueMismatch,
    ConflictingUpload,
    CoordinatorWentBack,
    CorruptUpload,
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
from fedrec.wire.grpc_calls import from_rpc_error
from fedrec.wire.messages import Reveal, Wait
from fedrec_server.service.tls_port import options

CLIENTS = range(3)


def refusal(found, *chunks, **changes):
    """Return the error that a changed but properly signed upload of client 0 gets."""
    payload = found.bench.payload(0, 1)
    header = found.bench.header(0, 1, payload, found.run, **changes)
    with pytest.raises(grpc.RpcError) as caught:
        found.submit(header, *(chunks or [(0, payload)]))
    return from_rpc_error(caught.value)


class TestAdmission:
    """Every bad input is told what is wrong, and costs neither disk nor the round."""

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, collecting, tmp_path):
        yield
        spool = tmp_path / "state"
        assert not list((spool / "updates").iterdir())
        state = collecting.coordinator.engine.run.state
        assert state.current is not None and not state.current.accepted
        assert not collecting.upload(0), "the honest update is still taken"

    def test_header(self, collecting):
        for changes, expected in (
            ({"protocol_version": "1.0"}, VersionMismatch),
            ({"federation": "books"}, ProtocolError),
            ({"run": "other"}, ProtocolError),
            ({"round": RoundId(7)}, RoundError),
            ({"kind": "train"}, ProtocolError),
            ({"base_round": RoundId(1)}, ProtocolError),
            ({"epoch": 2}, CoordinatorWentBack),
            ({"catalogue_fingerprint": "d" * 64}, CatalogueMismatch),
            ({"plan_fingerprint": "d" * 64}, PlanMismatch),
            ({"length": 10}, MalformedUpdate),
            ({"length": 17 << 20}, TooLarge),
            ({"digest": bytes(32)}, CorruptUpload),
        ):
            found = refusal(collecting, **changes)
            assert type(found) is expected, changes
            assert ("release of fedrec" in str(found.remedy)) == (expected is PlanMismatch)

    def test_forged_signature(self, collecting):
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

    def test_chunks(self, collecting):
        raw = collecting.bench.payload(0, 1)
        for chunks, expected, words in (
            ([(0, raw[:-1])], CorruptUpload, ""),
            ([(0, raw), (len(raw), b"more")], CorruptUpload, "beyond"),
            ([(0, raw[:10]), (11, raw[11:])], CorruptUpload, "begins at 11"),
            # Above the limit of a chunk, and of a message.
            ([(0, bytes((1 << 20) + 1))], TooLarge, ""),
            ([(0, bytes(5 << 20))], TooLarge, ""),
        ):
            error = refusal(collecting, *chunks)
            assert type(error) is expected and words in str(error), chunks

    def test_bytes_of_no_update_and_of_another_key(self, collecting):
        other = bytearray(Bench.of(3, values=6, minimum_clients=2).payload(0, 1))
        other[30] ^= 1
        for raw in (bytes(len(collecting.bench.payload(0, 1))), bytes(other)):
            error = refusal(collecting, (0, raw), digest=blake3(raw).digest())
            assert type(error) is MalformedUpdate

    def test_stream_without_header(self, collecting):
        with collecting.channel() as channel:
            method = channel.stream_unary("/fedrec.wire.v1.Coordinator/SubmitUpdate")
            with pytest.raises(grpc.RpcError) as caught:
                method(iter([b""]), timeout=5)
            assert type(from_rpc_error(caught.value)) is ProtocolError


class TestUploads:
    def test_late_after_abandoned(self, tmp_path):
        with serving(Bench.of(3), tmp_path) as found:
            found.come(CLIENTS)
            found.do(found.coordinator.engine.stop_run(at_once=True))
            with pytest.raises(RoundClosed):
                found.upload(0)

    def test_several_chunks_resume_where_the_last_call_ended(self, tmp_path):
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

    def test_what_is_no_message_is_refused_without_a_traceback(self, collecting, capsys):
        with collecting.channel() as channel:
            for method in ("NextTask", "GetFederation", "FetchPublished", "SubmitReport"):
                form = channel.unary_stream if method == "FetchPublished" else channel.unary_unary
                call = form(f"/fedrec.wire.v1.Coordinator/{method}")
                with pytest.raises(grpc.RpcError) as caught:
                    list(call(b"\xff" * 1000, timeout=20))
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method
                assert type(from_rpc_error(caught.value)) is ProtocolError, method
        assert "Traceback" not in "".join(capsys.readouterr())


def revealing(found):
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
    def test_no_other_party_fetches_contributions_or_speaks(self, tmp_path):
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
                note = replace(bench.statement(task, found.run), client_id=me)
                signed = replace(note, signature=identity(0).sign(note.statement()))
                with pytest.raises(RefusedError):
                    link.submit_reveal(signed, b"sealed")

    def test_statements_are_checked(self, tmp_path):
        bench = Bench.of(3, reveals=True)
        sealed = b"honest" * SEALED_BYTES
        with serving(bench, tmp_path) as found, found.link(REVEALER) as link:
            task = revealing(found)
            for changes, expected in (
                ({"manifest_digest": bytes(32)}, ProtocolError),
                ({"metrics": bytes(8)}, ProtocolError),
                ({"published_digest": bytes(32)}, ProtocolError),
                ({"epoch": 2}, CoordinatorWentBack),
                ({"run": "other"}, ProtocolError),
            ):
                with pytest.raises(expected) as caught:
                    link.submit_reveal(bench.statement(task, found.run, **changes), sealed)
                assert type(caught.value) is expected, changes
            unsigned = replace(bench.statement(task, found.run), signature=bytes(64))
            with pytest.raises(BadSignature):
                link.submit_reveal(unsigned, sealed)
            link.submit_reveal(bench.statement(task, found.run), sealed)

    def test_reports_are_checked(self, tmp_path):
        bench = Bench.of(3, veiled=True)
        with serving(bench, tmp_path) as found:
            found.come(CLIENTS)
            for number in CLIENTS:
                found.upload(number)
            found.do(found.coordinator.engine.run.work.settled())
            for who, changes, expected in (
                (0, {"metrics": b""}, ProtocolError),
                (0, {"round": RoundId(2)}, RoundError),
                (0, {"epoch": 2}, CoordinatorWentBack),
                (0, {"run": "other"}, ProtocolError),
                (1, {"client_id": identity(1).client_id}, BadSignature),
                (8, {"client_id": identity(8).client_id}, NotInRoster),
            ):
                with found.link(who) as link, pytest.raises(expected) as caught:
                    link.submit_report(bench.report(0, 1, found.run, **changes))
                assert type(caught.value) is expected, changes
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


TESTS = Path(__file__).parents[2]

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
{first}
from world.engine import Bench, credentials
from world.serving import settings_of
from fedrec.identity.document import write_secret
from fedrec_server.app import Coordinator

bench, folder = Bench.of(3), Path(sys.argv[1])
write_secret(folder / "client.pem", credentials(0).to_pem())
coordinator = Coordinator(settings_of(folder), bench.federation)
tell = lambda address, run: print(json.dumps([address, run]), flush=True)
asyncio.run(coordinator.serve(tell))
"""


def program(folder, first=""):
    environment = {name: value for name, value in os.environ.items() if "GRPC" not in name}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(first=first), str(folder)],
        env=environment | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def spoken(address, folder, newest):
    """Return what a client with a good certificate and no newer TLS than this agrees on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(folder / "client.pem")
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as bare,
        context.wrap_socket(bare) as found,
    ):
        return found.version()


def test_tls12(tmp_path):
    with program(tmp_path) as running:
        assert running.stdout is not None
        try:
            address = json.loads(next(line for line in running.stdout if line.startswith("[")))[0]
            assert spoken(address, tmp_path, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                spoken(address, tmp_path, ssl.TLSVersion.TLSv1_2)
        finally:
            running.terminate()
            running.communicate(timeout=20)


def test_a_coordinator_that_would_speak_tls12_refuses_to_run(tmp_path):
    """As where gRPC was imported before fedrec could tell it."""
    with program(tmp_path, first="import grpc") as refusing:
        note, complained = refusing.communicate(timeout=60)
    assert refusing.returncode == 1 and "[" not in note[:1]
    assert "would accept TLSv1.2" in complained and "GRPC_SSL_CIPHER_SUITES" in complained


@pytest.mark.parametrize(
    ("n_clients", "window"), [(1, 8 << 20), (16, 512 << 10), (100, 83_886), (10_000, 64 << 10)]
)
def test_clients_share_8_mib_and_have_what_http2_begins_with(n_clients, window):
    found = dict(options(n_clients))
    assert found["grpc.http2.lookahead_bytes"] == window
    assert not found["grpc.http2.bdp_probe"]
