"""FedRAP: schedules, what its settings refuse, what stays and what shrinks."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from world.plans import check_plan, users_of

from fedrec.algorithms import Circumstances, FedRAP, FedRAPSettings
from fedrec.algorithms.settings_warnings import accounted_epsilon
from fedrec.algorithms.whole_decay import coordinates, shrinking
from fedrec.errors import SettingsError, TrainingError
from fedrec.plan.schema import Plan, TrainingSettings
from fedrec.training.learner import Learner
from fedrec.updates.update import UpdateSettings

N_ITEMS = 61


def plan_of(update=None, **algorithm):
    return Plan.model_validate(
        {
            "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
            "algorithm": {"name": "fedrap", "dim": 4, "item_rate": 4.0} | algorithm,
            "update": {"structure": "dense", "clip": 64.0, "fraction_bits": 34} | (update or {}),
        }
    )


def learner_of(**algorithm):
    return Learner(plan_of(**algorithm), N_ITEMS, device="cpu")


@pytest.fixture(scope="module")
def users():
    return users_of(12, N_ITEMS, each=8)


@pytest.mark.parametrize(
    ("schedule", "weights"),
    [
        # In the training rounds 1, 10, 11, 20, 21 and 48, where the paper's sine is negative.
        ("tanh", [0.0996680, 0.7615942, 0.8004990, 0.9640276, 0.9704519, 0.9998646]),
        ("sin", [0.5499167, 0.9207355, 0.9456037, 0.9546487, 0.9316047, 0.0019177]),
        ("square", [0, 0, 1, 1, 0, 0]),
        ("frac", [1 / 2, 1 / 11, 1 / 12, 1 / 21, 1 / 22, 1 / 49]),
        ("fixed", [1, 1, 1, 1, 1, 1]),
    ],
)
def test_schedules(schedule, weights):
    algorithm = learner_of(schedule=schedule).server.algorithm
    published = torch.tensor([0.0, 9.0, 10.0, 19.0, 20.0, 47.0], dtype=torch.float64)
    found = algorithm.scheduled(SimpleNamespace(published=published))
    assert found.numpy() == pytest.approx(weights, abs=5e-8)


def test_steps_fall_with_published_rounds_and_not_with_the_rounds_number(users):
    learner = learner_of()
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    rates = []
    for number in (2, 3, 9):
        ((step,),) = learner.server.algorithm.phases({"published": float(shared.trained)})[0].steps
        rates.append(step.rates["item_embedding"])
        # A round that is not published is trained, and leaves nothing behind.
        learner.contribute("train", number + 100, shared, users, private)
        part = learner.contribute("train", number, shared, users, private)
        shared, private = learner.server.apply("train", number, shared, part.vector), part.private
    assert rates == pytest.approx([4.0, 4.0 * 0.97, 4.0 * 0.97**2], rel=1e-12)
    assert (shared.trained, shared.number) == (3, 5)
    start = learner.server.algorithm.derived.start(
        shared, np.arange(N_ITEMS), 5, torch.device("cpu")
    )
    assert start.scalars == {"published": 3.0}


def test_what_untouched_rows_shrink_by():
    """By hand: rates 4, 2, 1 and decay .05 leave .8, .8 x .9 and .8 x .9 x .95."""
    learner = learner_of(weight_decay=0.05, batch_decay=0.5, local_epochs=3, batch_size=1000)
    start = learner.server.algorithm.derived.start(
        learner.server.initial_shared(), np.arange(N_ITEMS), 2, torch.device("cpu"), torch.float64
    )
    found = shrinking(learner.server.algorithm, start)
    assert found.keys() == {"item_embedding", "own_embedding"}
    for change in found.values():
        assert change.numpy() == pytest.approx([0, -0.2, 0.72 - 1, 0.684 - 1], abs=1e-12)


def test_what_untouched_rows_shrink_by_in_a_subspace():
    """By hand: B = (2 / sqrt(2)) (1, 1) / sqrt(2) = (1, 1), B B^T = c = 2, M = Q B^T / c.

    With the rates 4 and 2, decay .05 and s = sqrt(1 / 2), A + M keeps 1 - 4 s c .05 of itself and
    1 - 2 s c .05: .7171573 and .8585786.
    """
    rows = torch.tensor([[3.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    basis = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    assert coordinates(rows, basis).tolist() == [[2.0], [0.0]]
    update = {"structure": "colr", "rank": 1}
    settings = {"weight_decay": 0.05, "batch_decay": 0.5, "local_epochs": 2, "batch_size": 1000}
    learner = Learner(plan_of(update, tables="shared", dim=2, **settings), N_ITEMS, device="cpu")
    start = learner.server.algorithm.derived.start(
        learner.server.initial_shared(), np.arange(N_ITEMS), 2, torch.device("cpu"), torch.float64
    )
    found = shrinking(learner.server.algorithm, start)["item_embedding"]
    assert found.numpy() == pytest.approx([0, -0.2828427, 0.7171573 * 0.8585786 - 1], abs=1e-7)


def test_rows_that_no_user_holds_or_draws_shrink_as_all_others(users):
    """One user alone, whose few samples leave most rows untouched."""
    learner = learner_of(
        weight_decay=0.05, batch_decay=0.5, local_epochs=3, batch_size=1000, tolerance=0.0
    )
    one = users.select(np.array([0]))
    shared, private = learner.server.initial_shared(), learner.local.initial_private(one)
    part = learner.contribute("train", 2, shared, one, private)
    after = learner.server.apply("train", 2, shared, part.vector)
    for before, found in (
        (shared.tensors["item_embedding"], after.tensors["item_embedding"]),
        (private.tensors["own_embedding"][0], part.private.tensors["own_embedding"][0]),
    ):
        untouched = np.isclose(found, 0.684 * before, atol=1e-6).all(1)
        assert N_ITEMS - 35 <= untouched.sum() < N_ITEMS - 5


def test_every_user_starts_from_one_own_table_and_one_head(users):
    learner = learner_of()
    private = learner.local.initial_private(users).tensors
    for values in private.values():
        assert (values == values[0]).all()
    assert np.abs(private["user_embedding"]).max() <= 1 / math.sqrt(4)
    assert not np.array_equal(
        private["own_embedding"][0], learner.server.initial_shared().tensors["item_embedding"]
    )


def test_scores_are_those_of_both_tables(users):
    learner = learner_of()
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    part = learner.contribute("train", 2, shared, users, private)
    shared = learner.server.apply("train", 2, shared, part.vector)
    own = {name: values.astype(float) for name, values in part.private.tensors.items()}
    rows = own["own_embedding"] + shared.tensors["item_embedding"]
    expected = np.einsum("uid,ud->ui", rows, own["user_embedding"]) + own["user_bias"][:, None]
    ((_, found),) = learner.local.score_blocks(shared, users, part.private)
    assert found.numpy() == pytest.approx(expected, abs=1e-5)


def test_nothing_is_learned_together_without_a_shared_table(users):
    learner = learner_of(tables="private")
    assert learner.server.layout.tensors == ()
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    part = learner.contribute("train", 2, shared, users, private)
    alone = users.select(np.array([4]))
    own = learner.contribute("train", 2, shared, alone, learner.local.initial_private(alone))
    for name, values in own.private.tensors.items():
        assert np.array_equal(values[0], part.private.tensors[name][4])
    after = learner.server.apply("train", 2, shared, part.vector)
    assert np.array_equal(after.tensors["item_embedding"], shared.tensors["item_embedding"])


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ({"weight_decay": 0.25}, "algorithm.weight_decay"),
        ({"tables": "shared", "difference_weight": 0.2}, "algorithm.difference_weight"),
        ({"tables": "private", "sparsity": "l2"}, "algorithm.sparsity"),
        ({"tables": "private", "schedule": "fixed"}, "algorithm.schedule"),
        ({"tables": "private", "noise_where": "grad"}, "algorithm.noise_where"),
        ({"noise_multiplier": 2.0}, "algorithm.noise_multiplier"),
        ({"sparsity": "none", "sparsity_weight": 0.2}, "algorithm.sparsity_weight"),
        ({"tables": "shared", "sparsity": "none", "schedule": "sin"}, "algorithm.schedule"),
        ({"difference_weight": 0, "sparsity_weight": 0, "schedule": "fixed"}, "algorithm.schedule"),
    ],
)
def test_settings_without_a_meaning_are_refused(algorithm, key):
    (problem,) = check_plan(plan_of(**algorithm))
    assert problem.startswith(key)


def test_low_rank_updates_and_noise_are_refused():
    (problem,) = check_plan(plan_of({"structure": "colr", "rank": 2}))
    assert "tables of their own" in problem
    assert problem.endswith('Set algorithm.tables = "shared", or update.structure = "dense".')
    (problem,) = check_plan(plan_of({"structure": "topk"}, tables="shared"))
    assert "lose the decay" in problem
    (problem,) = check_plan(
        plan_of({"structure": "colr", "rank": 2}, tables="shared", noise_where="upload")
    )
    assert 'algorithm.noise_where is "upload"' in problem
    assert check_plan(plan_of({"structure": "colr", "rank": 2}, tables="shared")) == []
    noisy = Plan.model_validate(
        plan_of().model_dump() | {"privacy": {"mechanism": "gaussian"}, "rounds": {"total": 3}}
    )
    assert any("shrink" in problem for problem in check_plan(noisy))


def test_a_run_that_diverges_names_what_to_lower(users):
    learner = learner_of(difference_weight=1000.0, schedule="fixed", local_epochs=100)
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    with pytest.raises(TrainingError, match="in training round 1 with 12 users") as raised:
        learner.contribute("train", 2, shared, users, private)
    assert "algorithm.difference_weight" in raised.value.remedy


def test_a_history_is_folded_into_a_head_where_there_is_one_table(users):
    learner = learner_of(tables="shared")
    items = learner.server.initial_shared().tensors["item_embedding"]
    scores = items @ learner.server.algorithm.fold_in(items, np.array([3]))
    assert scores[3] > np.delete(scores, 3).mean()
    with pytest.raises(SettingsError, match="client"):
        learner_of().server.algorithm.fold_in(items, np.array([3, 8]))


def test_noise_in_the_gradient_has_its_size_on_every_row(users):
    """One step of every user: a value's sum over 12 users has deviation rate z tau sqrt(12)."""
    plain = {"local_epochs": 1, "batch_size": 1000, "weight_decay": 0.0, "dim": 16}
    noisy = plain | {"noise_where": "grad", "noise_clip": 0.5, "noise_multiplier": 0.4}
    changes = []
    for settings in (plain, noisy, noisy):
        learner = learner_of(**settings)
        shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
        part = learner.contribute("train", 2, shared, users, private)
        step = learner.server.layout.tensors[0].step
        changes.append(learner.server.layout.changes_of(part.vector)["item_embedding"] * step)
    exact, one, other = changes
    assert not np.array_equal(one, other)
    for found in (one - other) / math.sqrt(2), one - exact:
        assert (found != 0).all()
        assert found.std() == pytest.approx(4.0 * 0.4 * 0.5 * math.sqrt(12), rel=0.15)


def test_noise_on_uploads_clips_the_whole_change(users):
    """Without noise to speak of, 12 users' changes together are no longer than 12 clips."""
    learner = learner_of(noise_where="upload", noise_clip=1e-3, noise_multiplier=1e-6)
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    part = learner.contribute("train", 2, shared, users, private)
    step = learner.server.layout.tensors[0].step
    change = learner.server.layout.changes_of(part.vector)["item_embedding"] * step
    assert 1e-3 < np.linalg.norm(change) <= 12e-3
    # Own tables are no other user's, and move as they would; noise needs the trainer.
    plan = plan_of().model_copy(update={"training": TrainingSettings(accelerated=False)})
    exact = Learner(plan, N_ITEMS, device="cpu").contribute("train", 2, shared, users, private)
    for name, values in exact.private.tensors.items():
        assert np.array_equal(part.private.tensors[name], values), name


def test_what_noise_is_worth():
    """By hand: z = 1 costs rho = 2 a release, and 2 + 2 sqrt(2 ln 10^5) = 11.597."""
    assert accounted_epsilon(1.0, 1, 1e-5) == pytest.approx(11.597, abs=1e-3)
    assert accounted_epsilon(2.0, 4, 1e-5) == accounted_epsilon(1.0, 1, 1e-5)
    settings = FedRAPSettings(noise_where="grad", local_epochs=10)
    at = Circumstances(
        settings=settings, update=UpdateSettings(), n_items=1682, n_rounds=100,
        minimum_item_users=1, minimum_clients=3,
    )  # fmt: skip
    worth, costs = FedRAP.about.advice.warnings(at)
    assert f"epsilon {accounted_epsilon(1.0, 1000, 1e-5):,.0f} at delta 1e-05" in worth
    assert "53,824 random numbers" in costs


def test_a_subspace_in_which_decay_overshoots_is_said():
    """By hand: 200 x .002 x sqrt(32 / 4) = 1.13."""
    at = Circumstances(
        settings=FedRAPSettings(tables="shared", weight_decay=0.002),
        update=UpdateSettings(structure="colr", rank=4), n_items=1682, n_rounds=100,
        minimum_item_users=1, minimum_clients=3,
    )  # fmt: skip
    (text,) = FedRAP.about.advice.warnings(at)
    assert "2.82843 times as fast" in text
    wider = replace(at, update=UpdateSettings(structure="colr", rank=8))
    assert FedRAP.about.advice.warnings(wider) == []
