"""What all participants of a round must have been told alike."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.errors import SettingsError
from fedrec.ids import RoundId
from fedrec.protection.masks.parameters import FEWEST_CLIENTS, Tolerance

__all__ = ["MaskTerms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTerms:
    """Names one round, and the conditions on which its sum may be unmasked.

    Attributes:
        federation: the federation's name.
        run: the run's name.
        round: the round's number; keys are made for one round only.
        epoch: the roster's epoch.
        terms_digest: 32 bytes that stand for everything else a client was told of the round:
            kind, plan, catalogue, model. Clients that were told different things share no keys.
        minimum_summands: the sum has at least so many summands, never fewer than 3.
        tolerance: decides the graph.
    """

    federation: str
    run: str
    round: RoundId
    epoch: int
    terms_digest: bytes
    minimum_summands: int
    tolerance: Tolerance

    def __post_init__(self) -> None:
        if len(self.terms_digest) != 32:
            raise SettingsError(f"terms_digest has {len(self.terms_digest)} bytes, not 32.")
        if self.minimum_summands < FEWEST_CLIENTS:
            raise SettingsError(
                f"minimum_summands is {self.minimum_summands}, but a sum of fewer than "
                f"{FEWEST_CLIENTS} updates hides none of them.",
                remedy=f"Set rounds.minimum_summands = {FEWEST_CLIENTS} or more.",
            )

    def parts(self) -> tuple[str | int | bytes, ...]:
        """Return what signatures and key derivations of this round cover first."""
        tolerance = self.tolerance
        return (
            self.federation,
            self.run,
            self.round,
            self.epoch,
            self.terms_digest,
            self.minimum_summands,
            tolerance.corrupt_share.hex(),
            tolerance.dropout_share.hex(),
            int(tolerance.malicious),
        )
