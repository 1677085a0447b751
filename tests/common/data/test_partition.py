"""Users dealt out to silos."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data import Interactions, partition_users
from fedrec.errors import DataError


@pytest.fixture
def interactions():
    users = [f"u{index % 11}" for index in range(50)]
    items = [f"i{index % 7}" for index in range(50)]
    return Interactions.from_arrays(users, items, range(50))


def users_of(part: Interactions) -> set[str]:
    return set(part.user_ids.tolist())


def test_each_user_is_in_one_part_with_all_rows(interactions):
    parts = partition_users(interactions, 3)
    assert sorted(part.n_users for part in parts) == [3, 4, 4]
    assert sum(map(len, parts)) == 50
    assert set().union(*map(users_of, parts)) == users_of(interactions)


def test_the_order_of_rows_does_not_matter(interactions):
    shuffled = interactions.take(np.random.default_rng(1).permutation(50))
    for part, other in zip(
        partition_users(interactions, 3), partition_users(shuffled, 3), strict=True
    ):
        assert part.user_ids.tolist() == other.user_ids.tolist()
        assert part.item_ids.tolist() == other.item_ids.tolist()
        assert part.times().tolist() == other.times().tolist()


def test_the_seed_matters(interactions):
    drawn = {
        tuple(frozenset(users_of(part)) for part in partition_users(interactions, 2, seed))
        for seed in range(5)
    }
    assert len(drawn) > 1


def test_more_parts_than_users(interactions):
    parts = partition_users(interactions, 13)
    assert [part.n_users for part in parts] == [1] * 11 + [0, 0]


def test_no_parts_are_refused(interactions):
    with pytest.raises(DataError, match="0 parts"):
        partition_users(interactions, 0)
