"""Errors over the wire: the whole table both ways, and what a peer does not learn."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from fedrec.errors import (
    ERRORS,
    FedrecError,
    InternalError,
    KeysError,
    ProtocolError,
    RefusedError,
    TooLarge,
    Unreachable,
    VersionMismatch,
)
from fedrec.wire.grpc_calls import CODE_KEY, INCIDENT_KEY, STATUS, from_rpc_error, to_details


class FakeRpcError(grpc.RpcError, grpc.Call):  # type: ignore[misc]  # grpc is untyped
    """What a channel raises."""

    def __init__(self, status: Any, message: str | None, metadata: Any) -> None:
        self.answer = (status, message, metadata)

    def code(self) -> Any:
        return self.answer[0]

    def details(self) -> Any:
        return self.answer[1]

    def trailing_metadata(self) -> Any:
        return self.answer[2]

    add_callback = cancel = is_active = time_remaining = initial_metadata = None


@pytest.mark.parametrize("kind", ERRORS.values(), ids=ERRORS.keys())
def test_every_error_crosses_the_wire_and_keeps_its_type(kind):
    error = kind("found a canary, expected none.", remedy="Do this.")
    status, message, metadata = to_details(error, incident="incident-1")
    assert status is STATUS[kind.code] and status.name == kind.grpc_status
    error = from_rpc_error(FakeRpcError(status, message, metadata))
    assert type(error) is kind
    assert kind.public in error.message
    assert ("canary" in message) == ("canary" in error.message) == kind.safe
    assert ("incident-1" in error.message) == (not kind.safe)
    assert error.incident == ("" if kind.safe else "incident-1")
    assert dict(metadata) == {
        CODE_KEY: kind.code,
        **({} if kind.safe else {INCIDENT_KEY: "incident-1"}),
    }


@pytest.mark.parametrize("error", [ValueError("canary"), FedrecError("canary")])
def test_what_is_not_in_the_table_is_internal(error):
    status, message, metadata = to_details(error)
    assert status is grpc.StatusCode.INTERNAL
    assert message == InternalError.public
    assert dict(metadata)[CODE_KEY] == "internal" and len(dict(metadata)[INCIDENT_KEY]) == 16


def test_incidents_differ():
    error = KeysError("found")
    assert to_details(error) != to_details(error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.CANCELLED, Unreachable),
        (grpc.StatusCode.UNAUTHENTICATED, RefusedError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, TooLarge),
        (grpc.StatusCode.UNIMPLEMENTED, VersionMismatch),
        (grpc.StatusCode.UNKNOWN, InternalError),
        (grpc.StatusCode.DATA_LOSS, InternalError),
    ],
)
@pytest.mark.parametrize("metadata", [None, (), ((CODE_KEY, "of tomorrow"),), ((CODE_KEY, b"x"),)])
def test_a_status_without_a_known_code_is_explained(status, kind, metadata):
    error = from_rpc_error(FakeRpcError(status, "text", metadata))
    assert type(error) is kind
    assert status.name in str(error) and "text" in str(error)
    assert error.remedy or kind in (TooLarge, RefusedError)


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Socket",
            "cannot be reached",
        ),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", "The connection was closed"),
        (grpc.StatusCode.UNAVAILABLE, "errors resolving a:1: hostname lookup error", "host name"),
        (grpc.StatusCode.UNAVAILABLE, "connect: No route to host; Socket", "does not answer"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "did not answer in time"),
    ],
)
def test_a_connection_that_fails_is_told_in_our_words(status, text, message):
    error = from_rpc_error(FakeRpcError(status, text, ()))
    assert type(error) is Unreachable
    assert message in error.message and "ocket" not in error.message
    assert status.name not in str(error)


def test_an_error_that_says_nothing_is_internal():
    assert type(from_rpc_error(grpc.RpcError())) is InternalError
    assert type(from_rpc_error(FakeRpcError(grpc.StatusCode.UNKNOWN, None, None))) is InternalError


def test_a_peer_cannot_forge_log_lines_or_fill_the_screen():
    error = from_rpc_error(
        FakeRpcError(
            grpc.StatusCode.INTERNAL, "a\nb\x1b[31m" + "x" * 9_000, ((CODE_KEY, "internal"),)
        )
    )
    assert error.message.isprintable() and len(error.message) <= 2_000


def test_a_long_message_fits_the_headers():
    _, message, _ = to_details(ProtocolError("é" * 9_000))
    assert len(message.encode()) <= 2_000 and message.startswith(ProtocolError.public)
