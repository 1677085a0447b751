"""What parties say of the item rows that vectors cover: their number, and a name for the list."""

from __future__ import annotations

from dataclasses import dataclass

UNSAID = bytes(32)
"""In place of a digest about which a statement says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRows:
    """The item rows that vectors cover, for those who must not know which they are.

    Attributes:
        n_rows: how many there are, the padding of zeros included; 0 where nothing is trained.
        digest: of the list of their items, 32 bytes; keyed by the group key where the coordinator
            must not know whether it guessed the list. `UNSAID` where every item has its row.
    """

    n_rows: int
    digest: bytes

    @classmethod
    def whole(cls, n_items: int) -> StatedRows:
        """Return the rows of vectors that cover the catalogue."""
        return cls(n_rows=n_items, digest=UNSAID)
