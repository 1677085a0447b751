"""Metrics, by hand."""

import hashlib

import numpy as np
import pytest

from fedrec.evaluation.metrics import METRIC_NAMES, MetricSums, rank_values
from fedrec.wire.fields import PROTOCOL_VERSION

ONE = 1 << 20


def contribution(rank, at=10):
    return rank_values(np.array([rank]), at)[0].tolist()


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (0.0, [1, 1, ONE, ONE]),
        # 1 / log2(3).
        (1.0, [1, 1, round(0.6309297535714575 * ONE), ONE // 2]),
        (9.0, [1, 1, round(0.2890648263178879 * ONE), round(ONE / 10)]),
        (10.0, [1, 0, 0, 0]),
        # Tied with one other item: half a place, and log2(2.5) = 1.3219281.
        (0.5, [1, 1, round(0.7564707973660302 * ONE), round(ONE / 1.5)]),
        # No held-out item.
        (-1.0, [0, 0, 0, 0]),
    ],
)
def test_what_a_place_is_worth(rank, expected):
    assert contribution(rank) == expected


def test_the_last_place_of_a_list():
    assert contribution(10.0, at=11)[1] == contribution(9.5)[1] == 1


def test_rates_are_means_over_users_with_a_held_out_item():
    sums = np.zeros(len(METRIC_NAMES), dtype=np.int64)
    first = METRIC_NAMES.index("model.test.users")
    sums[first : first + 4] = rank_values(np.array([0.0, 1.0, 50.0, -1.0]), 10).sum(0)
    rates = MetricSums(sums).rates("model", "test")
    assert rates.users == 3
    assert rates.hr == rates.recall == pytest.approx(2 / 3)
    assert rates.ndcg == pytest.approx((1 + 0.63092975) / 3, abs=1e-6)
    assert rates.mrr == pytest.approx(0.5, abs=1e-6)
    assert MetricSums(sums).rates("model", "validation") is None
    assert MetricSums(sums).loss is None


def test_the_sums_of_a_metrics_segment_belong_to_a_version_of_the_protocol():
    # A peer of another release would read one sum as another. Who adds or moves a sum counts up the
    # major number of PROTOCOL_VERSION in fedrec/wire/fields.py, and writes its row here.
    known = {"8": "6961bea1"}
    digest = hashlib.sha256("\n".join(METRIC_NAMES).encode()).hexdigest()[:8]
    assert known.get(PROTOCOL_VERSION.split(".")[0]) == digest
