"""Compiled kernels train what the trainer trains, to the precision of float32."""

import math

import numpy as np
import pytest
import torch
from conformance.histories import counted
from world.plans import users_of

from fedrec.algorithms.accelerators import ACCELERATORS, accelerator_for, cofedrec
from fedrec.algorithms.accelerators.compiled import open_space
from fedrec.algorithms.batch import supervised_contrast
from fedrec.evaluation.metrics import MetricSums
from fedrec.model.state import PrivateState
from fedrec.plan.agreement import plan_fingerprint
from fedrec.plan.algorithm import accelerator_of, algorithm_of, training_path
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

# They compile.
pytestmark = pytest.mark.slow

N_ITEMS, ROUNDS = 60, 3
COLR = {"structure": "colr", "rank": 3}
SCOLR = {"structure": "scolr", "rank": 3, "normaliser": "entry"}
SVD = {"structure": "svd", "rank": 2, "compress": "client"}
USUAL = {"dim": 11, "batch_size": 32, "local_epochs": 2}
FEDRAP = {"name": "fedrap", "item_rate": 4.0, "weight_decay": 1e-2, "tolerance": 0.0}
STOPPING = {"batch_size": 512, "local_epochs": 8, "batch_decay": 0.6, "tolerance": 0.03}
PLGC = {
    "name": "plgc",
    "base": {
        "name": "fedmf", "dim": 11, "batch_size": 32, "local_epochs": 3, "regularisation": 0.02,
    },
    "weight": 0.0,
}  # fmt: skip
CASES = {
    "fedmf dense": ({"name": "fedmf"}, {}),
    "fedmf dense, pulled": ({"name": "fedmf", "regularisation": 0.02}, {}),
    "fedmf colr": ({"name": "fedmf", "regularisation": 0.02}, COLR),
    "fedmf scolr": ({"name": "fedmf"}, SCOLR),
    "fedmf scolr by client": ({"name": "fedmf"}, SCOLR | {"subset": "client"}),
    "fedmf svd by client": ({"name": "fedmf"}, SVD),
    "pfedrec": ({"name": "pfedrec", "item_rate_scale": 0.5}, {}),
    "pfedrec, published rows": (
        {"name": "pfedrec", "item_rate_scale": 0.5, "personal_items": False},
        {},
    ),
    "fedncf": ({"name": "fedncf", "item_rate_scale": 5.0, "user_rate_scale": 20.0}, {}),
    "fedncf, decaying": (
        {"name": "fedncf", "item_rate_scale": 5.0, "user_rate_scale": 20.0, "weight_decay": 1e-3},
        {},
    ),
    "fedncf, plain": (
        {
            "name": "fedncf",
            "item_rate_scale": 5.0,
            "user_rate_scale": 20.0,
            "aggregation": "plain",
        },
        {},
    ),
    "gpfedrec": ({"name": "gpfedrec", "item_rate_scale": 5.0, "user_rate_scale": 20.0}, {}),
    "cofedrec": (
        {"name": "cofedrec", "item_rate_scale": 0.5, "weight": 0.5, "temperature": 0.3},
        {},
    ),
    "cofedrec, without clusters": (
        {"name": "cofedrec", "item_rate_scale": 0.5, "weight": 0.0},
        {},
    ),
    "pfedgraph": ({"name": "pfedgraph", "weight": 0.5}, {}),
    "pfedgraph, pushed away": (
        {"name": "pfedgraph", "weight": 0.5, "sign": "released", "dim": 40},
        {},
    ),
    "pfedgraph, without anchors": ({"name": "pfedgraph", "weight": 0.0}, {}),
    "fedrap": (FEDRAP, {}),
    "fedrap, later": (FEDRAP | {"schedule": "sin", "sparsity": "l2"}, {}),
    "fedrap, all that is fixed": (
        FEDRAP | {"weight_decay": 0.0, "batch_decay": 1.0, "round_decay": 1.0, "sparsity": "none"},
        {},
    ),
    "fedrap, one minibatch": (FEDRAP | {"batch_size": 512, "local_epochs": 5}, {}),
    "fedrap, stopping": (FEDRAP | STOPPING, {}),
    "fedrap, stopping in minibatches": (FEDRAP | STOPPING | {"batch_size": 32}, {}),
    "fedrap-c": (FEDRAP | {"tables": "shared"}, {}),
    "fedrap-d": (FEDRAP | {"tables": "private"}, {}),
    "plgc": (PLGC, {}),
    "plgc, whole tables": (PLGC | {"upload": "table", "rate_factor": 1.0}, {}),
}


def plan_of(case, *, accelerated=True, **changes):
    algorithm, update = CASES[case]
    return Plan.model_validate(
        {
            "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 2},
            # Some users have one minibatch, some several.
            "algorithm": (USUAL if "base" not in algorithm else {}) | algorithm,
            "update": {"structure": "dense", "clip": 16.0, "fraction_bits": 30} | update,
            "training": {"accelerated": accelerated},
        }
        | changes
    )


@pytest.fixture(scope="module")
def users():
    return users_of(23, N_ITEMS, thin=0.3)


def trained(plan, users):
    """Return the last round's tensors, counts, private tables, the model after it, how many values
    were clipped, and the summed loss.
    """
    learner = Learner(plan, N_ITEMS, device="cpu")
    shared, private = counted(learner, users)
    if "anchor" in private.tensors:
        # A user's mixture has almost the direction of its anchor. Then rounding alone would decide
        # the gradient, which Adam makes a whole step.
        drawn = np.random.default_rng(4).normal(size=private.tensors["anchor"].shape)
        private = PrivateState.of({**private.tensors, "anchor": drawn.astype(np.float32)})
    if "item_cluster" in shared.tensors:
        shared = shared.with_tensors(item_cluster=np.arange(N_ITEMS) % 7 - 1.0)
    for round_id in range(2, 2 + ROUNDS):
        part = learner.contribute("train", round_id, shared, users, private)
        shared, private = learner.server.apply("train", round_id, shared, part.vector), part.private
    sums = learner.server.travelling.unpack("train", shared, part.vector)
    loss = MetricSums(sums.metrics).sum_of("loss")
    return learner, sums.changes, sums.counts, private, shared, part.n_clipped, loss


def assert_close(one, other, name):
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other) + 1e-12, name


@pytest.mark.parametrize("case", CASES)
def test_three_rounds_agree(case, users):
    compiled = trained(plan_of(case), users)
    by_trainer = trained(plan_of(case, accelerated=False), users)
    assert compiled[0].local.accelerator is ACCELERATORS[CASES[case][0]["name"]]
    assert by_trainer[0].local.accelerator is None
    assert set(compiled[1]) == set(by_trainer[1])
    for name, values in compiled[1].items():
        assert values.any(), name
        assert_close(values, by_trainer[1][name], name)
    assert np.array_equal(compiled[2], by_trainer[2])
    for name, values in compiled[3].tensors.items():
        assert_close(values, by_trainer[3].tensors[name], name)
    for name, values in compiled[4].tensors.items():
        assert_close(values, by_trainer[4].tensors[name], name)
    assert compiled[5] == by_trainer[5] == 0
    assert_close(compiled[6], by_trainer[6], "loss")


def test_a_contrast_of_several_blocks_has_the_gradient_of_autograd():
    """150 items of six clusters, of a cluster of its own and of none; some occur twice."""
    rng, n, dim = np.random.default_rng(3), 150, 11
    rows = rng.normal(size=(n, dim)).astype(np.float32)
    labels = rng.integers(-1, 6, n).astype(np.float32)
    labels[5] = 9.0
    space = open_space(np.array([0, n]), 1, n, dim)
    space.drawn[:n], space.row_of[:], space.rows[:] = np.arange(n), np.arange(n), rows
    room = cofedrec._open_room(n + 20, space)
    batch = np.concatenate([rng.permutation(n), rng.integers(0, n, 20)])
    assert cofedrec._find_items(batch, labels, space, room) == n
    for temperature in (0.025, 0.1, 1.0):
        space.rows[:] = rows
        cofedrec._contrast(n, np.float32(1.0 / (temperature * math.log(2.0))), room)
        cofedrec._move_by_slopes(n, np.float32(200.0 / n), space, room)
        own = torch.from_numpy(rows.astype(np.float64))[None].requires_grad_()
        label, there = torch.from_numpy(labels)[None].double(), torch.ones((1, n)).double()
        supervised_contrast(own, label, there, temperature).sum().backward()
        assert_close(rows - space.rows, 100.0 * own.grad[0], temperature)


def test_users_stop_whose_loss_stands_still(users):
    """Else the cases of stopping above would show nothing."""
    for case in ("fedrap, stopping", "fedrap, stopping in minibatches"):
        never = USUAL | CASES[case][0] | {"tolerance": 0.0}
        stopped, went_on = (
            trained(plan_of(case), users),
            trained(plan_of(case, algorithm=never), users),
        )
        assert stopped[6] != went_on[6]


@pytest.mark.parametrize("case", ["fedmf dense", "fedrap", "plgc", "plgc, whole tables"])
def test_what_was_clipped_is_counted_alike(case, users):
    """Few values are within a grid step of the limit, so few may fall on either side of it."""
    narrow = {"update": {"structure": "dense", "clip": 0.05, "fraction_bits": 20}}
    found = [
        trained(plan_of(case, accelerated=accelerated, **narrow), users)[5]
        for accelerated in (True, False)
    ]
    assert found[0] > 100
    assert abs(found[0] - found[1]) <= 2


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("fedmf dense", {"update": {"structure": "svd", "rank": 2}}),
        ("fedncf", {"algorithm": {"name": "fedncf", "optimiser": "adam", "learning_rate": 0.01}}),
        (
            "fedmf dense",
            {
                "privacy": {"mechanism": "laplace", "noise_multiplier": 1.0},
                "protection": {"name": "none"},
            },
        ),
        (
            "fedrap",
            {
                "algorithm": {"name": "fedrap", "tables": "shared"},
                "update": {"structure": "colr", "rank": 2},
            },
        ),
        ("pfedrec", {"update": {"structure": "colr", "rank": 2}}),
        ("fedrap", {"algorithm": {"name": "fedrap", "noise_where": "grad"}}),
        ("fedrap", {"algorithm": {"name": "fedrap", "noise_where": "upload"}}),
        ("plgc", {"algorithm": {"name": "plgc"}}),
        ("plgc", {"algorithm": {"name": "plgc", "mixing": False}}),
        ("plgc", {"algorithm": {"name": "plgc", "weight": 0.0, "base": {"name": "fedrap"}}}),
        ("cofedrec", {"algorithm": {"name": "cofedrec", "temperature": 0.01}}),
    ],
    ids=[
        "each user's change compressed",
        "adam",
        "noise",
        "rows that A stands in for",
        "rows in a subspace",
        "noise on gradients",
        "noise on uploads",
        "a regulariser",
        "tables that are not mixed",
        "around another base",
        "exponentials below float32",
    ],
)
def test_what_they_do_not_do_is_the_trainers(case, changes):
    plan = plan_of(case, **changes)
    assert accelerator_of(plan) is None
    assert training_path(plan).startswith("trainer ")


def test_whether_one_trains_follows_from_the_plan_and_is_in_its_fingerprint():
    with_it, without = plan_of("fedmf colr"), plan_of("fedmf colr", accelerated=False)
    assert accelerator_for(algorithm_of(with_it, 1)) is ACCELERATORS["fedmf"]
    assert training_path(with_it) == f"fedmf accelerator {ACCELERATORS['fedmf'].version}"
    assert plan_fingerprint(with_it) != plan_fingerprint(without)


def test_a_new_version_gives_a_plan_another_fingerprint(monkeypatch):
    before = plan_fingerprint(plan_of("pfedrec"))
    newer = ACCELERATORS["pfedrec"].__class__(version=99, serves=lambda algorithm: True)
    monkeypatch.setitem(ACCELERATORS, "pfedrec", newer)
    assert plan_fingerprint(plan_of("pfedrec")) != before
