"""The figures of a run: what they show, and how they are drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from quality_figure import QualityPoint, quality_against

from fedrec_lab.reports.drawing import SizeBar, _laid_out, as_png, as_svg_file, drawn
from fedrec_lab.reports.figures import (
    loss_by_round,
    quality_by_activity,
    quality_by_bytes_sent,
    quality_by_round,
    share_of_clients,
    size_bars,
    spectra,
)
from fedrec_lab.reports.table_diagnostics import TableDiagnosis, TableQuality

pytestmark = pytest.mark.slow

FIGURES = [
    "loss", "quality-by-activity", "quality-by-bytes", "quality-by-round", "spectra",
    "spread-over-clients", "upload-sizes",
]  # fmt: skip


def test_every_method_and_data_set_is_named_once():
    points = [
        QualityPoint(label=label, data=data, cost=n_bytes / 1e6, ndcg=ndcg)
        for data, label, n_bytes, ndcg in (
            ("small", "one", 1_000_000, 0.1),
            ("small", "two", 2_000_000, 0.2),
            ("large", "one", 3_000_000, 0.3),
        )
    ]
    lines = {"popularity": {"small": 0.05, "large": 0.1}, "best reference": {"large": 0.4}}
    svg = quality_against("MB", points, lines)
    assert svg.startswith("<svg")
    assert svg.count(">one<") == svg.count(">two<") == 1
    assert all(svg.count(f">{name}<") == 1 for name in ("small", "large", *lines))
    assert svg == quality_against("MB", points, lines)


def test_what_was_sent_for_a_version_leaves_its_own_measuring_out(rounds):
    """Round r measures version r - 1, for which r - 1 uploads of 123,456 bytes were sent."""
    (line,) = quality_by_bytes_sent(rounds, at=10, protocol="full").series
    assert line.x == pytest.approx([0.123456, 0.246912, 0.370368, 0.493824])
    assert line.y == pytest.approx([0.04, 0.06, 0.08, 0.1])


def test_the_loss_is_that_of_training_rounds(rounds):
    (line,) = loss_by_round(rounds).series
    assert line.x == (2.0, 3.0, 4.0)
    assert line.y == pytest.approx([0.35, 0.7 / 3, 0.175])


def test_users_of_one_activity_stay_in_one_group():
    activity = np.array([1, 1, 1, 2, 5, 9])
    gains = {"model": np.array([0.0, 0.3, 0.6, 1.0, 0.5, 0.1])}
    plot = quality_by_activity(activity, gains, at=10, protocol="full", n_groups=2)
    # The lower median is 1: who has more is in the other half.
    assert plot.labels == ("1\n3 users", "2 to 9\n3 users")
    assert plot.series[0].y == pytest.approx([0.3, 1.6 / 3])


def test_every_user_alike_is_one_group():
    plot = quality_by_activity(
        np.array([4, 4]), {"model": np.array([0.2, 0.4])}, at=5, protocol="full"
    )
    assert plot.labels == ("4\n2 users",)
    assert plot.series[0].y == pytest.approx([0.3])


def test_clients_are_in_the_order_of_their_means():
    clients = [np.array([0, 1]), np.array([2]), np.array([3])]
    plot = share_of_clients(
        clients, {"model": np.array([0.2, 0.4, 0.1, 0.9])}, at=10, protocol="full"
    )
    (line,) = plot.series
    assert line.x == pytest.approx([0.1, 0.3, 0.9])
    assert line.y == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_spectra_are_over_their_largest():
    quality = TableQuality(abundance=1.0, n95=2, n99=2, spectrum=(4.0, 2.0, 0.0))
    found = TableDiagnosis(table="items", n_items=9, dim=3, n_users=0, quality=quality)
    (line,) = spectra([found]).series
    assert (line.label, line.x, line.y) == ("items, shared", (1.0, 2.0), (1.0, 0.5))


def spectrum(n_users: int) -> TableDiagnosis:
    quality = TableQuality(abundance=1.0, n95=2, n99=2, spectrum=(4.0, 2.0, 0.001))
    return TableDiagnosis(table="items", n_items=9, dim=3, n_users=n_users, quality=quality)


SCORES = {"the model": np.linspace(0, 1, 20), "popularity": np.ones(20)}
PLOTS = {
    "quality-by-round": lambda rounds: quality_by_round(
        rounds, at=10, protocol="sampled (!)", popularity=rounds[-1].validation, best_version=3
    ),
    "quality-by-bytes": lambda rounds: quality_by_bytes_sent(rounds, at=10, protocol="sampled (!)"),
    "loss": loss_by_round,
    "upload-sizes": lambda _: size_bars(
        [
            SizeBar(label="dense table, plain float32", n_bytes=5_300_000_000),
            SizeBar(label="this run: colr, bfv default", n_bytes=130_000, chosen=True),
            SizeBar(label="no table", n_bytes=0),
        ]
    ),
    "quality-by-activity": lambda _: quality_by_activity(
        np.arange(20), SCORES, at=10, protocol="full"
    ),
    "spread-over-clients": lambda _: share_of_clients(
        [np.array([user]) for user in range(20)], SCORES, at=10, protocol="full"
    ),
    "spectra": lambda _: spectra([spectrum(0), spectrum(50)]),
}


def test_these_are_all_figures_of_a_run(rounds):
    assert sorted(PLOTS) == FIGURES


@pytest.mark.parametrize("name", PLOTS)
def test_what_is_written_crosses_nothing(rounds, name):
    """Nothing that is drawn in the axes can cross a legend, whatever the numbers are."""
    canvas = drawn(*_laid_out(PLOTS[name](rounds)))
    canvas.canvas.draw()
    (axes,) = canvas.axes
    legend = axes.get_legend()
    assert (legend is None) is (name == "upload-sizes")
    written = [text.get_window_extent() for text in axes.texts]
    if legend is not None:
        written.append(legend.get_window_extent())
        assert not written[-1].overlaps(axes.get_window_extent())
    for place in written:
        assert canvas.bbox.fully_contains(place.x0, place.y0)
        assert canvas.bbox.fully_contains(place.x1, place.y1)
    for axis in (axes.xaxis, axes.yaxis):
        shown = [label.get_window_extent() for label in labels(axis)]
        assert not [pair for pair in pairwise(shown) if pair[0].overlaps(pair[1])]


def labels(axis) -> list:
    """Return the texts of the numbers that are seen on an axis, minor ones too."""
    least, most = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    seen = [tick.label1 for tick in ticks if least <= tick.get_loc() <= most]
    return [label for label in seen if label.get_text()]


@pytest.mark.parametrize("name", ["quality-by-round", "loss"])
@pytest.mark.parametrize("n_rounds", [2, 3, 5])
def test_no_number_stands_between_two_rounds(rounds, name, n_rounds):
    canvas = drawn(*_laid_out(PLOTS[name](rounds[:n_rounds])))
    canvas.canvas.draw()
    found = [label.get_text() for label in labels(canvas.axes[0].xaxis)]
    assert found and all(text.isdecimal() for text in found)


@pytest.mark.parametrize("n_bytes", [6, 60_000, 123_456, 40_000_000_000])
def test_megabytes_are_written_in_full(rounds, n_bytes):
    sent = [replace(report, vector_bytes=n_bytes) for report in rounds]
    canvas = drawn(*_laid_out(PLOTS["quality-by-bytes"](sent)))
    canvas.canvas.draw()
    found = [label.get_text() for label in labels(canvas.axes[0].xaxis)]
    assert len(found) >= 2
    for text in found:
        assert re.fullmatch(r"\d{1,3}(,\d{3})*|0\.\d+", text)


def test_files_stand_alone(rounds):
    plot = PLOTS["quality-by-round"](rounds)
    text = as_svg_file(plot)
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "currentColor" not in text
    assert as_png(plot).startswith(b"\x89PNG\r\n\x1a\n")
    assert as_png(plot) == as_png(plot)
