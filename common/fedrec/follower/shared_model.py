"""The shared model as every follower computes it, and the context of a follower's run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import FedrecError, SplitView, TrainingError
from fedrec.evaluation.metrics import MetricSums
from fedrec.follower.follower_store import FollowerStore
from fedrec.follower.membership import Membership
from fedrec.follower.round_journal import AuditLog, RoundJournal
from fedrec.follower.round_terms import AnnouncedRound, RoundVector
from fedrec.follower.stored_state import StoredState
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.plan.travelling_rows import ActiveRows
from fedrec.training.bounds import most_users
from fedrec.training.personalising import parts_of_publication, with_shared
from fedrec.wire.fields import StatedRows
from fedrec.wire.link import Link
from fedrec.wire.messages import PublishedRound, RevealStatement, RoundKind, UploadHeader

if TYPE_CHECKING:
    from fedrec.training.server_half import ServerHalf


Computed = Mapping[str, NDArray[np.float64]]
"""Values of shared tensors that a server computed besides the sum, by name."""
NOTHING: Computed = MappingProxyType({})


class SharedModel:
    """Keep the shared state at the store's version in memory between rounds.

    A party that opens sums and has no users keeps nothing else.
    """

    def __init__(
        self, membership: Membership, half: ServerHalf, store: FollowerStore[StoredState]
    ) -> None:
        self._membership = membership
        self._half = half
        self._store = store
        self._shared: SharedState | None = None
        self._base_state: tuple[RoundId, bytes] | None = None

    @property
    def version(self) -> RoundId:
        """The last published round in the shared model."""
        return self._store.state.version

    @property
    def shared(self) -> SharedState:
        """The present model of items and shared parameters."""
        if self._shared is None:
            ref = self._store.state.shared
            self._shared = (
                self._half.initial_shared() if ref is None else self.read(self._store.read(ref))
            )
        return self._shared

    @property
    def n_items(self) -> int:
        """The number of items in the catalogue."""
        return self._half.n_items

    def read(self, raw: bytes) -> SharedState:
        """Read a version of the model from the bytes that `stored` returned.

        Raises:
            StorageError: the bytes don't encode a model.
        """
        return SharedState.from_bytes(raw, self._half.initial_shared)

    def stored(self, shared: SharedState) -> bytes:
        """Return a version without the rows that every party draws from the run's seed."""
        return b"".join(self._parts(shared))

    def _parts(self, shared: SharedState) -> Iterator[bytes]:
        return shared.parts(self._half.initial_shared())

    def terms(self, round_id: RoundId, kind: RoundKind) -> AnnouncedRound:
        """Return the terms of the next round from the present model."""
        return AnnouncedRound(
            round=round_id,
            kind=kind,
            base_round=self.version,
            base_state=self._digest(),
            rows=self._membership.stated_rows(self.rows(kind)),
        )

    def rows(self, kind: RoundKind) -> ActiveRows:
        """Return the item rows that a round's vectors from the present model cover."""
        return self._half.travelling.rows(kind, self.shared)

    def vector(self, kind: RoundKind) -> RoundVector:
        """Return the objects for vectors of a round from the present model."""
        return self._membership.vector_of(kind, self.rows(kind).n_rows)

    def rows_after(self, shared: SharedState) -> StatedRows:
        """Return the item rows that vectors cover after a publication, as reports state them."""
        return self._membership.stated_rows(self._half.travelling.rows("train", shared))

    def _digest(self) -> bytes:
        """Return the digest of the present model, computed once for each version."""
        known = self._base_state
        if known is None or known[0] != self.version:
            made = self._membership.base_state(self.version, self.shared)
            known = self._base_state = (self.version, made)
        return known[1]

    def parts_of(self, found: PublishedRound) -> tuple[PublishedRound, Computed]:
        """Return a published round with its sum alone, and the shared values that it replaces.

        Raises:
            ProtocolError: the values don't fit the model.
        """
        if not self.is_personal(found.kind):
            return found, NOTHING
        blob, computed = parts_of_publication(self._half, self.shared, found.blob)
        return replace(found, blob=blob), computed

    def applied(
        self, kind: RoundKind, aggregate: NDArray[np.int64], computed: Computed = NOTHING
    ) -> SharedState:
        """Return the shared model that follows from a checked aggregate, without adopting it.

        Args:
            computed: the values that a server computed, in place of those of the aggregate.
        """
        after = self._half.apply(kind, self.shared.number, self.shared, aggregate)
        return with_shared(self._half, after, computed)

    def is_personal(self, kind: RoundKind) -> bool:
        """Return whether the server computes models for single clients in rounds of a kind."""
        return kind == "train" and self._half.algorithm.derived.personalises

    def counts(self, kind: RoundKind, aggregate: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts that an aggregate has for the items it covers."""
        return self._half.travelling.counts(kind, self.shared, aggregate)

    def with_rows(
        self, kind: RoundKind, aggregate: NDArray[np.int64], kept: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return an aggregate with zeros in other items' rows (see `Travelling.with_rows`)."""
        return self._half.travelling.with_rows(kind, self.shared, aggregate, kept)

    def check_sum(
        self,
        kind: RoundKind,
        aggregate: NDArray[np.int64],
        contributions: Collection[UploadHeader],
    ) -> None:
        """Refuse an aggregate that its contributors' users can't add up to.

        Raises:
            SumOutOfBounds: a part is out of bounds. The error names it.
        """
        self._half.travelling.check_sum(
            kind,
            self.shared,
            aggregate,
            most_users=most_users(
                self._membership.plan,
                self._membership.roster,
                [one.client_id for one in contributions],
            ),
            n_clients=len(contributions),
        )

    def publish(
        self,
        round_id: RoundId,
        shared: SharedState,
        *,
        metrics: NDArray[np.int64],
        statement: RevealStatement | None = None,
    ) -> None:
        """Move to a published round.

        Raises:
            TrainingError: training diverged at every client, so further rounds would change
                nothing.
        """
        measured = metrics.astype("<i8").tobytes()
        self._store.publish(round_id, self._parts(shared), metrics=measured, statement=statement)
        self._continue_from(round_id, shared, metrics)

    def _continue_from(
        self, round_id: RoundId, shared: SharedState, metrics: NDArray[np.int64]
    ) -> None:
        """Make the committed version the present one (see `publish`)."""
        self._shared = shared
        sums, least = MetricSums(metrics), self._half.plan.rounds.minimum_clients
        if sums.abstained >= least and not sums.participants:
            raise TrainingError(
                f"Training diverged at all {sums.abstained} clients of round {round_id}.",
                remedy=self._half.algorithm.about.advice.divergence_remedy,
            )

    def adopt(
        self,
        round_id: RoundId,
        shared: SharedState,
        *,
        statement: RevealStatement | None = None,
    ) -> None:
        """Adopt a snapshot of the shared model. Users keep their private parameters."""
        # Statements cover trained rows only. Other rows are never sent.
        shared = self._half.apart(shared).over(self._half.initial_shared())
        self._store.adopt(round_id, self._parts(shared), statement=statement)
        self._shared = shared


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """The parts of one follower's run and key epoch.

    Attributes:
        membership: the membership that enrolment returned.
        link: the link to the coordinator. It retries, so it raises no temporary errors.
        model: this party's model, with private parameters if it trains.
        store: the state folder.
        audit: the log of refusals.
        journal: the journal of costs, which also reports events.
    """

    membership: Membership
    link: Link
    model: SharedModel
    store: FollowerStore[StoredState]
    audit: AuditLog
    journal: RoundJournal

    def refused(self, event: str, round_id: RoundId, error: FedrecError) -> None:
        """Record a refusal and its reason in the audit log. A split view is named as such."""
        if isinstance(error, SplitView):
            event = "split_view"
            self.journal.tell("split_view", round_id, detail=str(error))
        self.audit.refused(event, run=self.membership.run, round_id=round_id, error=error)
