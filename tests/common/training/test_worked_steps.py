"""Steps of the specification, worked out by hand, through the trainer."""

import numpy as np
import pytest
from conformance.hand_made import HandMade
from world.plans import plan_of

from fedrec.training.learner import Learner

TABLE = np.array([[0.5], [-0.4], [0.2]])


def algorithm_of(**algorithm):
    plan = plan_of(algorithm=algorithm, update={"structure": "dense"})
    return Learner(plan, 3, device="cpu").server.algorithm


@pytest.mark.parametrize(
    ("gamma", "vectors", "changes"),
    [
        (0.0, [1.0849700, -0.5284790], [0.2982262, -0.2006562, -0.1312448]),
        # 2 gamma p and 2 gamma q_i come to every gradient: of user 0's rows .5 and -.4, of user
        # 1's .5 and .2, each times eta = .5.
        (
            0.01,
            [1.0849700 - 0.01, -0.5284790 + 0.005],
            [0.2982262 - 2 * 0.005, -0.2006562 + 0.004, -0.1312448 - 0.002],
        ),
    ],
)
def test_fedmf(gamma, vectors, changes, monkeypatch):
    """User 0 draws item 1 twice, and its row moves by the mean over both."""
    algorithm = algorithm_of(name="fedmf", dim=1, regularisation=gamma, local_epochs=1)
    made = HandMade(samples=[[(0, 1), (1, 0), (1, 0)], [(0, 0), (2, 1)]], n_items=3)
    result, sums = made.train(
        monkeypatch,
        algorithm,
        {"item_embedding": TABLE},
        {"user_embedding": np.array([[1.0], [-0.5]])},
    )
    assert result.private["user_embedding"][:, 0].numpy() == pytest.approx(vectors, abs=5e-8)
    found = sums.rows["item_embedding"][:-1, 0].numpy()
    assert found == pytest.approx(changes, abs=1e-7)
    assert sums.counts.tolist() == [2, 1, 1]
    # log(1 + e^-s) or log(1 + e^s) of the scores .5, -.4, -.4 and -.25, -.1.
    losses = [
        (np.log1p(np.exp(-0.5)) + 2 * np.log1p(np.exp(-0.4))) / 3,
        (np.log1p(np.exp(-0.25)) + np.log1p(np.exp(0.1))) / 2,
    ]
    assert result.loss.numpy() == pytest.approx(losses, abs=1e-12)


def test_pfedrec(monkeypatch):
    """The head's step, then the rows' with the new head."""
    algorithm = algorithm_of(
        name="pfedrec", dim=1, learning_rate=0.1, item_rate_scale=1.0, personal_items=True
    )
    result, sums = HandMade(samples=[[(0, 1), (1, 0)]], n_items=3).train(
        monkeypatch,
        algorithm,
        {"item_embedding": TABLE},
        {
            "user_embedding": np.array([[1.0]]),
            "user_bias": np.array([0.0]),
            "personal_scores": np.zeros((1, 3)),
        },
    )
    assert result.private["user_embedding"].numpy() == pytest.approx(1.0174648, abs=5e-8)
    assert result.private["user_bias"].numpy() == pytest.approx(-0.0011886, abs=5e-8)
    rows = np.array([0.5573498, -0.4609487, 0.2])
    assert sums.rows["item_embedding"][:-1, 0].numpy() == pytest.approx(
        rows - TABLE[:, 0], abs=5e-8
    )
    scores = result.private["personal_scores"][0].numpy()
    assert scores == pytest.approx(1.0174648 * rows - 0.0011886, abs=2e-7)


@pytest.mark.parametrize("omega", [0.0, 0.01])
def test_fedrap(omega, monkeypatch):
    """Items 0 and 1 are touched; item 2 moves by decay alone, .01 x 10 x .3 of C and x .2 of D."""
    algorithm = algorithm_of(
        name="fedrap", dim=1, learning_rate=0.5, item_rate=10.0, weight_decay=omega,
        schedule="fixed", local_epochs=1,
    )  # fmt: skip
    shared, own = np.array([[0.2], [-0.1], [0.3]]), np.array([[[0.1], [0.4], [-0.2]]])
    result, sums = HandMade(samples=[[(0, 1), (1, 0)]], n_items=3).train(
        monkeypatch,
        algorithm,
        {"item_embedding": shared, "published": np.array(0.0)},
        {
            "own_embedding": own,
            "user_embedding": np.array([[0.5]]),
            "user_bias": np.array([0.0]),
        },
    )
    assert result.loss.numpy() == pytest.approx(0.6979570, abs=5e-8)
    head, bias = 0.4943855 - 0.5 * omega * 0.5, -0.0187149
    rows = np.array([0.9564254, -1.4435746, 0.3]) - 10 * omega * shared[:, 0]
    private = np.array([1.1564254, -0.4435746, -0.2]) - 10 * omega * own[0, :, 0]
    assert result.private["user_embedding"].numpy() == pytest.approx(head, abs=5e-8)
    assert result.private["user_bias"].numpy() == pytest.approx(bias, abs=5e-8)
    change = sums.rows["item_embedding"][:-1, 0].numpy()
    assert change == pytest.approx(rows - shared[:, 0], abs=1e-7)
    assert result.private["own_embedding"][0, :, 0].numpy() == pytest.approx(private, abs=1e-7)
