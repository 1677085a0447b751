"""Which client was last counted in a published round, and how many bytes of each were, in all.

Read from the store once, and followed from there: for operators, nothing is decided by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.ids import ClientId, RoundId
from fedrec_server.rounds.changes import CellsPaused, Change, RoundPublished
from fedrec_server.rounds.state import NO_ROUND, State
from fedrec_server.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSoFar:
    """What published rounds counted of a client."""

    round: RoundId = NO_ROUND
    n_bytes: int = 0


class CountedUpdates:
    """What published rounds counted of each client."""

    def __init__(self) -> None:
        self._found: dict[ClientId, CountedSoFar] = {}

    def read(self, store: Store) -> None:
        """Take what the store has; in the store's thread."""
        self._found = {
            client_id: CountedSoFar(round=last, n_bytes=n_bytes)
            for client_id, (last, n_bytes) in store.counted_by_client().items()
        }

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Take what was just published."""
        published = any(isinstance(change, RoundPublished) for change in changes)
        if not published or before.current is None:
            return
        paused = (change.left_out for change in changes if isinstance(change, CellsPaused))
        left_out = frozenset[ClientId]().union(*paused)
        for client_id, header in before.current.accepted.items():
            if client_id not in left_out:
                n_bytes = self.of(client_id).n_bytes + header.length
                self._found[client_id] = CountedSoFar(round=header.round, n_bytes=n_bytes)

    def of(self, client_id: ClientId) -> CountedSoFar:
        """Return what was counted of a client."""
        return self._found.get(client_id, CountedSoFar())
