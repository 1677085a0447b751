"""Who is there: clients that wait for a task now, or were heard of lately; who is ahead."""

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
"""A client that is started anew at once costs nobody the round in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """The last word of a client that ended.

    Attributes:
        code: of the error that ended it; empty where it was told to stop, or is done.
        had_begun: whether it had asked for a task before.
    """

    at: float
    code: str
    had_begun: bool


class Presence:
    """Remembers when each roster client was heard of; forgotten with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[ClientId, float] = {}
        self._joined: dict[ClientId, float] = {}
        self._ended: dict[ClientId, Goodbye] = {}
        self._waiting: Counter[ClientId] = Counter()
        self._silent: set[ClientId] = set()
        self._versions: dict[ClientId, RoundId] = {}
        self._models: dict[ClientId, RoundId] = {}
        self._releases: dict[ClientId, str] = {}

    def now(self) -> float:
        """Return the time by the clock that calls are noted by."""
        return self._clock.now()

    def heard(self, client_id: ClientId) -> None:
        """Note a call of a client; one that said goodbye is back."""
        self._seen[client_id] = self._clock.now()
        self._silent.discard(client_id)
        self._ended.pop(client_id, None)

    def reports(self, client_id: ClientId, version: RoundId) -> bool:
        """Note a model that is newer than the run; tell whether that is news."""
        is_news = self._versions.get(client_id) != version
        self._versions[client_id] = version
        return is_news

    def furthest(self) -> tuple[ClientId, RoundId] | None:
        """Return who reported the newest model, of those that were newer than the run."""
        return max(self._versions.items(), key=lambda one: one[1], default=None)

    def joined(self, client_id: ClientId, release: str = "") -> None:
        """Note that a member began: no round counts on it before it asks for a task.

        Args:
            release: of fedrec, which it runs.
        """
        self._joined[client_id] = self._clock.now()
        self._ended.pop(client_id, None)
        self._releases[client_id] = release or self.release_of(client_id)

    def ended(self, client_id: ClientId, code: str = "") -> None:
        """Note that a client ended, by its own word, until its next call.

        Args:
            code: of the error that ended it, or with which it was refused.
        """
        known = client_id in self._seen and client_id not in self._ended
        had_begun = known and not self.idle_since(client_id)
        self._ended[client_id] = Goodbye(at=self._clock.now(), code=code, had_begun=had_begun)

    def goodbye_of(self, client_id: ClientId) -> Goodbye | None:
        """Return a client's last word, where it ended; None for one that did not say so."""
        return self._ended.get(client_id)

    def gone(self) -> frozenset[ClientId]:
        """Return who ended and did not come back at once."""
        until = self._clock.now() - BACK_SECONDS
        return frozenset(one for one, said in self._ended.items() if said.at <= until)

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Count as away who was asked in a round that was given up and did not answer.

        Asked again at once, a client that was killed would cost round after round.
        """
        if before.current is None:
            return
        if any(isinstance(change, RoundAbandoned) for change in changes):
            self._silent.update(before.current.asked - before.current.accepted.keys())

    @contextmanager
    def waiting(self, client_id: ClientId, model: RoundId = NO_ROUND) -> Iterator[None]:
        """Count a client as live while it waits.

        Args:
            model: the published round that its model contains.
        """
        self._waiting[client_id] += 1
        self._models[client_id] = model
        self.heard(client_id)
        try:
            yield
        finally:
            # The wait of a client that said goodbye meanwhile ends after that.
            if client_id not in self._ended:
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
        here = client_id in self._waiting and client_id not in self._ended
        return self._clock.now() if here else self._seen.get(client_id or ClientId(""), 0.0)

    def is_silent(self, client_id: ClientId) -> bool:
        """Tell whether a client did not answer a round that was given up, nor called since."""
        return client_id in self._silent

    def model_of(self, client_id: ClientId) -> RoundId:
        """Return the published round that a client's model contained when it last asked."""
        return self._models.get(client_id, NO_ROUND)

    def release_of(self, client_id: ClientId) -> str:
        """Return the release that a client runs; empty where it did not say."""
        return self._releases.get(client_id, "")

    @property
    def waiters(self) -> frozenset[ClientId]:
        """Return who waits now."""
        return frozenset(self._waiting.keys() - self._ended.keys())

    def reaches(self, count: int) -> bool:
        """Tell whether so many clients are there; cheap while few ever came or many wait."""
        if len(self._waiting) >= count:
            return True
        return len(self._seen) >= count and len(self.live()) >= count

    def live(self) -> frozenset[ClientId]:
        """Return who is there now."""
        since = self._clock.now() - LIVE_SECONDS
        recent = {client_id for client_id, at in self._seen.items() if at >= since}
        return frozenset(((recent - self._silent) | self._waiting.keys()) - self._ended.keys())
