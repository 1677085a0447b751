"""How an operator reaches the coordinator: status, events, and the end of a run."""

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
    """What the last measured round says of the model; None for what none measured yet.

    Attributes:
        at: hits and gains count among so many items.
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
    """What a member does, as far as its coordinator knows.

    Attributes:
        name: its label; where it has none the beginning of its id.
        state: `training` (the round waits for it), `waiting`, `starting` (it joined and asked for
            nothing yet), `paused` (its cell is), `away` (it fell silent), `stopped` (it said
            goodbye) or `cannot_start`.
        why: more about the state, for people; may be empty.
        heard: unix seconds at which it was last heard of, or stopped; 0 where it was not since the
            coordinator started.
        version: the release of fedrec that it runs; empty where it did not say.
        model: the published round that its model contains, as it last said.
        last_counted: the last published round that counted an update of it; 0 for none.
        bytes_counted: of all its updates that published rounds counted.
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
        """Whether rounds count on it now."""
        return self.state in ("training", "waiting", "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How far a run is.

    Attributes:
        last_event: the number of the newest event.
        epoch: the present key epoch.
        next_epoch: the one that begins after the round in progress; 0 for none.
        waits_for: who has to come before the next round opens, or before the round that is
            published can be told of; empty during a round, unless a member knows later rounds than
            the coordinator's folder.
        unplaced: which members are in no sum yet, and how many more have to join; empty for none.
        authority_heard: unix seconds at which the key authority was last heard of; 0 where it was
            not since the coordinator started.
        awaited: the labels of those for whom the round in progress waits, or the next one.
        stalled: whether several rounds in a row were given up; the run tries again by itself.
        epsilon: what the noisy sums released so far cost a user; None without noise.
        protocol: what held-out items are ranked among; empty where the coordinator is older.
        caution: what has to stand beside its figures; empty for nothing, None while nobody knows.
        disk_full: what the coordinator's disk refused just now; empty while it takes all.
        quality: what the last measured round says; None before the first.
        current: the round in progress, or None between rounds.
        clients_here: members on whom rounds count now.
        members: those first that are not here, by name; of a large roster the first 1,000. Empty
            where the coordinator is older.
        now: the coordinator's time in unix seconds, of which the other times are.
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

    @classmethod
    def of(cls, message: Any) -> RunStatus:
        """Take what the operators' service answered."""
        members = tuple(MemberState(**_fields(one, MemberState)) for one in message.members)
        nested: dict[str, Any] = {"awaited": tuple(message.awaited), "members": members}
        for name, kind in (("current", CurrentRound), ("quality", Quality)):
            part = getattr(message, name)
            nested[name] = kind(**_fields(part, kind)) if message.HasField(name) else None
        return cls(**_fields(message, RunStatus) | nested)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLink:
    """Where a coordinator shows its run to browsers.

    Attributes:
        token: opens one session; empty where the page needs no link.
        good_seconds: for how long, from now on.
    """

    scheme: str
    host: str
    port: int
    token: str
    good_seconds: float

    def url(self, host: str) -> str:
        """Return what to open, where the coordinator is reached at a host.

        The token stands behind the #, which browsers send to nobody: it is in no log, and a
        program that looks at links does not use it up.
        """
        shown = self.host if is_own_address(self.host) else host
        fragment = f"#{self.token}" if self.token else ""
        return f"{self.scheme}://{written_address(shown, self.port)}/{fragment}"


class AdminLink:
    """A synchronous client of the Admin service.

    Args:
        address: host:port of the coordinator.
        credentials: an operator's.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address, self._own = address, credentials
        self._channel = open_channel(address, credentials)
        self._stub = AdminStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    def status(self) -> RunStatus:
        """Return how far the run is."""
        return RunStatus.of(self._ask("GetStatus", admin_pb2.GetStatusRequest()))

    def events(self, *, after: int = 0, follow: bool = True) -> Iterator[RunEvent]:
        """Yield the journal after an event, and go on as things happen."""
        request = admin_pb2.WatchEventsRequest(after_event=after, follow=follow)
        with calling(self._address, self._own):
            for event in self._stub.WatchEvents(request, timeout=_WATCH_SECONDS):
                yield _event(event)

    def stop_run(self, *, now: bool = False) -> str:
        """End the run after the round in progress, or at once; return the coordinator's answer."""
        return str(self._ask("StopRun", admin_pb2.StopRunRequest(now=now)).message)

    def open_page(self) -> PageLink:
        """Return where the page is, with a new link where one is needed.

        Raises:
            SettingsError: the coordinator serves none.
        """
        return PageLink(**_fields(self._ask("OpenPage", admin_pb2.OpenPageRequest()), PageLink))

    def applicants(self) -> list[SignedApplication]:
        """Return who asked to become a member; what is no valid application is left out."""
        found = self._ask("ListApplicants", admin_pb2.ListApplicantsRequest())
        applicants = []
        for raw in found.application:
            # The coordinator relays them; it is not trusted to relay good ones only.
            with suppress(FedrecError):
                applicants.append(SignedApplication.from_json(raw))
        return applicants

    def install_epoch(self, bundle: bytes) -> bool:
        """Hand in the public bundle of an epoch; False while a round goes on in the one before.

        Raises:
            KeysError: the coordinator has this epoch or a later one, or it does not fit.
        """
        return bool(self._ask("InstallEpoch", _epoch_parts(bundle), _INSTALL_SECONDS).began)

    def _ask(self, name: str, request: Any, seconds: float = _CALL_SECONDS) -> Any:
        """Make a call with one answer."""
        with calling(self._address, self._own):
            return getattr(self._stub, name)(request, timeout=seconds)

    def close(self) -> None:
        """Let go of the connection."""
        close_channel(self._channel)


def _epoch_parts(bundle: bytes) -> Iterator[admin_pb2.EpochPart]:
    yield admin_pb2.EpochPart(blob=BLOB.to_proto(Blob.of(bundle)))
    for chunk in chunks(bundle):
        yield admin_pb2.EpochPart.FromString(chunk_to_part(admin_pb2.EpochPart, chunk))


def _fields(message: Any, kind: type[Any]) -> dict[str, Any]:
    """Return a message's fields by name; what it may lack, and lacks, as None."""
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
        raise ProtocolError("An event's fields are no JSON object.")
    return RunEvent(
        sequence=message.sequence,
        unix_seconds=message.unix_seconds,
        kind=message.kind,
        round=message.round,
        fields=fields,
    )
