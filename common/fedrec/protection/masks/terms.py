"""A round under masks: its five steps, and what all participants must have been told alike."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.errors import RevealRefused, SettingsError
from fedrec.ids import RoundId, digest
from fedrec.protection.masks.graph import (
    FEWEST_CLIENTS,
    GraphParameters,
    parameters_for,
)
from fedrec.protection.round_protocol import COLLECTING, RoundTerms, Step, Steps
from fedrec.protection.settings import Tolerance

KEYS, SHARES, VECTOR, SIGNATURE, ANSWER = "keys", "shares", "vector", "signature", "answer"

STEPS = Steps(
    (
        Step(name=KEYS, phase=COLLECTING),
        Step(name=SHARES, phase="sharing", refusal="mask_keys_refused"),
        Step(name=VECTOR, phase="masking", brings_vector=True, refusal="mask_inbox_refused"),
        Step(name=SIGNATURE, phase="signing", refusal="survivors_refused"),
        # With enough shares the coordinator can read the sum, also where the round is given up.
        Step(name=ANSWER, phase="unmasking", opens_sum=True, refusal="shares_refused"),
    )
)


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
        n_members: members of the roster. The corrupt share is of these and not of those that take
        part: all
            corrupt ones may be in one list.
        tolerance: decides the graph.
    """

    federation: str
    run: str
    round: RoundId
    epoch: int
    terms_digest: bytes
    minimum_summands: int
    n_members: int
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

    @classmethod
    def of(cls, terms: RoundTerms, tolerance: Tolerance) -> MaskTerms:
        """Return the terms of a round under masks.

        Args:
            tolerance: decides the graph.
        """
        return cls(
            federation=terms.federation,
            run=terms.run,
            round=terms.round,
            epoch=terms.roster.epoch,
            terms_digest=digest(
                "fedrec mask terms v1",
                terms.kind,
                terms.base_round,
                terms.base_state,
                terms.catalogue_fingerprint,
                terms.plan_fingerprint,
            ),
            minimum_summands=terms.minimum_summands,
            n_members=len(terms.roster.members),
            tolerance=tolerance,
        )

    def graph_of(self, n_listed: int) -> GraphParameters:
        """Return the graph of a list of so many keys.

        Raises:
            RevealRefused: when the list is too short.
            SettingsError: when no graph of so many clients withstands what the terms say.
        """
        fewest = self.tolerance.fewest_listed(self.minimum_summands, self.n_members)
        if n_listed < fewest:
            corrupt = self.tolerance.corrupt_among(self.n_members)
            raise RevealRefused(
                f"{n_listed} clients take part, expected at least {fewest} of {self.n_members} "
                f"members: {self.minimum_summands} for a sum, and {corrupt} that may be corrupt "
                "(protection.corrupt_share).",
                remedy="The round needs more clients: raise rounds.cells_per_round, or wait until "
                "more are there.",
            )
        return parameters_for(n_listed, self.tolerance, n_members=self.n_members)

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
            self.n_members,
            tolerance.corrupt_share.hex(),
            tolerance.dropout_share.hex(),
            int(tolerance.malicious),
        )


def ring_seed(terms: RoundTerms) -> bytes:
    """Return the public seed of a round's ring of neighbours."""
    return digest("fedrec mask ring v1", terms.seed, terms.run, terms.round)
