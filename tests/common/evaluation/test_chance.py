"""What a model that knows nothing gets under `sampled`: by hand, and by drawing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrec.data import Catalogue, Interactions, UserSplit, leave_one_out
from fedrec.evaluation.chance import Chance, chance_of
from fedrec.evaluation.protocols import held_out_ranks


def split_of(rows: list[tuple[str, str]], items: list[str]) -> UserSplit:
    users, held = zip(*rows, strict=True)
    times = list(range(len(rows)))
    return leave_one_out(Interactions.from_arrays(users, held, times), Catalogue.of(items))


def test_where_every_item_is_trained_chance_is_uniform():
    items = [f"i{n:03d}" for n in range(300)]
    users = split_of([("a", item) for item in items[:5]], items)
    found = chance_of(users, np.arange(300), n_items=300, at=10)
    assert found is not None
    assert found.never_trained == pytest.approx(0.0)
    assert found.hr == pytest.approx(0.1)


def test_by_hand():
    # a holds x0 .. x2; outside are 4 items, of which x3 and x4 are trained: all 4 are drawn, so
    # that 2 are trained, and one place is worth 1/3. b's test item is not trained: never found.
    items = [f"x{n}" for n in range(7)]
    rows = [("a", "x0"), ("a", "x1"), ("a", "x2"), ("b", "x0"), ("b", "x1"), ("b", "x6")]
    found = chance_of(split_of(rows, items), np.array([0, 1, 2, 3, 4]), n_items=7, at=1)
    # Outside b's items are x2 .. x5, of which x2, x3 and x4 are trained.
    assert found is not None
    assert found.hr == pytest.approx((1 / 3 + 0) / 2)
    assert found.never_trained == pytest.approx((2 / 4 + 1 / 4) / 2)


def test_no_user_has_a_test_item():
    assert chance_of(split_of([("a", "x")], ["x", "y"]), np.arange(2), n_items=2, at=1) is None


def test_random_scores_over_drawn_candidates_come_to_it():
    random = np.random.default_rng(5)
    n_users, n_items, n_active = 3000, 400, 60
    items = [f"i{n:03d}" for n in range(n_items)]
    rows = []
    for user in range(n_users):
        # Held-out items are mostly among the active ones, as on long-tailed data.
        held = random.choice(n_active + 20, size=6, replace=False)
        rows += [(f"u{user}", items[item]) for item in held]
    users = split_of(rows, items)
    scores = torch.from_numpy(random.random((n_users, n_items)))
    scores[:, n_active:] = -torch.inf
    ranks = held_out_ranks(scores, users, "test", protocol="sampled", seed=3)
    found = chance_of(users, np.arange(n_active), n_items=n_items, at=10)
    assert isinstance(found, Chance)
    # Three standard errors of a mean over 3,000 users.
    assert found.hr == pytest.approx((ranks < 10).mean(), abs=3 * 0.5 / 3000**0.5)
    assert found.hr > 0.4
