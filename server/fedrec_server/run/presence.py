"""The presence of clients: which wait for a task, called recently, or know of later rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedrec.clock import Clock
from fedrec.ids import ClientId, RoundId
from fedrec_server.rounds.changes import Change, RoundAbandoned
from fedrec_server.rounds.state import NO_ROUND, State

LIVE_SECONDS = 30.0
BACK_SECONDS = 10.0
"""Seconds for which a client may restart without being missed in the round in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """The goodbye of a client that ended.

    Attributes:
        code: the code of the error that ended it, or empty if it was stopped or is done.
        had_begun: whether it had asked for a task before.
    """

    at: float
    code: str
    had_begun: bool


class Presence:
    """Remembers the last call of each roster client. Forgotten with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[ClientId, float] = {}
        self._joined: dict[ClientId, float] = {}
        self._ended: dict[ClientId, Goodbye] = {}
        self._waiting: Counter[ClientId] = Counter()
        self._silent: set[ClientId] = set()
        self._fetched: dict[ClientId, float] = {}
        self._have_end: set[ClientId] = set()
        self._versions: dict[ClientId, RoundId] = {}
        self._models: dict[ClientId, RoundId] = {}
        self._releases: dict[ClientId, str] = {}

    def now(self) -> float:
        """Return the time on the clock that calls are recorded by."""
        return self._clock.now()

    def heard(self, client_id: ClientId) -> None:
        """Record a call of a client. A client that said goodbye is back."""
        self._seen[client_id] = self._clock.now()
        self._silent.discard(client_id)
        self._ended.pop(client_id, None)

    def fetches(self, client_id: ClientId) -> None:
        """Record a chunk of a download: a sign of the client, but not a call."""
        self._fetched[client_id] = self._clock.now()

    def takes_end(self, client_id: ClientId) -> None:
        """Record that a client with the final version was told of the run's end."""
        self._have_end.add(client_id)

    def has_end(self, client_id: ClientId) -> bool:
        """Return whether a client has the final version and was told of the run's end."""
        return client_id in self._have_end

    def is_done(self, client_id: ClientId) -> bool:
        """Return whether a client has the final version, and said goodbye after that."""
        return self.has_end(client_id) and client_id in self._ended

    def reports(self, client_id: ClientId, version: RoundId) -> bool:
        """Record a client's model that is newer than the run. Return whether its version is new."""
        is_news = self._versions.get(client_id) != version
        self._versions[client_id] = version
        return is_news

    def furthest(self) -> tuple[ClientId, RoundId] | None:
        """Return the client with the newest model, if any was newer than the run."""
        return max(self._versions.items(), key=lambda one: one[1], default=None)

    def joined(self, client_id: ClientId, release: str = "") -> None:
        """Record that a member started. Rounds count on it once it asks for a task.

        Args:
            release: the release of fedrec that it runs.
        """
        self._joined[client_id] = self._clock.now()
        self._ended.pop(client_id, None)
        self._releases[client_id] = release or self.release_of(client_id)

    def ended(self, client_id: ClientId, code: str = "") -> None:
        """Record that a client ended, as it reported, until its next call.

        Args:
            code: the code of the error that ended it or of its refusal.
        """
        known = client_id in self._seen and client_id not in self._ended
        had_begun = known and not self.idle_since(client_id)
        self._ended[client_id] = Goodbye(at=self._clock.now(), code=code, had_begun=had_begun)

    def goodbye_of(self, client_id: ClientId) -> Goodbye | None:
        """Return the goodbye of a client, or None if the client has not ended."""
        return self._ended.get(client_id)

    def gone(self) -> frozenset[ClientId]:
        """Return the clients that ended and did not come back at once."""
        until = self._clock.now() - BACK_SECONDS
        return frozenset(one for one, goodbye in self._ended.items() if goodbye.at <= until)

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Mark clients as absent that did not answer an abandoned round.

        If a killed client was asked again at once, it would cost round after round.
        """
        if before.current is None:
            return
        if any(isinstance(change, RoundAbandoned) for change in changes):
            self._silent.update(before.current.asked - before.current.accepted.keys())

    @contextmanager
    def waiting(self, client_id: ClientId, model: RoundId = NO_ROUND) -> Iterator[None]:
        """Count a client as present while it waits.

        Args:
            model: the published round that its model contains.
        """
        self._waiting[client_id] += 1
        self._models[client_id] = model
        self.heard(client_id)
        try:
            yield
        finally:
            # If the client ended meanwhile, its wait ends after its goodbye.
            if client_id not in self._ended:
                self.heard(client_id)
            self._waiting[client_id] -= 1
            if not self._waiting[client_id]:
                del self._waiting[client_id]

    @property
    def seen(self) -> frozenset[ClientId]:
        """Return the clients that ever started or called."""
        return frozenset(self._seen.keys() | self._joined.keys())

    def idle_since(self, client_id: ClientId) -> float:
        """Return when a client started, if it has asked for nothing since. Otherwise 0."""
        began = self._joined.get(client_id, 0.0)
        return began if began > self.last_heard(client_id) else 0.0

    def last_heard(self, client_id: ClientId | None) -> float:
        """Return when a client last called or waited, or 0 if it never did."""
        here = client_id in self._waiting and client_id not in self._ended
        return self._clock.now() if here else self._seen.get(client_id or ClientId(""), 0.0)

    def last_sign(self, client_id: ClientId) -> float:
        """Return when a client last called, waited, fetched, started or ended, or 0 if never."""
        goodbye = self.goodbye_of(client_id)
        if goodbye is not None:
            return goodbye.at
        fetched = self._fetched.get(client_id, 0.0)
        return max(self.last_heard(client_id), self.idle_since(client_id), fetched)

    def is_silent(self, client_id: ClientId) -> bool:
        """Return whether a client did not answer an abandoned round and has not called since."""
        return client_id in self._silent

    def model_of(self, client_id: ClientId) -> RoundId:
        """Return the published round that a client's model contained when it last asked."""
        return self._models.get(client_id, NO_ROUND)

    def release_of(self, client_id: ClientId) -> str:
        """Return the release that a client runs, or an empty string if it is unknown."""
        return self._releases.get(client_id, "")

    @property
    def waiters(self) -> frozenset[ClientId]:
        """Return the clients that are waiting now."""
        return frozenset(self._waiting.keys() - self._ended.keys())

    def reaches(self, count: int) -> bool:
        """Return whether at least this many clients are present.

        Fast if few ever came or many wait.
        """
        if len(self._waiting) >= count:
            return True
        return len(self._seen) >= count and len(self.live()) >= count

    def live(self) -> frozenset[ClientId]:
        """Return the clients that are present."""
        since = self._clock.now() - LIVE_SECONDS
        recent = {client_id for client_id, at in self._seen.items() if at >= since}
        return frozenset(((recent - self._silent) | self._waiting.keys()) - self._ended.keys())
