"""FedMF and CoLR: worked steps of the specification, and parity with the plain loop."""

import numpy as np
import pytest
from reference.plain_fedmf import Rule, minibatch
from world.plans import plans, users_of

from fedrec.model.state import SharedState
from fedrec.training.learner import Learner

plan_of = plans(
    federation={"maximum_users": 64, "minimum_item_users": 1, "seed": 7},
    algorithm={"dim": 6, "learning_rate": 0.4, "regularisation": 0.01, "batch_size": 16},
    update={"structure": "dense", "clip": 8.0, "fraction_bits": 24},
)


@pytest.fixture(scope="module")
def users():
    return users_of(23, 60)


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
    vector = learner.server.layout.pack(
        {
            "item_embedding": np.rint(change / learner.server.layout.tensors[0].step).astype(
                np.int64
            )
        },
        np.array([2, 1, 1]),
        np.zeros(
            learner.server.layout.metrics_slice.stop - learner.server.layout.metrics_slice.start,
            np.int64,
        ),
    )
    table = learner.server.apply("train", 1, shared, vector).tensors["item_embedding"]
    assert table[:, 0] == pytest.approx([0.6491131, -0.6006562, 0.0687552], abs=1e-6)
