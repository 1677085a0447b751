"""Which sets of survivors this client signed for one version of the model, as a file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from fedrec.errors import RevealRefused, StorageError
from fedrec.ids import ClientId, RoundId
from fedrec.protection.masks import Survivors, may_open

__all__ = ["OpenedSets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSets:
    """The sets signed for a version.

    Attributes:
        base_round: the version that the rounds start from.
        sets: in the order in which they were signed.
    """

    base_round: RoundId
    sets: tuple[Survivors, ...] = ()

    def with_one(self, base_round: RoundId, found: Survivors, minimum: int) -> OpenedSets:
        """Return what is kept when a set is signed; see `fedrec.protection.masks.openings`.

        Raises:
            RevealRefused: when its sum and that of an earlier set would give too few clients away.
        """
        if base_round != self.base_round:
            return OpenedSets(base_round=base_round, sets=(found,))
        if not may_open(self.sets, found, minimum):
            raise RevealRefused(
                f"A sum over version {base_round} may have been opened before, of other "
                f"survivors; the two would tell about fewer than {minimum} clients.",
                remedy="The run goes on when the clients of that round are here again. If one of "
                "them is gone for good, the data owners start a new run.",
            )
        return self if found in self.sets else replace(self, sets=(*self.sets, found))

    def to_bytes(self) -> bytes:
        """Return canonical JSON."""
        found = {"base_round": self.base_round, "sets": [sorted(one) for one in self.sets]}
        return json.dumps(found, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> OpenedSets:
        """Read what `to_bytes` wrote.

        Raises:
            StorageError: for anything else.
        """
        try:
            found = json.loads(raw)
            return cls(
                base_round=RoundId(int(found["base_round"])),
                sets=tuple(frozenset(map(ClientId, one)) for one in found["sets"]),
            )
        except (ValueError, KeyError, TypeError):
            raise StorageError("The file of opened sums is damaged.") from None
