"""Which sets of contributors this client helped to open sums of, as a file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from fedrec.errors import RevealRefused, StorageError
from fedrec.ids import ClientId, digest
from fedrec.protection.masks import Survivors, may_open
from fedrec.wire.messages import RoundKind

__all__ = ["OpenedSets", "model_digest"]

_REMEDY = (
    "The run goes on when the clients of that round are here again. A new run does not help them: "
    "its first sums can be compared with this run's."
)


def model_digest(content: bytes) -> str:
    """Return the digest of a model (`SharedState.canonical_bytes`), whatever its version."""
    return digest("fedrec opened sets v1", content).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSets:
    """The sets of one model, and those of the run's item counts, which no model changes.

    Attributes:
        model: `model_digest` of the model that the rounds start from.
        sets: in the order in which they were opened.
        counts: the sets of rounds of kind "count", whatever their model.
    """

    model: str = ""
    sets: tuple[Survivors, ...] = ()
    counts: tuple[Survivors, ...] = ()

    def with_one(self, model: str, kind: RoundKind, found: Survivors, minimum: int) -> OpenedSets:
        """Return what is kept when a set is opened; see `fedrec.protection.masks.openings`.

        Raises:
            RevealRefused: when its sum and that of an earlier set would give too few clients away.
        """
        earlier = self.sets if model == self.model else ()
        counts = self.counts if kind == "count" else ()
        if not (may_open(earlier, found, minimum) and may_open(counts, found, minimum)):
            raise RevealRefused(
                "A sum over the same model may have been opened before, of other clients; the two "
                f"would tell about fewer than {minimum} of them.",
                remedy=_REMEDY,
            )
        return replace(
            self,
            model=model,
            sets=_with(earlier, found),
            counts=_with(counts, found) if kind == "count" else self.counts,
        )

    def to_bytes(self) -> bytes:
        """Return canonical JSON."""
        found = {
            "model": self.model,
            "sets": [sorted(one) for one in self.sets],
            "counts": [sorted(one) for one in self.counts],
        }
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
                model=str(found["model"]),
                sets=tuple(frozenset(map(ClientId, one)) for one in found["sets"]),
                counts=tuple(frozenset(map(ClientId, one)) for one in found["counts"]),
            )
        except (ValueError, KeyError, TypeError):
            raise StorageError("The file of opened sums is damaged.") from None


def _with(sets: tuple[Survivors, ...], found: Survivors) -> tuple[Survivors, ...]:
    return sets if found in sets else (*sets, found)
