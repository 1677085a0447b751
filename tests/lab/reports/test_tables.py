"""Result tables and the deviation over seeds."""

import numpy as np
import pytest

from fedrec.evaluation.metrics import METRIC_NAMES, MetricSums, Rates
from fedrec_lab.reports.result_row import ResultRow, plain_table, reference_rows


def rates(ndcg):
    return Rates(users=943, hr=0.1, recall=0.1, ndcg=ndcg, mrr=0.05)


@pytest.fixture
def rows():
    return (
        ResultRow(label="fedmf", samples=(rates(0.06), rates(0.07), rates(0.08)), note="chosen"),
        ResultRow(label="[bold] a|b", samples=(rates(0.0389),)),
    )


def test_mean_and_deviation_by_hand(rows):
    assert rows[0].mean("ndcg") == pytest.approx(0.07)
    assert rows[0].deviation("ndcg") == pytest.approx(0.01)
    assert rows[1].deviation("ndcg") is None


def test_plain(rows):
    lines = plain_table(rows, at=10).splitlines()
    assert lines[0].split() == [
        "method", "HR@10", "Recall@10", "NDCG@10", "MRR@10", "users", "seeds",
    ]  # fmt: skip
    assert "0.0700 ± 0.0100" in lines[2]
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[4] == "fedmf: chosen"


def test_reference_rows_are_what_was_measured():
    sums = np.zeros(len(METRIC_NAMES), dtype=np.int64)
    for scorer in ("popularity", "know_nothing"):
        sums[METRIC_NAMES.index(f"{scorer}.test.users")] = 4
        sums[METRIC_NAMES.index(f"{scorer}.test.hits")] = 1
    found = reference_rows(MetricSums(sums))
    assert [row.label for row in found] == [
        "popularity (protected counts)",
        "know-nothing counter",
    ]
    assert found[0].mean("hr") == 0.25
