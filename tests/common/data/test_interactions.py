"""The table of interactions: duplicates, filters and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.data import Interactions
from fedrec.errors import DataError

ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(-1, 4)), max_size=20
)


def build(rows: list[tuple[str, str, int]]) -> Interactions:
    return Interactions.from_arrays(
        [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    )


def as_rows(interactions: Interactions) -> list[tuple[str, str, int]]:
    return list(
        zip(
            interactions.user_ids.tolist(),
            interactions.item_ids.tolist(),
            interactions.times().tolist(),
            strict=True,
        )
    )


def test_counts():
    interactions = build([("a", "x", 1), ("a", "y", 2), ("b", "x", 3)])
    assert (len(interactions), interactions.n_users, interactions.n_items) == (3, 2, 2)


@settings(deadline=None)
@given(rows=ROWS, seed=st.integers(0, 99))
def test_deduplication_keeps_the_latest_whatever_the_order(rows, seed):
    latest: dict[tuple[str, str], int] = {}
    for user, item, time in rows:
        latest[user, item] = max(latest.get((user, item), -1), time)
    expected = sorted((user, item, time) for (user, item), time in latest.items())
    order = np.random.default_rng(seed).permutation(len(rows))
    assert as_rows(build(rows).take(order).deduplicated()) == expected


def test_deduplication_without_timestamps():
    interactions = Interactions.from_arrays(["10", "9", "10"], ["x", "x", "x"]).deduplicated()
    assert interactions.timestamps is None
    assert interactions.user_ids.tolist() == ["9", "10"]


def test_minimum_counts_distinct_items_and_keeps_all_rows():
    interactions = build([("a", "x", 1), ("a", "x", 2), ("b", "x", 1), ("b", "y", 1)])
    assert as_rows(interactions.with_minimum(2)) == [("b", "x", 1), ("b", "y", 1)]
    assert len(interactions.with_minimum(1)) == 4
    assert len(interactions.with_minimum(3)) == 0
    with pytest.raises(DataError, match="minimum is 0"):
        interactions.with_minimum(0)


def test_nothing_is_valid_everywhere():
    nothing = Interactions.from_arrays([], [], [])
    assert len(nothing.deduplicated()) == len(nothing.with_minimum(1)) == nothing.n_users == 0


def test_columns_are_read_only():
    interactions = build([("a", "x", 1)])
    with pytest.raises(ValueError, match="read-only"):
        interactions.user_ids[0] = "b"


@pytest.mark.parametrize(
    ("users", "items", "timestamps", "message"),
    [
        (["a"], ["x", "y"], None, "different lengths"),
        (["a"], ["x"], [1, 2], "different lengths"),
        ([""], ["x"], None, "user_ids contains an empty id"),
        (["a"], [7.0], None, "item_ids contains values of type float"),
        (["a"], [True], None, "item_ids contains values of type bool"),
        (["a"], ["x"], [-2], "timestamps contain -2"),
    ],
)
def test_bad_columns_are_refused(users, items, timestamps, message):
    with pytest.raises(DataError, match=message):
        Interactions.from_arrays(users, items, timestamps)


def test_fractional_timestamps_are_refused():
    with pytest.raises(DataError, match="float64"):
        Interactions(
            user_ids=np.array(["a"], dtype=object),
            item_ids=np.array(["x"], dtype=object),
            timestamps=np.array([1.5]),  # type: ignore[arg-type]
        )
