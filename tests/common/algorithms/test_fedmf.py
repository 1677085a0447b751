"""FedMF and CoLR: worked steps of the specification, and parity with the plain loop."""

import numpy as np
import pytest
from reference.plain_fedmf import Rule, minibatch

from fedrec.data import leave_one_out
from fedrec.data.synthetic import generate
from fedrec.model.state import SharedState
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner


def plan_of(**changes):
    settings = {
        "federation": {"maximum_users": 64, "minimum_item_users": 1, "seed": 7},
        "algorithm": {"dim": 6, "learning_rate": 0.4, "regularisation": 0.01, "batch_size": 16},
        "update": {"structure": "dense", "clip": 8.0, "fraction_bits": 24},
    }
    for section, values in changes.items():
        settings[section] = settings.get(section, {}) | values
    return Plan.model_validate(settings)


@pytest.fixture(scope="module")
def users():
    data = generate(n_users=23, n_items=60, n_clusters=3, interactions_per_user=12, seed=3)
    return leave_one_out(data.interactions, data.catalogue)


def test_the_plain_rule_reproduces_the_worked_step():
    base = {0: np.array([0.5]), 1: np.array([-0.4]), 2: np.array([0.2])}
    p_a, rows_a = minibatch(
        np.array([1.0]), {}, base, [(0, 1), (1, 0), (1, 0)], Rule(rate=0.5, gamma=0.0), None
    )
    p_b, rows_b = minibatch(
        np.array([-0.5]), {}, base, [(0, 0), (2, 1)], Rule(rate=0.5, gamma=0.0), None
    )
    assert p_a == pytest.approx([1.0849700], abs=5e-8)
    assert p_b == pytest.approx([-0.5284790], abs=5e-8)
    assert rows_a[0] == pytest.approx([0.1887703], abs=5e-8)
    assert rows_a[1] == pytest.approx([-0.2006562], abs=5e-8)
    assert rows_b[0] == pytest.approx([0.1094559], abs=5e-8)
    assert rows_b[2] == pytest.approx([-0.1312448], abs=5e-8)
    p_c, rows_c = minibatch(
        np.array([1.0]), {}, base, [(0, 1), (1, 0), (1, 0)], Rule(rate=0.5, gamma=0.01), None
    )
    assert p_c == pytest.approx([1.0749700], abs=5e-8)
    assert rows_c[0] == pytest.approx([0.1837703], abs=5e-8)
    assert rows_c[1] == pytest.approx([-0.1966562], abs=5e-8)


def test_the_server_divides_each_row_by_its_count():
    plan = plan_of(algorithm={"dim": 1}, update={"clip": 1.0})
    learner = Learner(plan, 3, device="cpu")
    shared = SharedState({"item_embedding": np.array([[0.5], [-0.4], [0.2]])})
    change = np.array([0.1887703 + 0.1094559, -0.2006562, -0.1312448])
    vector = learner.layout.pack(
        {"item_embedding": np.rint(change / learner.layout.tensors[0].step).astype(np.int64)},
        np.array([2, 1, 1]),
        np.zeros(learner.layout.metrics_slice.stop - learner.layout.metrics_slice.start, np.int64),
    )
    table = learner.apply("train", 1, shared, vector).tensors["item_embedding"]
    assert table[:, 0] == pytest.approx([0.6491131, -0.6006562, 0.0687552], abs=1e-6)


def test_colr_at_full_rank_is_fedmf(users):
    """B is orthogonal at r = d: training A only rotates coordinates (specification, 2.7e)."""
    results = []
    for update in ({"structure": "dense"}, {"structure": "colr", "rank": 6}):
        learner = Learner(plan_of(update=update), 60, device="cpu")
        shared, private = learner.initial_shared(), learner.initial_private(users)
        for round_id in range(1, 5):
            part = learner.contribute("train", round_id, shared, users, private)
            shared = learner.apply("train", round_id, shared, part.vector)
            private = part.private
        results.append((shared.tensors["item_embedding"], private.tensors["user_embedding"]))
    assert np.abs(results[0][0] - results[1][0]).max() < 1e-4
    assert np.abs(results[0][1] - results[1][1]).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("update", [{"structure": "dense"}, {"structure": "colr", "rank": 2}])
def test_sums_do_not_depend_on_how_users_are_grouped(users, update):
    plan = plan_of(update=update, algorithm={"batch_size": 8})
    learner = Learner(plan, 60, device="cpu")
    shared = learner.initial_shared()
    whole = learner.contribute("train", 3, shared, users, learner.initial_private(users))
    for n_groups in (2, 5, 23):
        total = np.zeros_like(whole.vector)
        for part in np.array_split(np.random.default_rng(n_groups).permutation(23), n_groups):
            some = users.select(part)
            own = learner.contribute("train", 3, shared, some, learner.initial_private(some))
            total += own.vector
            assert np.array_equal(
                own.private.tensors["user_embedding"], whole.private.tensors["user_embedding"][part]
            )
        assert np.array_equal(total, whole.vector)
