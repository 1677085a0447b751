"""The figures that every run has, deployed or simulated: they follow from its rounds alone."""

from __future__ import annotations

from collections.abc import Sequence

from fedrec.config.schema import Plan
from fedrec.evaluation.metrics import Rates
from fedrec.planning.cautions import marked
from fedrec_lab.reports.figures import (
    loss_by_round,
    quality_by_bytes_sent,
    quality_by_round,
    size_bars,
)
from fedrec_lab.reports.html import Figure
from fedrec_lab.reports.message_sizes import message_sizes
from fedrec_lab.reports.round_report import RoundReport

__all__ = ["round_figures"]


def round_figures(
    plan: Plan,
    rounds: Sequence[RoundReport],
    *,
    n_items: int,
    popularity: Rates | None,
    best_version: int | None,
    caution: str | None,
) -> tuple[Figure, ...]:
    """Return quality by round and by bytes sent, the loss, and sizes of uploads.

    What was never measured has no figure.

    Args:
        n_items: size of the catalogue, for the sizes of other ways to upload.
        popularity: the reference's rates on validation.
        best_version: the version that was chosen.
        caution: what has to stand beside the plan's protocol; None where nobody knows.
    """
    at, protocol = plan.evaluation.at, marked(plan.evaluation.protocol, caution)
    quality = quality_by_round(
        rounds, at=at, protocol=protocol, popularity=popularity, best_version=best_version
    )
    spent = quality_by_bytes_sent(rounds, at=at, protocol=protocol)
    loss = loss_by_round(rounds)
    lines = (
        ("quality-by-round", quality, "Quality on validation by version of the model."),
        ("quality-by-bytes", spent, "Quality on validation by what a client had sent until then."),
        ("loss", loss, "Training loss by round."),
    )
    shown = [
        Figure(name=name, plot=plot, caption=caption)
        for name, plot, caption in lines
        if any(series.x for series in plot.series)
    ]
    sizes = Figure(
        name="upload-sizes",
        plot=size_bars(message_sizes(plan, n_items)),
        caption="One client's upload in one round; orange: these settings.",
    )
    return (*shown, sizes)
