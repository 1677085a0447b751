"""The terms of a round: what everybody who contributes to it must have been told alike."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.errors import RefusedError, SplitView
from fedrec.ids import RoundId
from fedrec.wire.messages import RoundKind, UploadHeader
from fedrec.wire.stated_rows import StatedRows

__all__ = ["RoundTerms"]

_REMEDY = "The coordinator told clients different things about a round; tell the data owners."


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTerms:
    """What the coordinator says about a round, and what follows from this client's model.

    Attributes:
        base_round: the published round whose model is trained.
        base_state: digest of that model, as this client has it.
        rows: the item rows that the round's vectors cover.
        key_list: under masks the digest of the list of keys; else empty.
    """

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    base_state: bytes
    rows: StatedRows
    key_list: bytes = b""

    def check_header(self, header: UploadHeader) -> None:
        """Check that a contributor was told the same, and has the same model.

        Raises:
            RefusedError: naming what differs.
        """
        author = header.client_id[:16]
        if (header.kind, header.base_round) != (self.kind, self.base_round):
            raise RefusedError(
                f"{author} contributed to a round of kind {header.kind} from version "
                f"{header.base_round}, expected kind {self.kind} from version {self.base_round}.",
                remedy=_REMEDY,
            )
        if header.base_state != self.base_state:
            raise RefusedError(
                f"{author} starts round {self.round} from another model of version "
                f"{self.base_round} than this client's.",
                remedy=_REMEDY,
            )
        if header.rows != self.rows:
            raise RefusedError(
                f"{author} contributed to round {self.round} over {header.n_rows} item rows, or "
                f"others than this client's {self.rows.n_rows}.",
                remedy=_REMEDY,
            )
        if header.key_list != self.key_list:
            raise SplitView(
                f"{author} contributed to round {self.round} for another list of keys.",
                remedy=_REMEDY,
            )
