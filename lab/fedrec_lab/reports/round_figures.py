"""What a round took: its figures, and the sizes of its messages."""

from __future__ import annotations

from collections.abc import Sequence

from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import Rates
from fedrec.plan.cautions import marked
from fedrec.plan.layout import dense_values, protection_of
from fedrec.plan.schema import Plan
from fedrec.protection import ProtectionSettings
from fedrec.updates.settings import UpdateSettings
from fedrec_lab.reports.figures import (
    loss_by_round,
    quality_by_bytes_sent,
    quality_by_round,
    size_bars,
)
from fedrec_lab.reports.html import Figure
from fedrec_lab.reports.plot_data import SizeBar
from fedrec_lab.reports.round_report import RoundReport


def message_sizes(plan: Plan, n_items: int) -> tuple[SizeBar, ...]:
    """Return the plan's own upload first, then others'; sets that cannot work are left out."""
    own = protection_of(plan, n_items).chosen
    paper = ProtectionSettings(name="ckks", preset="paper")
    plain = ProtectionSettings(name="none")
    dense = UpdateSettings(structure="dense", fraction_bits=plan.update.fraction_bits)
    others: list[tuple[str, dict[str, object]]] = [
        ("the same update, plain integers", {"protection": plain}),
        ("the same update, the paper's CKKS set", {"protection": paper}),
        ("dense table, the paper's CKKS set", {"protection": paper, "update": dense}),
    ]
    bars = [
        SizeBar(
            label=f"this run: {plan.update.structure}, {own.protection} {own.preset}",
            n_bytes=own.message_bytes,
            chosen=True,
        ),
        SizeBar(label="dense table, plain float32", n_bytes=4 * dense_values(plan, n_items)),
    ]
    for label, changes in others:
        try:
            chosen = protection_of(plan.model_copy(update=changes), n_items).chosen
        except SettingsError:
            continue
        bars.append(SizeBar(label=label, n_bytes=chosen.message_bytes))
    return tuple(bars)


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
