"""Holder counts of exact algorithms: never in a training round, and counted again without some."""

import numpy as np
import pytest
from reference.plain_ease import interactions_of, plain_ease
from reference.plain_fedals import half_gradient, item_step, solve_user
from reference.plain_sketch import plain_orth, plain_sum

from fedrec.algorithms.ease import item_weights
from fedrec.data import generate, leave_one_out
from fedrec.plan.combinations import find_conflicts
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

N_ITEMS, LEAST = 60, 8
EXACT = ("ease", "fedals", "sketch")


def plan_of(name, **rounds):
    own = {
        "ease": {"regularisation": 5.0},
        "fedals": {"dim": 5, "alpha": 2.0, "regularisation": 3.0, "momentum": 0.3},
        "sketch": {"dim": 6, "form": "plain"},
    }[name]
    values = {
        "federation": {"seed": 3, "maximum_users": 256, "minimum_item_users": LEAST},
        "algorithm": {"name": name, **own},
        "update": {"structure": "dense"},
        "rounds": {"total": 2, **rounds},
    }
    if name == "fedals":
        values["update"] |= {"clip": 4.0, "fraction_bits": 24}
    return Plan.model_validate(values)


@pytest.fixture(scope="module")
def parties():
    """Three parties of 16 users."""
    data = generate(n_users=48, n_items=N_ITEMS, n_clusters=4, interactions_per_user=14, seed=2)
    users = leave_one_out(data.interactions, data.catalogue)
    return [users.select(np.arange(first, 48, 3)) for first in range(3)]


def histories_of(parties):
    return [users.train_of(index) for users in parties for index in range(len(users))]


def holders_of(parties):
    return np.bincount(np.concatenate(histories_of(parties)), minlength=N_ITEMS)


def held(learner, kind, shared, parties):
    """Return the sum of a round over parties, and the version after it."""
    number, total = shared.number, 0
    for users in parties:
        private = learner.local.initial_private(users)
        total = total + learner.contribute(kind, number, shared, users, private).vector
    return total, learner.server.apply(kind, number, shared, total)


@pytest.mark.parametrize("name", EXACT)
def test_counts_in_train_round(name, parties):
    """Of two rounds that differ by one client nothing tells the counts of its users."""
    learner = Learner(plan_of(name), N_ITEMS, device="cpu")
    _, shared = held(learner, "count", learner.server.initial_shared(), parties)
    # One round counts all pairs of ease, so that the second has none left.
    for place, kind in enumerate(("train", "train", "evaluate")):
        layout = learner.server.travelling.layout(kind, shared)
        for users in parties:
            private = learner.local.initial_private(users)
            vector = learner.contribute(kind, shared.number, shared, users, private).vector
            assert vector[layout.change_slice].any() or place
            assert not vector[layout.count_slice].any()
        total, after = held(learner, kind, shared, parties)
        assert not total[layout.count_slice].any()
        shared = after
    assert shared.holders.tolist() == holders_of(parties).tolist()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(
    ("rounds", "key", "found"),
    [
        ({"user_fraction": 0.5}, "rounds.user_fraction", "0.5"),
        ({"user_fraction": 0.5, "user_sampling": "count"}, "rounds.user_fraction", "0.5"),
        ({"clients_per_round": 3}, "rounds.clients_per_round", "3"),
    ],
)
def test_a_part_of_the_users_is_refused(name, rounds, key, found):
    assert find_conflicts(plan_of(name)) == []
    (first, *_) = find_conflicts(plan_of(name, **rounds))
    assert first.keys == (key,)
    assert f"{key} is {found}, but every round of {name}" in first.sentence
    assert f"Set {key} = " in first.sentence


def counted_twice(name, parties):
    """Return a learner, the version after two counts of which the second has two parties, its
    active items, and those of them that too few of these hold.
    """
    learner = Learner(plan_of(name), N_ITEMS, device="cpu")
    _, first = held(learner, "count", learner.server.initial_shared(), parties)
    _, again = held(learner, "count", first, parties[:2])
    active = np.nonzero(holders_of(parties) >= LEAST)[0]
    few = holders_of(parties[:2])[active] < LEAST
    assert 0 < few.sum() < len(active) < N_ITEMS
    assert learner.server.active_items(again).tolist() == active.tolist()
    assert again.holders is first.holders and again.trained == 0
    assert again.last_counted.tolist() == holders_of(parties[:2]).tolist()
    return learner, again, active, few


def of_many(histories, active, few):
    """Return histories without what is not trained, as places among the active items."""
    place = {item: number for number, item in enumerate(active.tolist()) if not few[number]}
    return [[place[item] for item in own.tolist() if item in place] for own in histories]


def test_pairs_are_those_of_who_is_counted_again(parties):
    learner, shared, active, few = counted_twice("ease", parties)
    for _ in range(2):
        _, shared = held(learner, "train", shared, parties[:2])
    own = of_many(histories_of(parties[:2]), active, few)
    found = item_weights(shared.kept["pairs"], shared.tensors["item_users"], active, 5.0)
    wanted = plain_ease(interactions_of(own, len(active)), 5.0)
    assert np.allclose(found, wanted, atol=1e-10)
    assert not found[few].any() and not found[:, few].any()


def test_rows_of_few_do_not_move_and_others_are_divided_by_the_new_count(parties):
    learner, shared, active, few = counted_twice("fedals", parties)
    plan, own = learner.server.plan, of_many(histories_of(parties[:2]), active, few)
    counts = np.bincount(np.concatenate(own).astype(int), minlength=len(active))

    def pulls(numbers):
        growth = (np.asarray(numbers) / 64.0) ** plan.algorithm.frequency_exponent
        return plan.algorithm.regularisation * growth

    total, after = held(learner, "train", shared, parties[:2])
    pull = learner.server.travelling.unpack("train", shared, total).changes["pull"]
    assert not pull[active[few]].any() and pull[active[~few]].any(axis=1).all()
    table = shared.tensors["item_embedding"][active]
    user_pulls = pulls([len(history) for history in own])
    vectors = np.stack(
        [solve_user(table, one, 2.0, weight) for one, weight in zip(own, user_pulls, strict=True)]
    )
    gradient = half_gradient(table, vectors, own, 2.0, pulls(counts))
    step = item_step(table, vectors, counts, gradient, 2.0, pulls(counts))
    found = after.tensors["item_embedding"]
    assert found[active[~few]] == pytest.approx((table - step)[~few], abs=1e-4)
    rest = np.setdiff1d(np.arange(N_ITEMS), active[~few])
    assert np.array_equal(found[rest], shared.tensors["item_embedding"][rest])


def test_a_sum_is_over_who_is_counted_again(parties):
    learner, shared, active, few = counted_twice("sketch", parties)
    own = of_many(histories_of(parties[:2]), active, few)
    _, first = held(learner, "train", shared, parties[:2])
    _, second = held(learner, "train", first, parties[:2])
    along = plain_orth(first.kept["product"].reshape(-1, 6))
    found = second.kept["product"].reshape(-1, 6)
    assert found == pytest.approx(plain_sum(own, along), abs=1e-2)
    assert not found[few].any()
    counts = np.where(few, 0, holders_of(parties[:2])[active])
    assert second.rows("item_users", active).tolist() == counts.tolist()


@pytest.mark.parametrize("name", EXACT)
def test_a_round_in_which_every_user_abstained_moves_nothing(name, parties):
    learner = Learner(plan_of(name), N_ITEMS, device="cpu")
    _, shared = held(learner, "count", learner.server.initial_shared(), parties)
    vector = np.zeros(learner.server.travelling.layout("train", shared).length, dtype=np.int64)
    after = learner.server.apply("train", shared.number, shared, vector)
    assert {name: values.tolist() for name, values in after.kept.items()} == {
        name: values.tolist() for name, values in shared.kept.items()
    }
