"""What `fedrec check` says of a client's own floor, against rows counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.cli.own_floor import HeldRows
from fedrec.data import NO_ITEM, UserSplit
from fedrec.data.interactions import user_groups
from fedrec.ids import UserId


def split(*holders: int, n_users: int = 20) -> UserSplit:
    """Users 0 .. n - 1 hold the item that n is given for."""
    train = [[item for item, n in enumerate(holders) if user < n] for user in range(n_users)]
    held_out = np.full(n_users, NO_ITEM, dtype=np.int64)
    return UserSplit(
        user_ids=tuple(UserId(f"{user:02}") for user in range(n_users)),
        train_indptr=np.cumsum([0, *map(len, train)], dtype=np.int64),
        train_items=np.array([item for items in train for item in items], dtype=np.int64),
        validation_items=held_out,
        test_items=held_out,
    )


@pytest.mark.parametrize(
    ("holders", "rows", "below", "recommended"),
    [
        # 40 interactions: 2 lie below 3, 4 more below 5, 6 more below 10.
        ((20, 8, 6, 4, 2, 0), [5, 4, 3, 1], [0, 2, 6, 20], 3),
        # 4 of 40 below 5 are a tenth, which is accepted.
        ((20, 16, 4), [3, 3, 2, 2], [0, 0, 4, 4], 5),
        ((10, 2, 2, 1), [4, 1, 1, 1], [0, 5, 5, 5], 1),
    ],
)
def test_rows_and_interactions_by_hand(holders, rows, below, recommended):
    found = HeldRows.of(split(*holders), len(holders), 1)
    costs = [found.cost(floor) for floor in (1, 3, 5, 10)]
    assert [cost.rows for cost in costs] == rows
    assert [cost.below * sum(holders) for cost in costs] == pytest.approx(below)
    assert found.recommended == recommended


def test_a_simulations_clients_each_compare_with_their_own_users():
    users = split(20, 8, 3)
    own = [
        np.bincount(users.select(group).train_items, minlength=3)
        for group in user_groups(users.user_ids, 4)
    ]
    found = HeldRows.of(users, 3, 4)
    assert found.cost(3).rows * 4 == sum(int((each >= 3).sum()) for each in own)
    assert found.cost(3).below == sum(int(each[each < 3].sum()) for each in own) / 31
    # Five users of each client hold the first item. The others have 8 and 3 holders in all.
    assert found.trained(1, 8) == 2
    assert found.trained(5, 8) == 1


def test_a_single_user_is_told_why_there_is_no_floor():
    (_, (name, seen)) = HeldRows.of(split(1, 1, n_users=1), 2, 1).table(1)
    assert name == "client.minimum_own_item_users"
    assert seen == "1 is recommended: a client of one user can't have a floor. The setting is 1"


def test_check_recommends_a_floor_and_counts_on_what_is_set(fedrec, settings_file):
    found = fedrec("check", settings_file, "--json").json
    own = found["own_floor"]
    assert (own["clients"], [each["floor"] for each in own["floors"]]) == (1, [1, 3, 5, 10])
    out = fedrec("check", settings_file).out
    assert f"{own['recommended']} is recommended" in out
    assert "rows above an own floor" in out
    # Of 24 users dealt to six clients, four could hold an item, and none of them does.
    dealt = ("check", settings_file, "--clients", 6, "--set", "federation.minimum_item_users=4")
    before = fedrec(*dealt, "--json").json
    assert before["own_floor"]["clients"] == 6
    floored = (*dealt, "--set", "client.minimum_own_item_users=5", "--json")
    assert before["price"]["expected"] is not None
    assert fedrec(*floored).json["price"]["expected"] is None


def test_nothing_is_recommended_where_noise_covers_a_row(fedrec, settings_file):
    noisy = ("--set", "privacy.mechanism=gaussian", "--set", "rounds.minimum_clients=4")
    assert fedrec("check", settings_file, *noisy, "--json").json["own_floor"] is None
