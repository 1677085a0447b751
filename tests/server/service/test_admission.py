"""What a coordinator refuses of an upload before it costs anything, and uploads that are taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from blake3 import blake3
from server.support.federations import Bench, identity
from server.support.serving import Serving, serving

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
    RoundClosed,
    RoundError,
    TooLarge,
    VersionMismatch,
)
from fedrec.ids import RoundId
from fedrec.wire.grpc_calls import from_rpc_error

CLIENTS = range(3)


def refusal(found: Serving, *chunks: tuple[int, bytes], **changes: object) -> FedrecError:
    """Return the error that a changed but properly signed upload of client 0 gets."""
    payload = found.bench.payload(0, 1)
    header = found.bench.header(0, 1, payload, found.run, **changes)
    with pytest.raises(grpc.RpcError) as caught:
        found.submit(header, *(chunks or [(0, payload)]))
    return from_rpc_error(caught.value)


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
    def test_header(self, collecting, changes, expected):
        assert type(refusal(collecting, **changes)) is expected

    def test_other_settings_may_be_another_release(self, collecting):
        found = refusal(collecting, plan_fingerprint="d" * 64)
        assert "release of fedrec" in found.remedy

    def test_key_outside_the_roster(self, collecting):
        payload = collecting.bench.payload(9, 1)
        header = collecting.bench.header(9, 1, payload, collecting.run)
        with pytest.raises(grpc.RpcError) as caught:
            collecting.submit(header, (0, payload), who=9)
        assert type(from_rpc_error(caught.value)) is NotInRoster

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

    def test_replay_of_another_round(self, collecting):
        payload = collecting.bench.payload(0, 1)
        header = collecting.bench.header(0, 2, payload, collecting.run)
        with pytest.raises(grpc.RpcError) as caught:
            collecting.submit(replace(header, round=RoundId(1)), (0, payload))
        assert type(from_rpc_error(caught.value)) is BadSignature

    def test_truncated(self, collecting):
        payload = collecting.bench.payload(0, 1)
        assert type(refusal(collecting, (0, payload[:-1]))) is CorruptUpload

    def test_longer_than_announced(self, collecting):
        payload = collecting.bench.payload(0, 1)
        error = refusal(collecting, (0, payload), (len(payload), b"more"))
        assert type(error) is CorruptUpload and "beyond" in str(error)

    def test_chunks_out_of_order(self, collecting):
        payload = collecting.bench.payload(0, 1)
        error = refusal(collecting, (0, payload[:10]), (11, payload[11:]))
        assert type(error) is CorruptUpload

    def test_chunk_above_its_limit(self, collecting):
        assert type(refusal(collecting, (0, bytes((1 << 20) + 1)))) is TooLarge

    def test_message_above_its_limit(self, collecting):
        assert type(refusal(collecting, (0, bytes(5 << 20)))) is TooLarge

    def test_wrong_hash(self, collecting):
        assert type(refusal(collecting, digest=bytes(32))) is CorruptUpload

    def test_foreign_bytes(self, collecting):
        payload = bytes(len(collecting.bench.payload(0, 1)))
        digest = blake3(payload).digest()
        assert type(refusal(collecting, (0, payload), digest=digest)) is MalformedUpdate

    def test_message_of_another_key(self, collecting):
        other = Bench.of(3, values=6, minimum_clients=2)
        payload = bytearray(other.payload(0, 1))
        payload[30] ^= 1
        digest = blake3(payload).digest()
        error = refusal(collecting, (0, bytes(payload)), digest=digest)
        assert type(error) is MalformedUpdate

    def test_stream_without_header(self, collecting):
        payload = collecting.bench.payload(0, 1)
        header = collecting.bench.header(0, 1, payload, collecting.run)
        with collecting.channel() as channel:
            method = channel.stream_unary("/fedrec.wire.v1.Coordinator/SubmitUpdate")
            with pytest.raises(grpc.RpcError) as caught:
                method(iter([b""]), timeout=5)
            assert type(from_rpc_error(caught.value)) is ProtocolError
        assert header


class TestUploads:
    def test_five_at_once_count_once(self, collecting):
        with ThreadPoolExecutor(5) as threads:
            found = list(threads.map(lambda _: collecting.upload(0), range(5)))
        assert sorted(found) == [False, True, True, True, True]
        payload = collecting.bench.payload(0, 1, salt=1)
        header = collecting.bench.header(0, 1, payload, collecting.run)
        with collecting.link() as link, pytest.raises(ConflictingUpload):
            link.submit_update(header, payload)

    def test_late(self, collecting):
        bench = collecting.bench
        for number in CLIENTS:
            collecting.upload(number)
        collecting.do(collecting.coordinator.engine.run.work.settled())
        assert collecting.upload(0), "a repeated one is told so even after publication"
        payload = bench.payload(0, 1, salt=1)
        with collecting.link() as link, pytest.raises(ConflictingUpload):
            link.submit_update(bench.header(0, 1, payload, collecting.run), payload)

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

    @pytest.mark.parametrize(
        "method", ["NextTask", "GetFederation", "FetchPublished", "SubmitReport"]
    )
    def test_what_is_no_message_is_refused_without_a_traceback(self, collecting, capsys, method):
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

    def test_too_many_streams_of_one_client(self, collecting):
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
