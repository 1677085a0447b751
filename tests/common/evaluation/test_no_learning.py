"""The closed formula: its limits by hand, and the published figures of DESIGN's specifications."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrec.data.splits import UserSplit
from fedrec.evaluation.chance import no_learning_rates
from fedrec.ids import UserId


def two_users(n_items: int) -> UserSplit:
    """Each has one training item, one validation and one test item."""
    return UserSplit(
        user_ids=(UserId("a"), UserId("b")),
        train_indptr=np.array([0, 1, 2]),
        train_items=np.array([0, 1]),
        validation_items=np.array([2, 3]),
        test_items=np.array([4, 5]),
    )


def formula(users, n_items, **changes):
    values = {"rounds": 1, "user_fraction": 1.0, "negatives_per_positive": 1, "at": 10} | changes
    active = values.pop("active", np.arange(n_items))
    return no_learning_rates(users, active, n_items=n_items, **values)


def test_who_was_never_drawn_ties_with_every_user():
    """With hardly any draw 99 candidates tie: 10 of 100 places are hits."""
    found = formula(two_users(10**6), 10**6)
    assert found.users == 2
    assert found.hr == found.recall == pytest.approx(0.1, abs=1e-4)
    gains = sum(1 / math.log2(place + 1) for place in range(1, 11))
    assert found.ndcg == pytest.approx(gains / 100, abs=1e-4)
    assert found.mrr == pytest.approx(sum(1 / place for place in range(1, 11)) / 100, abs=1e-4)


def test_when_everything_was_drawn_the_held_out_item_is_all_that_is_left():
    found = formula(two_users(200), 200, rounds=100_000)
    assert (found.hr, found.ndcg, found.mrr) == pytest.approx((1.0, 1.0, 1.0))


def test_who_never_takes_part_draws_nothing():
    """Half of the users take part: the mean of the two limits above."""
    found = formula(two_users(200), 200, rounds=1, user_fraction=0.5, negatives_per_positive=1000)
    assert found.hr == pytest.approx(0.55)


def test_a_held_out_item_that_is_never_recommended_is_never_found():
    active = np.array([item for item in range(200) if item != 4])
    found = formula(two_users(200), 200, rounds=100_000, active=active)
    assert found.hr == pytest.approx(0.5)


LENGTHS = {
    "ml-1m": (6040, 3706, [
        20, 22, 23, 24, 25, 26, 28, 29, 32, 34, 35, 37, 39, 41, 43, 46, 48, 50, 52, 55, 59, 62, 65,
        68, 72, 75, 79, 84, 88, 93, 99, 103, 108, 113, 119, 125, 130, 137, 145, 153, 161, 170, 179,
        191, 204, 215, 229, 245, 264, 283, 301, 322, 350, 386, 417, 468, 525, 608, 739, 1035,
    ]),
    "filmtrust": (1002, 2042, [
        10, 10, 11, 11, 11, 12, 12, 13, 13, 14, 14, 14, 15, 15, 16, 16, 17, 17, 18, 19, 20, 20, 21,
        22, 23, 23, 25, 26, 27, 28, 29, 30, 31, 32, 34, 36, 38, 40, 42, 44, 46, 49, *[50] * 12, 51,
        51, 54, 62, 88, 154,
    ]),
}  # fmt: skip
"""Users, items, mean history lengths of each sixtieth of the users: of the implicit file of ML-1M
scaled to 1,000,209 interactions, and of FilmTrust's users with ten interactions or more."""


@pytest.mark.parametrize(
    ("name", "hr", "ndcg"), [("ml-1m", 0.907, 0.764), ("filmtrust", 0.792, 0.579)]
)
def test_the_published_figures_from_history_lengths(name, hr, ndcg):
    """100 rounds, six in ten users; only lengths enter, and sixtieths are fine enough."""
    n_users, n_items, lengths = LENGTHS[name]
    sizes = [len(part) for part in np.array_split(np.arange(n_users), 60)]
    held = np.repeat(lengths, sizes)
    users = UserSplit(
        user_ids=tuple(UserId(str(number)) for number in range(n_users)),
        train_indptr=np.concatenate([[0], np.cumsum(held - 2)]),
        train_items=np.concatenate([np.arange(length - 2) for length in held]),
        validation_items=held - 2,
        test_items=held - 1,
    )
    found = formula(users, n_items, rounds=100, user_fraction=0.6, negatives_per_positive=4)
    assert found.hr == pytest.approx(hr, abs=0.0015)
    assert found.ndcg == pytest.approx(ndcg, abs=0.0015)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "hr", "ndcg"),
    [(3, 0.198, 0.094), (15, 0.549, 0.367), (30, 0.740, 0.561), (100, 0.9975, 0.8962)],
)
def test_the_published_figures_of_ml_100k(ml_100k_users, rounds, hr, ndcg):
    """Six in ten users a round, four negatives for each; they were rounded from one drawing."""
    found = formula(ml_100k_users, 1682, rounds=rounds, user_fraction=0.6, negatives_per_positive=4)
    assert found.hr == pytest.approx(hr, abs=0.002)
    assert found.ndcg == pytest.approx(ndcg, abs=0.002)
