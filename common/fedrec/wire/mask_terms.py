"""The terms of a round under masks, as they follow from the plan: nobody is asked for them."""

from __future__ import annotations

from fedrec.config.schema import Plan, ProtectionSettings
from fedrec.ids import RoundId, digest
from fedrec.protection.masks import MaskTerms, Tolerance
from fedrec.wire.messages import RoundKind

__all__ = ["mask_graph_seed", "mask_terms", "tolerance_of"]


def tolerance_of(settings: ProtectionSettings) -> Tolerance:
    """Return which clients and which coordinator the plan's rounds withstand."""
    return Tolerance(
        corrupt_share=settings.corrupt_share,
        dropout_share=settings.dropout_share,
        malicious=settings.coordinator == "malicious",
    )


def mask_terms(
    plan: Plan,
    *,
    plan_fingerprint: str,
    catalogue_fingerprint: str,
    run: str,
    epoch: int,
    round_id: RoundId,
    kind: RoundKind,
    base_round: RoundId,
    base_state: bytes,
    minimum_summands: int,
    n_members: int,
) -> MaskTerms:
    """Return what all participants of a round must have been told alike.

    Args:
        base_state: digest of the model that is trained; clients with another one share no keys.
        minimum_summands: by the plan and the roster.
        n_members: of the roster.
    """
    return MaskTerms(
        federation=plan.federation.name,
        run=run,
        round=round_id,
        epoch=epoch,
        terms_digest=digest(
            "fedrec mask terms v1",
            kind,
            base_round,
            base_state,
            catalogue_fingerprint,
            plan_fingerprint,
        ),
        minimum_summands=minimum_summands,
        n_members=n_members,
        tolerance=tolerance_of(plan.protection),
    )


def mask_graph_seed(plan: Plan, run: str, round_id: RoundId) -> bytes:
    """Return the public seed of a round's ring of neighbours."""
    return digest("fedrec mask ring v1", plan.federation.seed, run, round_id)
