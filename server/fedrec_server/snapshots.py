"""Copies of the model for clients that join late, made by clients that are up to date.

Under encryption a snapshot counts when its state tag is the one that two key holders signed for
the round. Where nobody said so, two clients have to send the same: without encryption the same
bytes, and for a round of an earlier epoch the same tag under the present epoch's key.
"""

from __future__ import annotations

from fedrec.clock import Clock
from fedrec.errors import RefusedError, RoundError
from fedrec.ids import ClientId, RoundId
from fedrec.training.layout import shared_values
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import MakeSnapshot, RevealStatement, Task
from fedrec_server.federation import Federation
from fedrec_server.store.store import PublishedRecord, SnapshotRecord, Store

__all__ = ["Snapshots"]

ASK_SECONDS = 30.0
BYTES_PER_VALUE = 8


class Snapshots:
    """Decides when a snapshot is worth making, who makes it, and whether it counts.

    Who was asked is forgotten with the process and the epoch; the next late joiner asks again.
    """

    def __init__(self, federation: Federation, store: Store, clock: Clock) -> None:
        self._federation = federation
        self._store = store
        self._clock = clock
        self._asked: frozenset[ClientId] = frozenset()
        self._answered: frozenset[ClientId] = frozenset()
        self._asked_at = 0.0
        self._round = RoundId(0)
        self._behind: dict[ClientId, RoundId] = {}
        self._sent: dict[ClientId, tuple[RevealStatement, bytes]] = {}
        oldest = store.next_published(RoundId(0))
        self._mixed_epochs = oldest is not None and oldest.epoch != self._epoch

    def may_miss(self, client_id: ClientId, version: RoundId) -> bool:
        """Tell at once whether it is worth asking the store about a client that is behind.

        A member that crosses into this epoch may still open the rounds before it: only who comes
        back with the same version could not.
        """
        if version == 0 or not self._mixed_epochs:
            return version == 0
        came_back = self._behind.get(client_id) == version
        self._behind[client_id] = version
        return came_back

    def worth_making(self, version: RoundId) -> bool:
        """Tell whether a client that is behind is better off with a snapshot not yet made."""
        first = self._store.next_published(version)
        if first is None:
            return False
        stored = self._store.snapshot()
        if stored is not None and stored.epoch != self._epoch:
            stored = None
        if first.epoch != self._epoch:
            return stored is None
        since = RoundId(0) if stored is None else stored.round
        price = self._estimate if stored is None else stored.blob.length
        return version == 0 and self._store.bytes_after(since) > price

    def ask(self, waiting: frozenset[ClientId], published: RoundId) -> frozenset[ClientId]:
        """Choose who makes a snapshot, and return whom to wake; nobody while others are at it."""
        makers = 2 if self._needs_two(self._store.published(published)) else 1
        in_time = self._round == published and self._clock.now() < self._asked_at + ASK_SECONDS
        before = self._asked if in_time else frozenset()
        if len(before) >= makers:
            return frozenset()
        # Those who were asked before and stayed silent come last.
        candidates = sorted(waiting - before, key=lambda client: (client in self._asked, client))
        chosen = frozenset(candidates[: makers - len(before)])
        if not in_time:
            self._asked_at = self._clock.now()
            self._answered = frozenset()
        self._asked = before | chosen
        self._round = published
        return chosen

    def task_for(self, client_id: ClientId, published: RoundId) -> Task | None:
        """Return the task of an idle client that is up to date, if it was asked."""
        if self._round != published or client_id not in self._asked - self._answered:
            return None
        if self._clock.now() >= self._asked_at + ASK_SECONDS:
            return None
        return Task(
            published_round=published, task=MakeSnapshot(round=published), epoch=self._epoch
        )

    def check(self, statement: RevealStatement) -> None:
        """Refuse a snapshot that nobody can use.

        Raises:
            RoundError: when its round is not published, a later snapshot is here, or the epoch
                changed meanwhile.
            RefusedError: when it is not the state that the key holders signed.
        """
        record = self._store.published(statement.round)
        if record is None:
            raise RoundError(f"Round {statement.round} is not published.")
        if statement.epoch != self._epoch:
            raise RoundError(f"The key epoch is {self._epoch}, not {statement.epoch}.")
        if self._is_vouched(record):
            if record.statements[0].state_tag != statement.state_tag:
                raise RefusedError("The snapshot is not the state that the key holders signed.")
        elif record.statements and not statement.is_attestation:
            raise RefusedError(f"Round {statement.round} was published in an earlier epoch.")
        stored = self._store.snapshot()
        newest = (0, 0) if stored is None else (stored.epoch, stored.round)
        if newest >= (statement.epoch, statement.round):
            raise RoundError(f"A snapshot of round {statement.round} or later is here already.")

    def accepts(self, statement: RevealStatement, blob: Blob) -> tuple[RevealStatement, ...] | None:
        """Note an admitted snapshot; return who vouches for it where it counts now, else None.

        Nobody has to where key holders signed the state when its round was published.
        """
        self._answered |= {statement.client_id}
        record = self._store.published(statement.round)
        if not self._needs_two(record):
            return ()
        sealed = self._federation.protection.needs_reveal
        about = statement.state_tag if sealed else blob.digest
        self._sent[statement.client_id] = (statement, about)
        alike = [
            other
            for other, told in self._sent.values()
            if (other.round, told) == (statement.round, about)
            and (not sealed or other.content() == statement.content())
        ]
        if len(alike) < 2:
            return None
        self._sent.clear()
        return tuple(alike) if sealed else ()

    def for_client(self, after: RoundId) -> tuple[SnapshotRecord, PublishedRecord] | None:
        """Return the snapshot where it serves a client at `after` better than the aggregates."""
        stored = self._store.snapshot()
        if stored is None or stored.round <= after or stored.epoch != self._epoch:
            return None
        record = self._store.published(stored.round)
        first = self._store.next_published(after)
        if record is None or first is None:
            return None
        saved = self._store.bytes_after(after) - self._store.bytes_after(stored.round)
        if stored.blob.length > saved and first.epoch == self._epoch:
            return None
        return stored, record

    def _is_vouched(self, record: PublishedRecord) -> bool:
        """Tell whether key holders signed the state under the present epoch's key."""
        return bool(record.statements) and record.epoch == self._epoch

    def _needs_two(self, record: PublishedRecord | None) -> bool:
        return record is None or not self._is_vouched(record)

    @property
    def _epoch(self) -> int:
        return self._federation.keys.roster.epoch

    @property
    def _estimate(self) -> int:
        n_items = self._federation.catalogue.n_items
        return BYTES_PER_VALUE * (shared_values(self._federation.plan, n_items) + n_items)
