"""Sealing and tagging what a round revealed, so that only members of the epoch read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fedrec.identity.metrics_lock import box_of, share_of
from fedrec.identity.sealing import keyed_tag, seal_same, unseal
from fedrec.ids import RoundId, canonical
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import RoundKind
from fedrec.wire.stated_rows import StatedRows
from fedrec_client.stored_state import RoundContent

__all__ = ["RoundSeal"]

_AGGREGATE = "fedrec aggregate v1"
_SNAPSHOT = "fedrec snapshot v1"
_STATE = "fedrec state v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSeal:
    """Binds sealed bytes and tags to a federation, run, epoch and round.

    Attributes:
        kind: enters the aggregate's tag, because no signature names it.
        alone: whether one key holder opens all rounds, so that its share opens the metrics.
    """

    group_key: bytes = field(repr=False)
    federation: str
    run: str
    epoch: int
    round: RoundId
    kind: RoundKind
    alone: bool = False

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a RoundSeal holds a key and cannot be pickled or copied")

    def _context(self) -> bytes:
        return canonical("fedrec round v1", self.federation, self.run, self.epoch, self.round)

    def seal_aggregate(self, packed: bytes) -> bytes:
        """Seal a packed aggregate; all key holders make the same bytes of it."""
        return seal_same(self.group_key, _AGGREGATE, self._context(), packed)

    def unseal_aggregate(self, sealed: bytes) -> bytes:
        """Open what `seal_aggregate` made.

        Raises:
            BadSignature: sealed for another round, or changed.
        """
        return unseal(self.group_key, _AGGREGATE, self._context(), sealed)

    def seal_snapshot(self, shared: bytes) -> bytes:
        """Seal a copy of the shared model; all who have it make the same bytes of it."""
        return seal_same(self.group_key, _SNAPSHOT, self._context(), shared)

    def unseal_snapshot(self, sealed: bytes) -> bytes:
        """Open what `seal_snapshot` made.

        Raises:
            BadSignature: sealed for another round, or changed.
        """
        return unseal(self.group_key, _SNAPSHOT, self._context(), sealed)

    def aggregate_tag(self, aggregate: NDArray[np.int64]) -> bytes:
        """Return the keyed digest of the revealed integers."""
        raw = aggregate.astype("<i8", copy=False).tobytes()
        return keyed_tag(
            self.group_key, _AGGREGATE, canonical(_AGGREGATE, self._context(), self.kind, raw)
        )

    def content(
        self,
        manifest: bytes,
        aggregate: NDArray[np.int64],
        published: bytes,
        metrics: bytes,
        shared: bytes,
        rows: StatedRows,
    ) -> RoundContent:
        """Return what key holders state about the round.

        Args:
            manifest: digest of the contributions that were summed.
            aggregate: the revealed integers.
            published: the bytes in which they are published.
            metrics: what of them becomes public once two statements agree.
            shared: canonical bytes of the model after the round.
            rows: that vectors of the rounds after it cover.
        """
        found = RoundContent(
            manifest_digest=manifest,
            aggregate_tag=self.aggregate_tag(aggregate),
            state_tag=self.state_tag(shared),
            published_digest=Blob.of(published).digest,
            locked_metrics=b"",
            n_rows=rows.n_rows,
            rows_digest=rows.digest,
        )
        box = box_of(self.group_key, self._lock_context(found), metrics)
        return found.model_copy(update={"locked_metrics": box})

    def share(self, content: RoundContent, place: int) -> bytes:
        """Return a key holder's share of the key to the metrics, by its place in the committee."""
        return share_of(self.group_key, self._lock_context(content), place, alone=self.alone)

    def _lock_context(self, content: RoundContent) -> bytes:
        """Name all that was revealed; the aggregate's tag stands for the metrics, too."""
        return canonical(
            "fedrec metrics v1",
            self._context(),
            content.manifest_digest,
            content.aggregate_tag,
            content.state_tag,
        )

    def state_tag(self, shared: bytes) -> bytes:
        """Return the keyed digest of the canonical bytes of the model after the round."""
        return keyed_tag(self.group_key, _STATE, canonical(_STATE, self._context(), shared))
