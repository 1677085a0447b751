"""What `fedrec init --auto` chooses on validation, and when it keeps the proposed values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world.clock import FakeClock

from fedrec.data import generate, leave_one_out
from fedrec_lab.tuning import first_choice
from fedrec_lab.tuning.first_choice import SECONDS, choose

pytestmark = pytest.mark.slow

BASE = {
    "federation.minimum_item_users": 3,
    "federation.maximum_users": 1024,
    "algorithm.name": "ease",
    "algorithm.regularisation": 1.0,
    "protection.name": "none",
    "rounds.total": 1,
    "client.device": "cpu",
    "client.threads": 1,
    "client.tail_minimum_users": 2,
}


def made(**changed):
    data = generate(n_clusters=4, interactions_per_user=10, seed=8, **changed)
    return leave_one_out(data.interactions, data.catalogue), data.catalogue


def chosen(data, clock=None, **changed):
    seen = []
    found = choose(
        {**BASE, **changed}, *data, n_clients=3, tell=seen.append, clock=clock or FakeClock()
    )
    return found, seen


@pytest.fixture(scope="module")
def many():
    return made(n_users=400, n_items=120, noise=0.4)


def test_what_validation_shows_is_chosen_and_test_items_count_for_nothing(many):
    users, catalogue = many
    found, seen = chosen(many)
    assert found.values == {"algorithm.regularisation": 300.0}
    of_lambda, of_tail = found.reasons
    assert "NDCG@10 on 400 validation items by +" in of_lambda
    assert "against the proposed value" in of_lambda
    assert "client.tail is false, tried with 3 clients: no item" in of_tail
    assert "starting settings: NDCG@10" in seen[1]
    moved = replace(users, test_items=users.test_items[::-1].copy())
    assert chosen((moved, catalogue))[0] == found


def test_the_tail_is_switched_on_if_validation_shows_that_it_helps():
    found, _ = chosen(made(n_users=300, n_items=80), **{"federation.minimum_item_users": 31})
    assert found.values["client.tail"] is True
    assert "the tail helps: NDCG@10 on validation changes by +" in found.reasons[1]


def test_too_few_validation_users_change_nothing():
    found, seen = chosen(made(n_users=300, n_items=300))
    assert len(seen) > 2
    assert not found.values
    assert "but the proposed value is kept" in found.reasons[0]
    assert "too few users to choose" in found.reasons[0] and "[-" in found.reasons[0]


def test_without_validation_items_or_time_nothing_is_tried(many):
    users, catalogue = many
    none = replace(users, validation_items=users.validation_items * 0 - 1)
    found, _ = chosen((none, catalogue))
    assert not found.values and "no user has a validation item" in found.reasons[0]

    class Late(FakeClock):
        def now(self):
            self.advance(SECONDS)
            return super().now()

    found, seen = chosen(many, Late())
    assert not found.values and "didn't end within 45 s" in found.reasons[0]
    assert len(seen) == 1


def test_the_best_of_worse_values_has_its_interval(many):
    found, _ = chosen(many, **{"algorithm.regularisation": 300.0})
    assert not found.values
    assert "none was better on validation. The best of them, algorithm.reg" in found.reasons[0]
    assert "changes NDCG@10 on 400 validation items by -" in found.reasons[0]


@pytest.mark.parametrize("when", ["before the inversions", "between two blocks of users"])
def test_the_tail_has_no_more_than_the_time_that_is_left(monkeypatch, when):
    clock = Ticking()
    if when == "before the inversions":
        # As if inverting the silos' matrices took a million times as long as the sample.
        monkeypatch.setattr(first_choice, "_SAMPLE", 1)
    else:
        late = lambda study: clock.advance(SECONDS)  # noqa: E731
        monkeypatch.setattr(first_choice._Study, "_check_inversions", late)
    found, _ = chosen(made(n_users=300, n_items=80), clock, **{"federation.minimum_item_users": 31})
    assert "client.tail" not in found.values
    assert "trying it doesn't fit into 60 s" in found.reasons[1]


class Ticking(FakeClock):
    """A clock on which some time passes between two looks."""

    def now(self):
        self.advance(0.01)
        return super().now()
