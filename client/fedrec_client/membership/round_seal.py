"""Sealing and tagging what a round revealed, so that only members of the epoch read it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedrec.identity.sealing import keyed_tag, seal_same, unseal
from fedrec.identity.secret import Secret
from fedrec.ids import RoundId, canonical

__all__ = ["RoundSeal"]

_AGGREGATE = "fedrec aggregate v1"
_SNAPSHOT = "fedrec snapshot v1"
_STATE = "fedrec state v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSeal(Secret):
    """Binds sealed bytes and tags to a federation, run, epoch and round."""

    group_key: bytes = field(repr=False)
    federation: str
    run: str
    epoch: int
    round: RoundId

    def _context(self) -> bytes:
        return canonical("fedrec round v1", self.federation, self.run, self.epoch, self.round)

    def seal_aggregate(self, packed: bytes) -> bytes:
        """Seal a packed aggregate; the same bytes at every try."""
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

    def state_tag(self, shared: bytes) -> bytes:
        """Return the keyed digest of the canonical bytes of the model after the round."""
        return keyed_tag(self.group_key, _STATE, canonical(_STATE, self._context(), shared))
