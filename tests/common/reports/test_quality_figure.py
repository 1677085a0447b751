"""The figure of quality against bytes."""

from __future__ import annotations

from fedrec.reports.figures import QualityPoint, quality_against_bytes


def test_every_method_and_data_set_is_named_once() -> None:
    points = [
        QualityPoint(label=label, data=data, n_bytes=n_bytes, ndcg=ndcg)
        for data, label, n_bytes, ndcg in (
            ("small", "one", 1_000_000, 0.1),
            ("small", "two", 2_000_000, 0.2),
            ("large", "one", 3_000_000, 0.3),
        )
    ]
    svg = quality_against_bytes(points, {"small": 0.05, "large": 0.1})
    assert svg.startswith("<svg")
    assert svg.count(">one<") == svg.count(">two<") == 1
    assert "small, dashed: popularity" in svg and "large, dashed: popularity" in svg
    assert svg == quality_against_bytes(points, {"small": 0.05, "large": 0.1})
