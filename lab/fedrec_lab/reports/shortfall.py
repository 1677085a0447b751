"""The sentence that a run owes its reader when it is worth less than counting."""

from __future__ import annotations

from collections.abc import Sequence

from fedrec.evaluation.metrics import MetricSums, Rates, Scorer
from fedrec.plan.algorithm import about_algorithm
from fedrec.plan.schema import Plan
from fedrec_lab.reports.round_report import RoundReport

_REFERENCES: tuple[tuple[Scorer, str], ...] = (
    ("popularity", "popularity"),
    ("untrained", "the untrained model"),
)


def shortfall(
    plan: Plan,
    validation: Rates | None,
    references: MetricSums | None,
    rounds: Sequence[RoundReport] = (),
) -> str:
    """Return what to say of a model that popularity equals on validation; else nothing.

    The untrained model counts as popularity does: where it is the best version, none learned.

    Args:
        validation: of the version that was chosen; None where nothing was measured.
        references: the closing evaluation; None where the run did not come to it.
        rounds: of the run, for what was clipped.
    """
    if validation is None or references is None:
        return ""
    equals = [
        f"{name} ({rates.ndcg:.4f})"
        for scorer, name in _REFERENCES
        if (rates := references.rates(scorer, "validation")) and validation.ndcg <= rates.ndcg
    ]
    if not equals:
        return ""
    said = (
        f"with NDCG@{plan.evaluation.at} {validation.ndcg:.4f} on validation no better than "
        f"{' and '.join(equals)}. These settings do not suit the data: change "
        f"{about_algorithm(plan).shortfall}; fedrec tune tries values"
    )
    clipped = max((report.clipped_users for report in rounds), default=0)
    if clipped:
        said += (
            f". In one round values of {clipped} users were clipped to {plan.update.clip:g}: "
            "raise update.clip"
        )
    return f"{said}."
