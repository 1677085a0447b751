"""The operators' link to the coordinator: status, events, and the end of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedrec.errors import FedrecError, ProtocolError
from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import Credentials
from fedrec.listening import is_own_address, written_address
from fedrec.wire.chunks import Blob, chunk_to_part, chunks
from fedrec.wire.convert import BLOB
from fedrec.wire.grpc_calls import calling, close_channel, open_channel
from fedrec.wire.v1 import admin_pb2
from fedrec.wire.v1.admin_pb2_grpc import AdminStub

_CALL_SECONDS = 10.0
_WATCH_SECONDS = 24 * 3600.0
_INSTALL_SECONDS = 300.0
_LAST_SECOND = 1e11
"""Later times are no dates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One line of a run's journal.

    Attributes:
        kind: a verb phrase, e.g. "round published".
        fields: the event's own fields.
    """

    sequence: int
    unix_seconds: float
    kind: str
    round: int
    fields: Mapping[str, Any]


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
class Quality:
    """The figures of the last measured round, with None for those that no round has measured.

    Attributes:
        at: number of top items among which hits and gains count.
    """

    round: int
    at: int
    loss: float | None = None
    validation_hr: float | None = None
    validation_ndcg: float | None = None
    test_hr: float | None = None
    test_ndcg: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """The state of a member, as far as its coordinator knows.

    Attributes:
        name: its label, or the beginning of its id.
        state: `training` (awaited by the round), `waiting`, `starting` (joined, no call yet),
            `paused` (its cell is), `away` (silent), `stopped` (by its goodbye) or `cannot_start`.
            After the run, `finished` if it has the final version.
        why: more about the state, for people. It may be empty.
        heard: unix seconds of its last call or its end, or 0 if there was none since the
            coordinator started.
        version: the release of fedrec that it runs, or empty if it is unknown.
        model: the published round that its model contained at its last call.
        last_counted: the last published round that counted an update of it, or 0.
        bytes_counted: the size of all its updates that published rounds counted.
    """

    name: str
    state: str
    why: str = ""
    heard: float = 0.0
    version: str = ""
    model: int = 0
    last_counted: int = 0
    bytes_counted: int = 0

    @property
    def is_here(self) -> bool:
        """Return whether rounds count on it now."""
        return self.state in ("training", "waiting", "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The status of a run.

    Attributes:
        last_event: the number of the newest event.
        epoch: the current key epoch.
        next_epoch: the one that begins after the round in progress, or 0.
        waits_for: what is missing before the next round opens, or before the published round's
            result is known. Empty during a round, unless a member knows later rounds than the
            coordinator's folder.
        unplaced: the members that are in no sum yet, and how many more must join. Empty if there
            are none.
        authority_heard: unix seconds of the key authority's last call, or 0 if there was none since
            the coordinator started.
        awaited: the labels of the members for which the current round waits, or the next one.
        stalled: whether several rounds in a row were abandoned. The run retries automatically.
        epsilon: the privacy cost of all released noisy sums to a user, or None if none has noise.
        protocol: the items among which held-out ones are ranked, or empty if the coordinator is
            older.
        caution: a warning that must accompany its figures, empty if there is none, or None while it
            is unknown.
        disk_full: the write that the coordinator's full disk refused recently, or empty.
        quality: the figures of the last measured round, or None before the first.
        current: the round in progress, or None between rounds.
        clients_here: the number of members that rounds count on now.
        members: absent ones first, by name. A large roster's first 1,000. Empty if the coordinator
            is older.
        now: the time in unix seconds by the coordinator's clock, as for the other times.
        stop_asked: whether an operator asked to stop. The run ends with the round in progress.
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
    last_event: int
    epoch: int = 0
    next_epoch: int = 0
    waits_for: str = ""
    unplaced: str = ""
    authority_heard: float = 0.0
    awaited: tuple[str, ...] = ()
    stalled: bool = False
    epsilon: float | None = None
    protocol: str = ""
    caution: str | None = ""
    disk_full: str = ""
    quality: Quality | None = None
    current: CurrentRound | None = None
    clients_here: int = 0
    members: tuple[MemberState, ...] = ()
    now: float = 0.0
    stop_asked: bool = False

    @classmethod
    def of(cls, message: Any) -> RunStatus:
        """Convert the answer of the operators' service."""
        members = tuple(MemberState(**_fields(one, MemberState)) for one in message.members)
        nested: dict[str, Any] = {"awaited": tuple(message.awaited), "members": members}
        for name, kind in (("current", CurrentRound), ("quality", Quality)):
            part = getattr(message, name)
            nested[name] = kind(**_fields(part, kind)) if message.HasField(name) else None
        return cls(**_fields(message, RunStatus) | nested)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLink:
    """The address where a coordinator shows its run to browsers.

    Attributes:
        token: opens one session, or is empty if the page needs none.
        good_seconds: the time for which it stays valid, from now on.
    """

    scheme: str
    host: str
    port: int
    token: str
    good_seconds: float

    def url(self, host: str) -> str:
        """Return the URL to open, given the coordinator's host.

        The token follows the #, and browsers don't send that part. So it is in no log, and a
        program that previews links does not use it up.
        """
        shown = self.host if is_own_address(self.host) else host
        fragment = f"#{self.token}" if self.token else ""
        return f"{self.scheme}://{written_address(shown, self.port)}/{fragment}"


class AdminLink:
    """A synchronous client of the Admin service.

    Args:
        address: host:port of the coordinator.
        credentials: an operator's credentials.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address, self._own = address, credentials
        self._channel = open_channel(address, credentials)
        self._stub = AdminStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    def status(self) -> RunStatus:
        """Return the run's status."""
        return RunStatus.of(self._ask("GetStatus", admin_pb2.GetStatusRequest()))

    def events(self, *, after: int = 0, follow: bool = True) -> Iterator[RunEvent]:
        """Yield the journal after an event, and follow it."""
        request = admin_pb2.WatchEventsRequest(after_event=after, follow=follow)
        with calling(self._address, self._own):
            for event in self._stub.WatchEvents(request, timeout=_WATCH_SECONDS):
                yield _event(event)

    def stop_run(self, *, now: bool = False) -> str:
        """End the run, at once or after the round in progress. Return the coordinator's answer."""
        return str(self._ask("StopRun", admin_pb2.StopRunRequest(now=now)).message)

    def open_page(self) -> PageLink:
        """Return the page's address, with a new link if access needs one.

        Raises:
            SettingsError: the coordinator serves no page.
        """
        return PageLink(**_fields(self._ask("OpenPage", admin_pb2.OpenPageRequest()), PageLink))

    def applicants(self) -> list[SignedApplication]:
        """Return the valid applications of parties that want to become members."""
        found = self._ask("ListApplicants", admin_pb2.ListApplicantsRequest())
        applicants = []
        for raw in found.application:
            # The coordinator relays them, and may relay invalid ones.
            with suppress(FedrecError):
                applicants.append(SignedApplication.from_json(raw))
        return applicants

    def install_epoch(self, bundle: bytes) -> bool:
        """Deliver the public bundle of an epoch.

        Return False while a round of the previous epoch must end first.

        Raises:
            KeysError: the coordinator has this epoch or a later one, or the bundle is inconsistent.
        """
        return bool(self._ask("InstallEpoch", _epoch_parts(bundle), _INSTALL_SECONDS).began)

    def _ask(self, name: str, request: Any, seconds: float = _CALL_SECONDS) -> Any:
        """Make a call with one answer."""
        with calling(self._address, self._own):
            return getattr(self._stub, name)(request, timeout=seconds)

    def close(self) -> None:
        """Close the connection."""
        close_channel(self._channel)


def _epoch_parts(bundle: bytes) -> Iterator[admin_pb2.EpochPart]:
    yield admin_pb2.EpochPart(blob=BLOB.to_proto(Blob.of(bundle)))
    for chunk in chunks(bundle):
        yield admin_pb2.EpochPart.FromString(chunk_to_part(admin_pb2.EpochPart, chunk))


def _fields(message: Any, kind: type[Any]) -> dict[str, Any]:
    """Return a message's fields by name, with None for missing optional ones."""
    found = {}
    for name in kind.__dataclass_fields__:
        optional = message.DESCRIPTOR.fields_by_name[name].has_presence
        found[name] = None if optional and not message.HasField(name) else getattr(message, name)
    return found


def _event(message: admin_pb2.Event) -> RunEvent:
    try:
        fields = json.loads(message.fields_json or "{}")
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ProtocolError("An event's fields are not a JSON object.")
    if not 0 <= message.unix_seconds < _LAST_SECOND:
        raise ProtocolError(f"An event's time is {message.unix_seconds}, expected seconds.")
    return RunEvent(
        sequence=message.sequence,
        unix_seconds=message.unix_seconds,
        kind=message.kind,
        round=message.round,
        fields=fields,
    )
