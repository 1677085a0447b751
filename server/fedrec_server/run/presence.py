"""Who is there: clients that wait for a task now, or were heard of lately; who is ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fedrec.clock import Clock
from fedrec.ids import ClientId, RoundId
from fedrec_server.rounds.changes import Change, RoundAbandoned
from fedrec_server.rounds.state import State

__all__ = ["LIVE_SECONDS", "Presence"]

LIVE_SECONDS = 30.0


class Presence:
    """Remembers when each roster client was heard of; forgotten with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[ClientId, float] = {}
        self._joined: dict[ClientId, float] = {}
        self._waiting: Counter[ClientId] = Counter()
        self._silent: set[ClientId] = set()
        self._versions: dict[ClientId, RoundId] = {}

    def now(self) -> float:
        """Return the time by the clock that calls are noted by."""
        return self._clock.now()

    def heard(self, client_id: ClientId) -> None:
        """Note a call of a client."""
        self._seen[client_id] = self._clock.now()
        self._silent.discard(client_id)

    def reports(self, client_id: ClientId, version: RoundId) -> bool:
        """Note a model that is newer than the run; tell whether that is news."""
        is_news = self._versions.get(client_id) != version
        self._versions[client_id] = version
        return is_news

    def furthest(self) -> tuple[ClientId, RoundId] | None:
        """Return who reported the newest model, of those that were newer than the run."""
        return max(self._versions.items(), key=lambda one: one[1], default=None)

    def joined(self, client_id: ClientId) -> None:
        """Note that a member began: no round counts on it before it asks for a task."""
        self._joined[client_id] = self._clock.now()

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Count as away who was asked in a round that was given up and did not answer.

        Asked again at once, a client that was killed would cost round after round.
        """
        if before.current is None:
            return
        if any(isinstance(change, RoundAbandoned) for change in changes):
            self._silent.update(before.current.asked - before.current.accepted.keys())

    @contextmanager
    def waiting(self, client_id: ClientId) -> Iterator[None]:
        """Count a client as live while it waits."""
        self._waiting[client_id] += 1
        self.heard(client_id)
        try:
            yield
        finally:
            self.heard(client_id)
            self._waiting[client_id] -= 1
            if not self._waiting[client_id]:
                del self._waiting[client_id]

    @property
    def seen(self) -> frozenset[ClientId]:
        """Return who ever began or was heard of."""
        return frozenset(self._seen.keys() | self._joined.keys())

    def idle_since(self, client_id: ClientId) -> float:
        """Return when a client began that asked for nothing since; 0 for any other."""
        began = self._joined.get(client_id, 0.0)
        return began if began > self.last_heard(client_id) else 0.0

    def last_heard(self, client_id: ClientId | None) -> float:
        """Return when a client was last heard of, or waited; 0 where it never was."""
        here = client_id in self._waiting
        return self._clock.now() if here else self._seen.get(client_id or ClientId(""), 0.0)

    @property
    def waiters(self) -> frozenset[ClientId]:
        """Return who waits now."""
        return frozenset(self._waiting)

    def reaches(self, count: int) -> bool:
        """Tell whether so many clients are there; cheap while few ever came or many wait."""
        if len(self._waiting) >= count:
            return True
        return len(self._seen) >= count and len(self.live()) >= count

    def live(self) -> frozenset[ClientId]:
        """Return who is there now."""
        since = self._clock.now() - LIVE_SECONDS
        recent = {client_id for client_id, at in self._seen.items() if at >= since}
        return frozenset((recent - self._silent) | self._waiting.keys())
