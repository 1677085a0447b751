"""The figures of a run, and the sizes of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import SettingsError
from fedrec.evaluation.lists import activity_groups
from fedrec.evaluation.metrics import Rates, Split
from fedrec.plan.cautions import marked
from fedrec.plan.layout import dense_values, protection_of
from fedrec.plan.schema import Plan
from fedrec.protection import ProtectionSettings
from fedrec.updates.update import UpdateSettings
from fedrec_lab.reports.drawing import COLOURS, BarPlot, GroupPlot, Level, LinePlot, Series, SizeBar
from fedrec_lab.reports.html import Figure
from fedrec_lab.reports.round_report import RoundReport

if TYPE_CHECKING:
    from fedrec_lab.audit.indices import RoundLeak
    from fedrec_lab.reports.table_diagnostics import TableDiagnosis

_ACTIVITY_GROUPS = 5
_FEW = 50
"""The maximum number of clients that are drawn as points. More are drawn as a line."""


def quality_by_round(
    rounds: Sequence[RoundReport],
    *,
    at: int,
    protocol: str,
    split: Split = "validation",
    popularity: Rates | None = None,
    best_version: int | None = None,
) -> LinePlot:
    """Return HR and NDCG of every version of the model. Dashed lines show popularity.

    Args:
        rounds: the rounds. Each measured the version before it.
        protocol: the evaluation protocol, as `marked` writes it.
        popularity: the reference's rates on the same split.
        best_version: the version chosen on validation.
    """
    measured = _measured(rounds, split)
    versions = tuple(float(report.round - 1) for report, _ in measured)
    names = ("hr", "ndcg")
    return LinePlot(
        series=tuple(
            Series(
                label=f"{name.upper()}@{at}",
                x=versions,
                y=tuple(getattr(rates, name) for _, rates in measured),
                colour=colour,
            )
            for colour, name in enumerate(names)
        ),
        levels=()
        if popularity is None
        else tuple(
            Level(
                label=f"{name.upper()}@{at} of popularity",
                y=getattr(popularity, name),
                colour=colour,
            )
            for colour, name in enumerate(names)
        ),
        mark=best_version,
        mark_label="chosen on validation",
        x_label="version of the model (round)",
        x_is_whole=True,
        y_label=f"{split}, {protocol}, mean over users",
    )


def quality_by_bytes_sent(
    rounds: Sequence[RoundReport], *, at: int, protocol: str, split: Split = "validation"
) -> LinePlot:
    """Return NDCG of every version by the bytes that a client had sent until then.

    Args:
        protocol: the evaluation protocol, as `marked` writes it.
    """
    sent = dict(
        zip(
            (report.round for report in rounds),
            accumulate(report.vector_bytes for report in rounds),
            strict=True,
        )
    )
    # A round measures the version before it, so its own upload does not count yet.
    found = [
        ((sent[report.round] - report.vector_bytes) / 1e6, rates.ndcg)
        for report, rates in _measured(rounds, split)
    ]
    places = [(megabytes, ndcg) for megabytes, ndcg in found if megabytes > 0]
    return LinePlot(
        series=(
            Series(
                label=f"NDCG@{at}",
                x=tuple(megabytes for megabytes, _ in places),
                y=tuple(ndcg for _, ndcg in places),
                colour=1,
            ),
        ),
        x_label="MB that a client has sent (logarithmic)",
        y_label=f"{split}, {protocol}, mean over users",
        x_is_log=True,
    )


def loss_by_round(rounds: Sequence[RoundReport]) -> LinePlot:
    """Return the mean training loss of every round with training."""
    trained = [report for report in rounds if report.loss is not None]
    return LinePlot(
        series=(
            Series(
                label="loss",
                x=tuple(float(report.round) for report in trained),
                y=tuple(report.loss or 0.0 for report in trained),
            ),
        ),
        x_label="round",
        x_is_whole=True,
        y_label="training loss, mean over users",
    )


def quality_by_activity(
    activity: NDArray[np.int64],
    gains: Mapping[str, NDArray[np.float64]],
    *,
    at: int,
    protocol: str,
    n_groups: int = _ACTIVITY_GROUPS,
) -> GroupPlot:
    """Return each scorer's NDCG in groups of equally many users, by their interactions.

    Args:
        activity: training interactions, int64 (n_users,). Users with the same number are in one
            group.
        gains: every user's NDCG under each scorer, float64 (n_users,).
        protocol: the evaluation protocol, as `marked` writes it.
    """
    groups = activity_groups(activity, n_groups)
    members = [inside for _, inside in groups]
    labels = [f"{span}\n{int(inside.sum())} users" for span, inside in groups]
    return GroupPlot(
        labels=tuple(labels),
        series=tuple(
            Series(
                label=f"NDCG@{at} of {name}",
                y=tuple(float(values[inside].mean()) for inside in members),
                colour=colour,
            )
            for colour, (name, values) in enumerate(gains.items())
        ),
        x_label="a user's training interactions",
        y_label=f"test, {protocol}, mean over users",
    )


def share_of_clients(
    clients: Sequence[NDArray[np.int64]],
    gains: Mapping[str, NDArray[np.float64]],
    *,
    at: int,
    protocol: str,
) -> LinePlot:
    """Return the cumulative share of clients by quality, for each scorer.

    Args:
        clients: the users of each client, by position.
        gains: every user's NDCG under each scorer, float64 (n_users,).
        protocol: the evaluation protocol, as `marked` writes it.
    """
    share = tuple((place + 1) / len(clients) for place in range(len(clients)))
    return LinePlot(
        series=tuple(
            Series(
                label=name,
                x=tuple(sorted(float(values[users].mean()) for users in clients)),
                y=share,
                colour=colour,
                markers=len(clients) <= _FEW,
                steps=len(clients) > _FEW,
            )
            for colour, (name, values) in enumerate(gains.items())
        ),
        x_label=f"NDCG@{at} of a client's users on test, {protocol}",
        y_label="share of clients at or below",
        y_top=1.05,
    )


def spectra(diagnoses: Iterable[TableDiagnosis]) -> LinePlot:
    """Return the singular values of item tables, divided by the largest value of the table."""
    series = []
    for colour, found in enumerate(diagnoses):
        whose = f"median of {found.n_users} users" if found.n_users else "shared"
        largest = max(found.quality.spectrum, default=0.0)
        values = [value / largest for value in found.quality.spectrum if value > 0.0]
        series.append(
            Series(
                label=f"{found.table}, {whose}",
                x=tuple(float(place) for place in range(1, len(values) + 1)),
                y=tuple(values),
                colour=colour % len(COLOURS),
                markers=True,
            )
        )
    return LinePlot(
        series=tuple(series),
        x_label="singular value, from the largest on",
        x_is_whole=True,
        y_label="over the largest (logarithmic)",
        y_is_log=True,
    )


def size_bars(bars: Sequence[SizeBar]) -> BarPlot:
    """Return bytes per client and round as horizontal bars on a logarithmic scale."""
    return BarPlot(bars=tuple(bars))


def leak_by_round(rounds: Sequence[RoundLeak], *, chance: float) -> LinePlot:
    """Return how well histories are guessed from indices, by the number of observed rounds.

    Args:
        chance: precision of a random guess, drawn as a dashed line.
    """
    watched = tuple(float(row.rounds) for row in rounds)
    return LinePlot(
        series=tuple(
            Series(
                label=name,
                x=watched,
                y=tuple(getattr(row, name) for row in rounds),
                colour=colour,
                markers=True,
            )
            for colour, name in enumerate(("precision", "recall"))
        ),
        levels=(Level(label="guess at random", y=chance, colour=2),),
        x_label="rounds in which a user's indices were seen",
        y_label="of a user's history, mean",
        x_ticks=watched,
        y_top=1.0,
    )


def averaged(plots: Sequence[LinePlot]) -> LinePlot:
    """Return the first of several plots of the same kind, with the mean of all in each series.

    A series ends where the shortest one ends.
    """
    if len(plots) == 1:
        return plots[0]
    series = []
    for first in plots[0].series:
        same = [own for plot in plots for own in plot.series if own.label == first.label]
        x, y = (
            tuple(
                fmean(values) for values in zip(*(getattr(own, axis) for own in same), strict=False)
            )
            for axis in ("x", "y")
        )
        series.append(replace(first, x=x, y=y))
    return replace(plots[0], series=tuple(series))


def overlaid(plots: Mapping[str, LinePlot], label: str) -> LinePlot:
    """Return one series of several plots of the same kind in one plot.

    Args:
        plots: the plots, by the labels that their series get.
        label: the series' label in each of them.
    """
    series = [
        replace(series, label=name, colour=place % len(COLOURS))
        for place, (name, plot) in enumerate(plots.items())
        for series in plot.series
        if series.label == label and series.x
    ]
    first = next(iter(plots.values()))
    return replace(
        first,
        series=tuple(series),
        levels=(),
        mark=None,
        y_label=f"{label} on {first.y_label}" if "mean" in first.y_label else first.y_label,
    )


def _measured(rounds: Sequence[RoundReport], split: Split) -> list[tuple[RoundReport, Rates]]:
    return [
        (report, rates)
        for report in rounds
        if (rates := report.validation if split == "validation" else report.test) is not None
    ]


def message_sizes(plan: Plan, n_items: int) -> tuple[SizeBar, ...]:
    """Return the size of the plan's own upload, then of other possible kinds."""
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
    """Return figures of quality by round and by bytes sent, of the loss, and of upload sizes.

    Figures without measurements are left out.

    Args:
        n_items: size of the catalogue, to compute the sizes of other kinds of updates.
        popularity: the reference's rates on validation.
        best_version: the version chosen on validation.
        caution: a warning about the plan's protocol, or None if it is unknown.
    """
    at, protocol = plan.evaluation.at, marked(plan.evaluation.protocol, caution)
    quality = quality_by_round(
        rounds, at=at, protocol=protocol, popularity=popularity, best_version=best_version
    )
    spent = quality_by_bytes_sent(rounds, at=at, protocol=protocol)
    loss = loss_by_round(rounds)
    lines = (
        ("quality-by-round", quality, "Quality on validation by version of the model."),
        ("quality-by-bytes", spent, "Quality on validation by the bytes sent until then."),
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
        caption="One client's upload in one round. Orange: these settings.",
    )
    return (*shown, sizes)
