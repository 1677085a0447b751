"""The operators' service of a coordinator over gRPC; messages become plain values here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from fedrec.errors import ProtocolError
from fedrec.wire.grpc_channel import open_channel
from fedrec.wire.status import from_rpc_error
from fedrec.wire.v1 import admin_pb2
from fedrec.wire.v1.admin_pb2_grpc import AdminStub

__all__ = ["AdminLink", "CurrentRound", "RunEvent", "RunStatus"]

SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRound:
    """The round in progress."""

    round: int
    kind: str
    phase: str
    expected: int
    arrived: int
    bytes_received: int
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How far a run is.

    Attributes:
        current: the round in progress, or None between rounds.
        last_event: the number of the newest event.
    """

    federation: str
    run: str
    protection: str
    published_round: int
    rounds_published: int
    rounds_planned: int
    rounds_abandoned: int
    clients_seen: int
    clients_in_roster: int
    finished: bool
    finish_reason: str
    current: CurrentRound | None
    last_event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that happened in a run.

    Attributes:
        fields: what else there is to say about an event of its kind.
    """

    sequence: int
    unix_seconds: float
    kind: str
    round: int
    fields: Mapping[str, object]


class AdminLink:
    """What operators may ask of a coordinator.

    Args:
        address: `host:port`.
        token: the operators' token; empty for a coordinator on this machine that has none.
        root_certificate: PEM that signs the coordinator's certificate, or None.
        plaintext: speak without TLS; to loopback addresses only.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        root_certificate: bytes | None = None,
        plaintext: bool = False,
    ) -> None:
        self._channel = open_channel(
            address, root_certificate=root_certificate, plaintext=plaintext
        )
        self._stub: Any = AdminStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def status(self) -> RunStatus:
        """Return how far the run is."""
        request = admin_pb2.GetStatusRequest()
        with _translated():
            found = self._stub.GetStatus(request, timeout=SECONDS, metadata=self._metadata)
        current = found.current if found.HasField("current") else None
        return RunStatus(
            **_scalars(found, RunStatus, without=("current",)),
            current=None if current is None else CurrentRound(**_scalars(current, CurrentRound)),
        )

    def events(self, *, after: int = 0, follow: bool = False) -> Iterator[RunEvent]:
        """Yield the events after a number, and then, if `follow`, those to come."""
        request = admin_pb2.WatchEventsRequest(after_event=after, follow=follow)
        with _translated():
            timeout = None if follow else SECONDS
            call = self._stub.WatchEvents(request, timeout=timeout, metadata=self._metadata)
            try:
                for event in call:
                    yield RunEvent(
                        **_scalars(event, RunEvent, without=("fields",)),
                        fields=_fields(event.fields_json),
                    )
            finally:
                call.cancel()

    def stop(self, *, now: bool) -> str:
        """Ask for the end of the run and return what the coordinator says."""
        request = admin_pb2.StopRunRequest(now=now)
        with _translated():
            answer = self._stub.StopRun(request, timeout=SECONDS, metadata=self._metadata)
        return str(answer.message)


def _scalars(message: Any, kind: type[Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        name: _printable(getattr(message, name))
        for name in kind.__dataclass_fields__
        if name not in without
    }


def _printable(value: object) -> object:
    """Return a peer's text without what could steer a terminal."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else " " for c in value)
    return value


def _fields(text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProtocolError("The fields of an event are no JSON object.")
    return {str(_printable(name)): _printable(value) for name, value in found.items()}


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
