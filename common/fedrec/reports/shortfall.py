"""The sentence that a run owes its reader when it is worth less than counting."""

from __future__ import annotations

from collections.abc import Sequence

from fedrec.config.schema import Plan
from fedrec.evaluation.metrics import MetricSums, Rates
from fedrec.reports.round_report import RoundReport

__all__ = ["shortfall"]

_REMEDIES = {
    "fedals": "algorithm.alpha, algorithm.regularisation and algorithm.frequency_exponent",
    "ease": "algorithm.regularisation and federation.minimum_item_users",
}
_OTHERWISE = "rounds.total and the rates in the section algorithm"


def shortfall(
    plan: Plan,
    validation: Rates | None,
    references: MetricSums | None,
    rounds: Sequence[RoundReport] = (),
) -> str:
    """Return what to say of a model that popularity equals on validation; else nothing.

    Args:
        validation: of the version that was chosen; None where nothing was measured.
        references: the closing evaluation; None where the run did not come to it.
        rounds: of the run, for what was clipped.
    """
    popularity = None if references is None else references.rates("popularity", "validation")
    if validation is None or popularity is None or validation.ndcg > popularity.ndcg:
        return ""
    at, name = plan.evaluation.at, plan.algorithm.name
    said = (
        f"no better than popularity on validation (NDCG@{at} {validation.ndcg:.4f}, popularity's "
        f"{popularity.ndcg:.4f}). These settings do not suit the data: change "
        f"{_REMEDIES.get(name, _OTHERWISE)}; fedrec tune tries values"
    )
    clipped = max((report.clipped_users for report in rounds), default=0)
    if clipped:
        said += (
            f". In one round values of {clipped} users were clipped to {plan.update.clip:g}: "
            "raise update.clip"
        )
    return f"{said}."
