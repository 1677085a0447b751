"""Who is asked for a copy of the model, and who may therefore send one."""

from __future__ import annotations

from fedrec.clock import Clock
from fedrec.ids import ClientId, RoundId

__all__ = ["ASK_SECONDS", "SnapshotMakers"]

ASK_SECONDS = 30.0
"""After this others are asked; a late one may send its copy all the same."""


class SnapshotMakers:
    """Chooses among clients that are up to date.

    Who was asked is forgotten with the process and the epoch; the next late joiner asks again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._round = RoundId(0)
        self._asked: frozenset[ClientId] = frozenset()
        self._answered: frozenset[ClientId] = frozenset()
        self._asked_at = 0.0
        self._n_makers = 0
        self._requests: dict[ClientId, RoundId] = {}
        self._distrusted: set[ClientId] = set()

    def ask(
        self, waiting: frozenset[ClientId], published: RoundId, n_makers: int
    ) -> frozenset[ClientId]:
        """Choose who makes a snapshot of the published round; nobody while others are at it."""
        self._n_makers = n_makers
        before = self._asked if self._is_in_time(published) else frozenset()
        if len(before) >= n_makers:
            return frozenset()
        # Last come those whose copy was refused, before them those who stayed silent.
        candidates = sorted(
            waiting - before,
            key=lambda client: (client in self._distrusted, client in self._asked, client),
        )
        chosen = frozenset(candidates[: n_makers - len(before)])
        if not self._is_in_time(published):
            self._asked_at = self._clock.now()
            self._answered = frozenset()
        self._asked = before | chosen
        self._round = published
        self._requests |= dict.fromkeys(chosen, published)
        return chosen

    def lacks(self, client_id: ClientId, published: RoundId) -> bool:
        """Tell whether a client that has nothing to do is to be asked, too."""
        if not self._is_in_time(published):
            return client_id not in self._distrusted
        others = client_id not in self._asked | self._distrusted
        return others and len(self._asked) < self._n_makers

    def has_task(self, client_id: ClientId, published: RoundId) -> bool:
        """Tell whether a client is to make a snapshot of the published round now."""
        is_awaited = client_id in self._asked - self._answered
        return is_awaited and self._is_in_time(published)

    def may_send(self, client_id: ClientId, round_id: RoundId) -> bool:
        """Tell whether a client was asked for a snapshot of a round and did not send it yet."""
        return self._requests.get(client_id) == round_id

    def answered(self, client_id: ClientId) -> None:
        """Note that a client sent what it was asked for."""
        self._answered |= {client_id}
        self._requests.pop(client_id, None)

    def distrust(self, client_id: ClientId) -> None:
        """Ask others first from now on, and at once."""
        self._distrusted.add(client_id)
        self._round = RoundId(0)

    def _is_in_time(self, published: RoundId) -> bool:
        return self._round == published and self._clock.now() < self._asked_at + ASK_SECONDS
