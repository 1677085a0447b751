"""GPFedRec: the worked numbers of the specification, odd graphs, and what is refused."""

import numpy as np
import pytest
from conformance.unrounded import assert_near
from world.plans import check_plan, plans

from fedrec.algorithms import GPFedRec, GPFedRecSettings, Shapes, UserUpdates
from fedrec.model.state import SharedState
from fedrec.updates.update import UpdateSettings

plan_of = plans(
    federation={"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
    algorithm={"name": "gpfedrec", "dim": 32},
    protection={"name": "none"},
    update={"structure": "dense"},
)
THREE = np.array([[[1.0, 0.0]], [[0.8, 0.6]], [[0.0, 1.0]]])


def smoothed(tables, **settings):
    """Return (r, Q_g) of users with these tables, (n_users, n_items, dim)."""
    n_users, n_items, _ = tables.shape
    shapes = Shapes(n_items=n_items, seed=7, update=UpdateSettings(structure="dense"), n_rounds=1)
    # Rates that leave room for any pull.
    algorithm = GPFedRec(GPFedRecSettings(item_rate_scale=1.0, **settings), shapes)
    updates = UserUpdates(
        SharedState({"item_embedding": np.zeros(tables.shape[1:])}),
        active=np.arange(n_items), user_keys=np.arange(n_users), samples=np.ones(n_users, int),
        number=2, read=lambda name, users: tables[users], shown=lambda name: None,
    )  # fmt: skip
    found = algorithm.personalise(updates)
    ((name, mixture),) = found.own.items()
    assert name == "smoothed_item_embedding"
    return updates.mixed(mixture.of, mixture.weights), found.shared["item_embedding"]


def test_the_smoothing_of_the_specification():
    """The mean cosine is .6444, so that the first two are each other's neighbours."""
    own, everybody = smoothed(THREE)
    assert_near(own[:, 0], [[0.9, 0.3], [0.9, 0.3], [0.0, 1.0]], 1e-12)
    assert everybody[0].tolist() == pytest.approx([0.6, 0.5333], abs=1e-4)


def test_distances_take_those_that_differ_most_as_the_released_code_does():
    own, everybody = smoothed(THREE, similarity="distance")
    assert_near(own[:, 0], [[0.0, 1.0], [0.0, 1.0], [0.9, 0.3]], 1e-12)
    assert everybody[0].tolist() == pytest.approx([0.3, 0.7667], abs=1e-4)


def test_two_users_swap_their_tables_by_distance():
    own, _ = smoothed(THREE[:2], similarity="distance")
    assert_near(own, THREE[:2][::-1], 1e-12)


def test_a_second_layer_averages_the_averages():
    """With the two nearest of three: A = [1 1 0, 1 1 0, 0 1 1] / 2."""
    once = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    own, _ = smoothed(THREE, neighbours=2, layers=2)
    assert_near(own[:, 0], once @ once @ THREE[:, 0], 1e-12)


@pytest.mark.parametrize("similarity", ["cosine", "distance"])
@pytest.mark.parametrize("neighbours", [0, 2, 100])
def test_odd_cohorts_get_tables_all_the_same(similarity, neighbours):
    """One user, users that are all alike, tables of zeros, and more neighbours than users."""
    own, everybody = smoothed(THREE[:1], similarity=similarity, neighbours=neighbours)
    assert_near(own, THREE[:1], 1e-12)
    assert_near(everybody, THREE[0], 1e-12)
    alike = np.repeat(THREE[1:2], 4, axis=0)
    assert_near(smoothed(alike, similarity=similarity, neighbours=neighbours)[0], alike, 1e-12)
    nothing = np.zeros((3, 1, 2))
    own, everybody = smoothed(nothing, similarity=similarity, neighbours=neighbours)
    assert not own.any()
    assert not everybody.any()
    every, _ = smoothed(THREE, similarity=similarity, neighbours=100)
    assert_near(every, np.repeat(THREE.mean(0)[None], 3, axis=0), 1e-12)


def test_a_graph_without_edges_leaves_each_user_its_own_table():
    own, everybody = smoothed(THREE, threshold=3.0)
    assert_near(own, THREE, 1e-12)
    assert_near(everybody, THREE.mean(0), 1e-12)


def test_every_protection_is_refused_with_the_reason():
    assert check_plan(plan_of()) == []
    for name in ("bfv", "ckks", "paillier", "masks"):
        (sentence,) = check_plan(plan_of(protection={"name": name}))
        assert "compares users' item tables" in sentence
        assert 'protection.name = "none"' in sentence
    (sentence,) = check_plan(plan_of(update={"structure": "colr"}))
    assert "no low-rank form" in sentence


def test_noise_on_sums_is_refused():
    private = {"mechanism": "gaussian", "epsilon": 8.0, "clip": 1.0}
    assert any(
        "needs the table of each user" in one for one in check_plan(plan_of(privacy=private))
    )


def test_a_pull_that_overshoots_is_refused():
    """A minibatch takes a row by mu / 2 of its way to r with the published rates and dim 32."""
    (sentence,) = check_plan(plan_of(algorithm={"pull": 4.5}))
    assert "ever further away" in sentence
    assert check_plan(plan_of(algorithm={"pull": 3.9})) == []


def test_a_threshold_beside_a_number_of_neighbours_is_refused():
    (sentence,) = check_plan(plan_of(algorithm={"neighbours": 5, "threshold": 2.0}))
    assert "algorithm.threshold" in sentence
