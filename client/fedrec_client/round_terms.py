"""The terms of a round: what everybody who contributes to it must have been told alike."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.errors import RefusedError
from fedrec.ids import ClientId, RoundId
from fedrec.wire.committee import COMMITTEE, ROUNDS_APART, committee_digest, is_drawn
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
        committee: who may open the round; empty without encryption.
        rows: the item rows that the round's vectors cover.
        seed: from what the committee must have been drawn.
        revealer: who alone opens the federation's rounds; None where a committee is drawn.
        key_list: under masks the digest of the list of keys, which stands for a committee: its
            members open the round together.
    """

    run: str
    round: RoundId
    kind: RoundKind
    base_round: RoundId
    base_state: bytes
    committee: tuple[ClientId, ...]
    rows: StatedRows
    seed: bytes
    revealer: ClientId | None = None
    key_list: bytes = b""

    @property
    def committee_digest(self) -> bytes:
        """What contributors sign of the committee."""
        return self.key_list or committee_digest(self.run, self.round, self.committee)

    def check_committee(self, contributors: tuple[ClientId, ...] = ()) -> None:
        """Check that the committee is the one that the draw gives.

        Args:
            contributors: whom it was drawn from, among others.

        Raises:
            RefusedError: it has another size, or others rank before it, or it is not the revealer.
        """
        if self.revealer is not None:
            if self.committee != (self.revealer,):
                raise RefusedError(
                    f"Round {self.round} is to be opened by others than the key authority.",
                    remedy=_REMEDY,
                )
            return
        if len(set(self.committee)) != COMMITTEE:
            raise RefusedError(
                f"Round {self.round} has a committee of {len(set(self.committee))} clients, "
                f"expected {COMMITTEE}.",
                remedy=_REMEDY,
            )
        if self.round - self.base_round > ROUNDS_APART:
            raise RefusedError(
                f"Round {self.round} starts from version {self.base_round}; more than "
                f"{ROUNDS_APART} rounds in a row were abandoned, or their numbers were chosen.",
                remedy="Start a new run, when the rounds are known to have failed honestly.",
            )
        if not is_drawn(
            self.committee, contributors, seed=self.seed, run=self.run, round_id=self.round
        ):
            raise RefusedError(
                f"The committee of round {self.round} is not the one that was drawn.",
                remedy=_REMEDY,
            )

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
        if header.committee != self.committee_digest:
            raise RefusedError(
                f"{author} contributed to round {self.round} for another committee.",
                remedy=_REMEDY,
            )
