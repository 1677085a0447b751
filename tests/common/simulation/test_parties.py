"""Dividing users among simulated clients."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data import generate, leave_one_out, partition_users
from fedrec.errors import SettingsError
from fedrec.simulation.parties import throw_coins, user_groups


@pytest.mark.parametrize("n_parts", [1, 3, 7])
def test_groups_are_those_of_partition_users(n_parts):
    made = generate(n_users=25, n_items=40, n_clusters=2, interactions_per_user=6, seed=1)
    users = leave_one_out(made.interactions, made.catalogue)
    groups = user_groups(users.user_ids, n_parts)
    for group, part in zip(groups, partition_users(made.interactions, n_parts), strict=True):
        expected = leave_one_out(part, made.catalogue)
        found = users.select(group)
        assert found.user_ids == expected.user_ids
        assert np.array_equal(found.train_items, expected.train_items)
        assert np.array_equal(found.test_items, expected.test_items)


def test_no_clients_are_refused():
    with pytest.raises(SettingsError, match="0 clients"):
        user_groups((), 0)


def test_coins_depend_on_user_and_round_alone():
    keys = np.arange(5000, dtype=np.int64) * 7919
    coins = throw_coins(keys, seed=1, round_id=3, fraction=0.3)
    assert np.array_equal(throw_coins(keys[::-1], seed=1, round_id=3, fraction=0.3), coins[::-1])
    assert abs(coins.mean() - 0.3) < 0.03
    other = throw_coins(keys, seed=1, round_id=4, fraction=0.3)
    assert abs((coins & other).mean() - 0.09) < 0.02
    assert throw_coins(keys, seed=1, round_id=3, fraction=1.0) is None
