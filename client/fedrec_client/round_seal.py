"""Sealing and tagging what a round revealed, so that only members of the epoch read it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrec.identity.sealing import keyed_tag, seal, unseal
from fedrec.ids import RoundId, canonical
from fedrec.wire.messages import RoundKind

__all__ = ["RoundSeal"]

_AGGREGATE = "fedrec aggregate v1"
_SNAPSHOT = "fedrec snapshot v1"
_STATE = "fedrec state v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSeal:
    """Binds sealed bytes and tags to a federation, run, epoch and round.

    Attributes:
        kind: enters the aggregate's tag, because no signature names it.
    """

    group_key: bytes = field(repr=False)
    federation: str
    run: str
    epoch: int
    round: RoundId
    kind: RoundKind

    def _context(self) -> bytes:
        return canonical("fedrec round v1", self.federation, self.run, self.epoch, self.round)

    def seal_aggregate(self, packed: bytes) -> bytes:
        """Seal a packed aggregate."""
        return seal(self.group_key, _AGGREGATE, self._context(), packed)

    def unseal_aggregate(self, sealed: bytes) -> bytes:
        """Open what `seal_aggregate` made.

        Raises:
            BadSignature: sealed for another round, or changed.
        """
        return unseal(self.group_key, _AGGREGATE, self._context(), sealed)

    def seal_snapshot(self, shared: bytes) -> bytes:
        """Seal a copy of the shared model."""
        return seal(self.group_key, _SNAPSHOT, self._context(), shared)

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

    def state_tag(self, shared: bytes) -> bytes:
        """Return the keyed digest of the canonical bytes of the model after the round."""
        return keyed_tag(self.group_key, _STATE, canonical(_STATE, self._context(), shared))
