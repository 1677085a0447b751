"""GrpcLink against a coordinator of dictionaries, over a real socket."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from world.keys import credentials, issuer

from fedrec.errors import (
    BadSignature,
    CorruptUpload,
    InternalError,
    NotInRoster,
    ProtocolError,
    RoundClosed,
    TooLarge,
    Unreachable,
)
from fedrec.identity.certificates import Credentials
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import CHUNK_BYTES
from fedrec.wire.grpc_calls import Deadlines
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import Task, Train, UploadStatus

LONG = bytes(range(256)) * 14_000  # 3.6 MB: four chunks
AWAY = grpc.RpcError(grpc.StatusCode.UNAVAILABLE)


@pytest.fixture
def link(serve):
    with GrpcLink(serve(), credentials()) as opened:
        yield opened


def test_the_federation_is_fetched(link, values):
    assert link.federation(values.client) == values.federation()


def test_blobs_longer_than_a_message_arrive_whole(link, coordinator, values):
    other = ClientId("cd" * 32)
    coordinator.blobs = {"catalogue": LONG + LONG, "sum": LONG, other: b"", values.client: b"x"}
    assert link.catalogue(values.client) == LONG + LONG
    assert link.round_sum(values.client, values.run, RoundId(3)) == LONG
    assert link.contribution(values.client, values.run, RoundId(3), other) == b""
    assert link.contribution(values.client, values.run, RoundId(3), values.client) == b"x"


def test_published_rounds_and_snapshots(link, coordinator, values):
    assert link.published(values.client, values.run, RoundId(0)) is None
    assert link.snapshot(values.client, values.run, RoundId(0)) is None
    coordinator.published, coordinator.snapshot = values.published(LONG), values.snapshot(LONG)
    assert link.published(values.client, values.run, RoundId(2)) == coordinator.published
    assert link.snapshot(values.client, values.run, RoundId(2)) == coordinator.snapshot
    assert link.published(values.client, values.run, RoundId(3)) is None


def test_statements_arrive_with_and_without_a_blob(link, coordinator, values):
    link.submit_reveal(values.statement(), b"")
    link.submit_snapshot(values.report(), LONG)
    link.submit_report(values.report(metrics=b""))
    assert coordinator.statements == [
        (values.statement(), b""),
        (values.report(), LONG),
        (values.report(metrics=b""), b""),
    ]


@pytest.mark.parametrize("payload", [b"", b"short", bytes(CHUNK_BYTES), LONG])
def test_an_update_arrives_in_chunks_once(link, coordinator, values, payload):
    header = values.header(payload)
    assert link.submit_update(header, payload) is False
    assert coordinator.accepted == {header.digest: payload}
    assert coordinator.chunk_offsets == list(range(0, len(payload), CHUNK_BYTES))
    assert link._status(header).accepted
    assert link.submit_update(header, payload) is True


def test_a_broken_upload_goes_on_where_it_broke(link, coordinator, values):
    header = values.header(LONG)
    coordinator.break_after_chunks = 2
    with pytest.raises(Unreachable):
        link.submit_update(header, LONG)
    assert link.submit_update(header, LONG) is False
    assert coordinator.accepted[header.digest] == LONG
    # Chunks that were sent but not looked at before the break are not listed.
    assert coordinator.chunk_offsets == [i * CHUNK_BYTES for i in range(4)]


def test_an_upload_of_an_earlier_start_goes_on(link, coordinator, values):
    header = values.header(LONG)
    coordinator.spool[header.digest] = bytearray(LONG[: CHUNK_BYTES + 7])
    assert link._status(header) == UploadStatus(offset=CHUNK_BYTES + 7, accepted=False)
    assert link.submit_update(header, LONG) is False
    assert coordinator.chunk_offsets[0] == CHUNK_BYTES + 7
    assert coordinator.accepted[header.digest] == LONG


def test_of_a_later_round_no_client_can_have_sent_a_part(link, coordinator, values):
    for number, expected in (
        (3, ["GetUploadStatus", "SubmitUpdate"]),
        (4, ["SubmitUpdate"]),
        (4, ["GetUploadStatus"]),
    ):
        payload = LONG + bytes([number])
        coordinator.calls.clear()
        link.submit_update(values.header(payload, round=RoundId(number)), payload)
        assert coordinator.calls == expected
        assert payload in coordinator.accepted.values()


def test_a_lost_acknowledgement_is_not_sent_twice(link, coordinator, values):
    coordinator.faults["after SubmitUpdate"] = [AWAY]
    with pytest.raises(Unreachable):
        link.submit_update(values.header(LONG), LONG)
    assert link.submit_update(values.header(LONG), LONG) is True
    assert coordinator.calls == ["GetUploadStatus", "SubmitUpdate", "GetUploadStatus"]


def test_a_damaged_spool_is_sent_again_from_the_start(link, coordinator, values):
    header = values.header(LONG)
    coordinator.spool[header.digest] = bytearray(b"damaged")
    with pytest.raises(CorruptUpload, match="announced digest"):
        link.submit_update(header, LONG)
    assert link.submit_update(header, LONG) is False
    assert coordinator.accepted[header.digest] == LONG


def test_a_payload_that_is_not_the_headers_is_not_sent(link, coordinator, values):
    with pytest.raises(CorruptUpload, match="the header's length"):
        link.submit_update(values.header(b"other"), b"shorter")
    assert coordinator.calls == []


def test_other_bytes_of_the_same_length_are_not_accepted(link, coordinator, values):
    with pytest.raises(CorruptUpload, match="the header's length and digest"):
        link.submit_update(values.header(b"other"), b"short")
    assert coordinator.calls


def test_a_claim_of_more_bytes_than_there_are_is_refused(link, coordinator, values):
    header = values.header(b"short")
    coordinator.spool[header.digest] = bytearray(6)
    with pytest.raises(ProtocolError, match="claims 6 bytes"):
        link._status(header)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (RoundClosed("closed at 12:00"), RoundClosed),
        (NotInRoster("canary"), NotInRoster),
        (BadSignature("canary"), BadSignature),
        (ValueError("canary"), InternalError),
        (grpc.RpcError(grpc.StatusCode.DATA_LOSS), InternalError),
    ],
)
def test_errors_arrive_as_what_they_are_and_are_not_repeated(
    link, coordinator, values, raised, expected
):
    coordinator.faults["GetFederation"] = [raised]
    with pytest.raises(expected) as caught:
        link.federation(values.client)
    assert "canary" not in str(caught.value)
    assert coordinator.calls == ["GetFederation"]


def test_a_refusal_in_the_middle_of_a_stream_arrives(link, coordinator, values):
    coordinator.faults["SubmitUpdate"] = [RoundClosed("too late")]
    with pytest.raises(RoundClosed, match="too late"):
        link.submit_update(values.header(LONG), LONG)
    with pytest.raises(NotInRoster):
        link.contribution(values.client, values.run, RoundId(3), ClientId("ef" * 32))


@pytest.mark.parametrize("method", ["GetFederation", "FetchSum"])
def test_what_is_unavailable_is_asked_once_and_may_be_asked_again(
    link, coordinator, values, method
):
    coordinator.faults[method], coordinator.blobs = [AWAY], {"sum": b"total"}
    ask = {
        "GetFederation": lambda: link.federation(values.client),
        "FetchSum": lambda: link.round_sum(values.client, values.run, RoundId(3)),
    }[method]
    with pytest.raises(Unreachable) as caught:
        ask()
    assert caught.value.remedy and coordinator.calls == [method]
    assert ask() in (values.federation(), b"total")


def test_an_address_without_a_server_is_unreachable(values):
    with (
        GrpcLink("127.0.0.1:1", credentials()) as link,
        pytest.raises(Unreachable, match="Connection refused: no program listens at the address"),
    ):
        link.federation(values.client)


def test_a_silent_coordinator_ends_at_the_deadline(serve, coordinator, values):
    deadlines = Deadlines(control_seconds=0.2, stream_seconds=0.2, poll_grace_seconds=0.2)
    coordinator.faults = {name: [coordinator.wake.wait] for name in ("GetFederation", "FetchSum")}
    with GrpcLink(serve(), credentials(), deadlines=deadlines) as link:
        with pytest.raises(Unreachable, match="did not answer in time"):
            link.federation(values.client)
        with pytest.raises(Unreachable, match="not complete within"):
            link.round_sum(values.client, values.run, RoundId(3))
    assert coordinator.calls == ["GetFederation", "FetchSum"]


def test_a_stream_may_take_longer_the_longer_it_is():
    assert Deadlines().stream(0) == 30.0
    assert Deadlines().stream(1_000_000) == 40.0


def test_a_download_beyond_the_limit_or_beside_its_digest_is_refused(serve, coordinator, values):
    coordinator.blobs = {"catalogue": b"12345", "sum": b"1234", "sum announced": b"1235"}
    with GrpcLink(serve(), credentials(), max_download_bytes=4) as link:
        with pytest.raises(TooLarge):
            link.catalogue(values.client)
        with pytest.raises(CorruptUpload):
            link.round_sum(values.client, values.run, RoundId(3))


def test_a_long_poll_waits_and_is_woken(link, coordinator, values):
    asked = (values.client, values.run, RoundId(0))
    assert link.next_task(*asked, wait_seconds=0.0) == coordinator.task
    train = Train(round=RoundId(1), kind="train", base_round=RoundId(0), seconds_left=60.0, epoch=1)
    coordinator.task = Task(published_round=RoundId(0), task=train)
    coordinator.faults["NextTask"] = [
        lambda: threading.Timer(0.1, coordinator.wake.set).start(),
    ]
    assert link.next_task(*asked, wait_seconds=60.0).task == train


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_ctrl_c_leaves_a_waiting_long_poll(link, coordinator, values):
    main = threading.main_thread().ident
    assert main is not None
    interrupted = []

    def interrupt() -> None:
        interrupted.append(time.monotonic())
        signal.pthread_kill(main, signal.SIGINT)

    coordinator.faults["NextTask"] = [lambda: threading.Timer(0.1, interrupt).start()]
    with pytest.raises(KeyboardInterrupt):
        link.next_task(values.client, values.run, RoundId(0), wait_seconds=60.0)
    assert time.monotonic() - interrupted[0] < 2.0
    coordinator.wake.set()
    assert link.federation(values.client) == values.federation()


def test_closing_a_link_ends_what_waits_in_another_thread(link, coordinator, values):
    coordinator.faults["NextTask"] = [lambda: threading.Timer(0.1, link.close).start()]
    with pytest.raises(Unreachable, match="closed"):
        link.next_task(values.client, values.run, RoundId(0), wait_seconds=60.0)
    with pytest.raises(Unreachable, match="closed"):
        link.federation(values.client)


@contextmanager
def listening(own: Credentials, *, clients_of: bytes | None = None) -> Iterator[str]:
    """Have a port that shows a certificate, and asks for one of an issuer."""
    shown = [(own.private_key, own.certificate)]
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials(shown, clients_of, require_client_auth=clients_of is not None),
    )
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_what_a_handshake_refuses_is_told_in_our_words(serve, coordinator, values):
    """Which side refuses, and for what where that is known."""
    address = serve()
    with GrpcLink(address, credentials()) as link:
        assert link.federation(values.client) == values.federation()
    theirs, ours = credentials("client", of="theirs"), credentials()
    now = datetime.now(UTC)
    expired, early = (
        issuer("ours").credentials("client", "somebody", now=now + timedelta(days=days))
        for days in (-4_000, 4_000)
    )
    closed, today = "the other side closed the connection. ", f"{now:%Y-%m-%d}"
    calls = list(coordinator.calls)
    for own, issuer_, text, remedy in (
        (theirs, theirs.issuer, "another authority issued the coordinator's", "authority_key"),
        (ours, theirs.issuer, "another authority issued the coordinator's", "authority_key"),
        (theirs, ours.issuer, f"{closed}The certificate that it was shown is a certificate of", ""),
        (expired, ours.issuer, f"{closed}The certificate that it was shown is valid from", "clock"),
        (early, ours.issuer, f"{closed}The certificate that it was shown is valid from", "clock"),
    ):
        stranger = Credentials(
            private_key=own.private_key, certificate=own.certificate, issuer=issuer_
        )
        with GrpcLink(address, stranger) as link, pytest.raises(Unreachable) as seen:
            link.federation(values.client)
        assert seen.value.message.startswith(f"The handshake failed: {text}")
        assert remedy in seen.value.remedy
        if own in (expired, early):
            assert f"This machine's clock reads {today}" in seen.value.message
    assert coordinator.calls == calls


@pytest.mark.parametrize(
    ("days", "host", "text"),
    [
        (-4_000, "127.0.0.1", "the coordinator's certificate has expired"),
        (4_000, "127.0.0.1", "the coordinator's certificate is not valid yet"),
        (0, "elsewhere.example", "the coordinator's certificate is for a different host"),
    ],
)
def test_whose_certificate_is_wrong_is_told(values, days, host, text):
    made = datetime.now(UTC) + timedelta(days=days)
    own = issuer("ours").credentials("coordinator", "localhost", hosts=[host], now=made)
    with (
        listening(own) as address,
        GrpcLink(address, credentials()) as link,
        pytest.raises(Unreachable) as seen,
    ):
        link.federation(values.client)
    assert seen.value.message.startswith("The handshake failed: ") and text in seen.value.message


def test_a_members_certificate_does_not_pass_for_the_coordinators(values):
    """Or any member could stand where others look for the coordinator."""
    own = issuer("ours").credentials("client", "localhost", hosts=["127.0.0.1", "localhost"])
    with (
        listening(own) as address,
        GrpcLink(address, credentials()) as link,
        pytest.raises(Unreachable, match="does not belong to a coordinator"),
    ):
        link.federation(values.client)


def test_a_valid_certificate_that_is_refused_is_called_valid(values):
    """By the coordinator's clock it may be out of date; TLS gives no reason."""
    with (
        listening(credentials("coordinator"), clients_of=issuer("theirs").certificate) as address,
        GrpcLink(address, credentials()) as link,
        pytest.raises(Unreachable) as seen,
    ):
        link.federation(values.client)
    assert "is valid, from 20" in seen.value.message
    assert "out of date by the coordinator's clock" in seen.value.message
    assert "coordinator's clock" in seen.value.remedy
