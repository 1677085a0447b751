"""PLGC: the specification's worked numbers, what it declares, and what is refused."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from world.plans import check_plan

from fedrec.algorithms import ALGORITHMS
from fedrec.algorithms.batch import (
    Batch,
    Values,
    alignment_and_uniformity,
    contrast,
    decorrelation,
    normalised,
)
from fedrec.algorithms.plgc import redundancy
from fedrec.data import generate, leave_one_out
from fedrec.errors import RefusedError, SettingsError
from fedrec.plan.algorithm import algorithm_of, algorithm_warnings
from fedrec.plan.exposure import check_users, exposure_of
from fedrec.plan.layout import training_modules
from fedrec.plan.schema import Plan, PrivacySettings
from fedrec.training.learner import Learner

C = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
G = torch.tensor([[[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]], dtype=torch.float64)
THREE = torch.ones((1, 3), dtype=torch.float64)


def plan_of(base="fedmf", structure="dense", rounds=None, protection=None, **algorithm):
    inner = {"name": base, "dim": 2} if isinstance(base, str) else base
    return Plan.model_validate(
        {
            "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
            "algorithm": {"name": "plgc", "base": inner, **algorithm},
            "update": {"structure": structure},
            "rounds": rounds or {},
            "protection": protection or {},
        }
    )


def test_the_mixture_of_the_specification():
    """tr 4 and 3, so that C's share is 4/7; rows 1 and 3 of Q."""
    algorithm = algorithm_of(plan_of(), 3)
    squares = {
        "own_item_embedding": C.square().sum((1, 2)),
        "item_embedding": G.square().sum((1, 2)),
    }
    assert [float(value) for value in squares.values()] == [4.0, 3.0]
    shares = algorithm.per_epoch(squares.__getitem__)
    assert float(shares["lambda_own_item_embedding"]) == pytest.approx(0.571429, abs=1e-6)
    v = Values({"own_item_embedding": C, "item_embedding": G, **shares})
    mixed = algorithm.seen(v).item_embedding[0]
    assert mixed[0].tolist() == pytest.approx([1.0, 0.428571], abs=1e-6)
    assert mixed[2].tolist() == pytest.approx([0.571429, 0.571429], abs=1e-6)
    # The base reads its own names; nothing else of v is touched.
    assert v.item_embedding is G


def test_redundancy_of_the_specification():
    """H = [[.707107, .5], [0, .5]]: .167893 on the diagonal, gamma x .125 off it."""
    assert float(redundancy(C, G, THREE, 0.0)) == pytest.approx(0.167893, abs=1e-6)
    assert float(redundancy(C, G, THREE, 0.01)) == pytest.approx(0.169143, abs=1e-6)


def test_two_tables_alike_are_only_redundant_off_the_diagonal():
    """C = G: H_ii = 1, and H_12 = 1/2 between columns (1, 0, 1) and (0, 1, 1)."""
    assert float(redundancy(C, C, THREE, 0.0)) == pytest.approx(0.0, abs=1e-12)
    assert float(redundancy(C, C, THREE, 1.0)) == pytest.approx(0.25, abs=1e-6)


TERMS = {
    "err": lambda c, g, there: redundancy(c, g, there, 0.3),
    "au": lambda c, g, there: alignment_and_uniformity(c, g, there, 0.3),
    "duorec": lambda c, g, there: contrast(c, g, there, 0.3),
    "feddecorr": lambda c, g, there: decorrelation(c, there),
}


@pytest.mark.parametrize("name", TERMS)
def test_rows_that_are_not_there_have_no_say_and_no_gradient(name):
    nothing = torch.full((1, 2, 2), 7.0, dtype=torch.float64)
    there = torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    longer = torch.cat([C, nothing], 1).requires_grad_()
    found = TERMS[name](longer, torch.cat([G, -nothing], 1), there)
    assert float(found.detach()) == pytest.approx(float(TERMS[name](C, G, THREE)), rel=1e-12)
    (gradient,) = torch.autograd.grad(found.sum(), longer)
    assert gradient[0, :3].any()
    assert not gradient[0, 3:].any()


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("n_rows", [0, 1])
def test_fewer_than_two_rows_have_no_regulariser(name, n_rows):
    there = (torch.arange(3) < n_rows).to(torch.float64)[None]
    rows = (C * there[:, :, None]).requires_grad_()
    found = TERMS[name](rows, G * there[:, :, None], there)
    assert float(found.detach()) == 0.0
    (gradient,) = torch.autograd.grad(found.sum(), rows)
    assert gradient.isfinite().all()
    assert not gradient.any()


def test_alternatives_by_hand():
    """Two rows at right angles, the version theirs swapped: cosines are 0 or 1."""
    c = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]], dtype=torch.float64)
    g, two = c.flip(1), torch.ones((1, 2), dtype=torch.float64)
    # |c_i - g_i|^2 = 2; exp(-2 x 2) for both pairs, whose logarithm is -4.
    assert float(alignment_and_uniformity(c, g, two, 0.5)) == pytest.approx(2.0 - 0.5 * 4.0)
    # The right one has cosine 0, as has the other own row; the other version row has 1.
    expected = np.log(np.exp(0) + np.exp(0) + np.exp(2.0))
    assert float(contrast(c, g, two, 0.5)) == pytest.approx(expected)
    # Columns (2, 0) and (0, 3) are correlated by -1: all four entries of K are 1 or -1, but for
    # the small number beside the variances 1 and 2.25.
    small = [1.0 / (1.0 + 1e-5), 2.25 / (2.25 + 1e-5)]
    squares = small[0] ** 2 + 2 * small[0] * small[1] + small[1] ** 2
    assert float(decorrelation(c, two)) == pytest.approx(squares / 4)
    assert normalised(c, two)[0, 0].tolist() == pytest.approx([1.0, -1.0], rel=1e-4)


def test_a_row_counts_once_for_the_regulariser_however_many_samples_it_has():
    """One dimension, own rows 2 and 1, the version's 1 and 1, of 1 and 3 of 4 samples."""
    algorithm = algorithm_of(plan_of({"name": "fedmf", "dim": 1, "regularisation": 0.0},
                                     projector=False), 2)  # fmt: skip
    own = torch.tensor([[[2.0], [1.0]]], dtype=torch.float64).requires_grad_()
    version = torch.ones((1, 2, 1), dtype=torch.float64)
    tensors = {"own_item_embedding": own, "item_embedding": version}
    v = algorithm.seen(Values(tensors | {"lambda_own_item_embedding": version[:, 0, 0]}))
    batch = Batch(label=torch.ones((1, 2)), weight=torch.tensor([[0.25, 0.75]]))
    joint = algorithm.joint(v, batch)
    # H = 3 / sqrt(10): .5 (1 - H)^2.
    h = 3 / np.sqrt(10)
    assert float(joint.detach()) == pytest.approx(0.5 * (1 - h) ** 2)
    (gradient,) = torch.autograd.grad(joint.sum(), own)
    # dH/dc = (1 - H c_i / (|c| |g|) x |g|) / (|c| |g|): c = (2, 1), |c| = sqrt 5, |g| = sqrt 2.
    by_hand = [-(1 - h) * (1 / np.sqrt(10) - h * c / 5) for c in (2.0, 1.0)]
    assert gradient[0, :, 0].tolist() == pytest.approx(by_hand)


def test_at_the_first_participation_everything_is_the_version():
    """A round with steps too small to see: own tables and scores are those of the version."""
    tiny = 1e-30
    base = {"name": "fedmf", "dim": 4, "learning_rate": tiny, "local_epochs": 1}
    data = generate(n_users=9, n_items=20, n_clusters=2, interactions_per_user=6, seed=3)
    users = leave_one_out(data.interactions, data.catalogue)
    plan = plan_of(base, projector_rate=tiny, upload="table")
    learner = Learner(plan, 20, device="cpu")
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    first = private.tensors["user_embedding"] @ shared.tensors["item_embedding"].T
    np.testing.assert_allclose(private.tensors["personal_scores"], first, rtol=1e-4, atol=1e-6)
    moved = shared.with_tensors(item_embedding=2.0 * shared.tensors["item_embedding"])
    some = np.arange(len(users)) % 3 > 0
    part = learner.contribute("train", 5, moved, users, private, some)
    own = part.private.tensors["own_item_embedding"]
    wanted = moved.tensors["item_embedding"].astype(np.float32)
    assert all(np.array_equal(table, wanted) for table in own[some])
    assert not own[~some].any()
    assert part.private.tensors["begun"].tolist() == some.tolist()
    scores = part.private.tensors["personal_scores"]
    np.testing.assert_allclose(scores[some], 2.0 * first[some], rtol=1e-4, atol=1e-6)
    # Who never took part is scored with the first version.
    assert np.array_equal(scores[~some], private.tensors["personal_scores"][~some])


@pytest.mark.parametrize("base", ["fedmf", "pfedrec", "fedncf"])
def test_what_is_sent_is_the_bases_shared_part(base):
    plan = plan_of(base)
    assert check_plan(plan) == []
    algorithm = algorithm_of(plan, 30)
    assert set(algorithm.own_tables) == {"item_embedding"}
    sent = {tensor.name: tensor for tensor in algorithm.tensors}
    inner = {tensor.name for tensor in algorithm.base.tensors} - {"users"}
    assert set(sent) == inner | {"samples"}
    assert sent["item_embedding"].largest_weight == 4096
    private = {entry.name for entry in algorithm.parameters if entry.private}
    assert "own_item_embedding" in private
    assert not private & set(sent)
    assert not algorithm.derived.counts_rows
    assert (algorithm.base.settings.local_epochs, algorithm.settings.batch_size) == (10, 2048)


def test_both_steps_of_a_base_have_the_mixture_and_the_second_moves_the_own_table():
    phases = algorithm_of(plan_of("pfedrec"), 30).phases({})
    (head,), (rows,) = phases[0].steps
    assert set(head.rates) == {"user_embedding", "user_bias"}
    assert rows.rates["own_item_embedding"] == pytest.approx(0.1 * 30 * 80)
    assert "item_embedding" not in rows.rates
    assert rows.rates["own_item_embedding_predictor"] == 0.1
    assert (rows.factor, phases[0].epochs) == (0.95, 10)


def test_nothing_of_the_networks_is_made_where_they_have_no_use():
    for own in ({"weight": 0.0}, {"projector": False}, {"regulariser": "au"}):
        names = {entry.name for entry in algorithm_of(plan_of(**own), 30).parameters}
        assert not any("projector" in name for name in names)
    only = algorithm_of(plan_of(mixing=False), 30)
    assert only.per_epoch({}.__getitem__) == {}
    assert not any(entry.copy_flag for entry in only.parameters)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"structure": "colr"}, "a round's low rank"),
        ({"rounds": {"user_fraction": 0.5}}, 'the alternative is "table"'),
        ({"rounds": {"cells_per_round": 3}}, "cells_per_round is 3"),
        ({"weight": 0.0, "mixing": False}, "leaves nothing of PLGC"),
        ({"base": {"name": "fedmf", "batch_size": 1}}, "algorithm.base.batch_size is 1"),
        ({"base": {"name": "pfedrec", "personal_items": False}}, "personal_items is false"),
        (
            {"base": {"name": "fedncf", "aggregation": "plain", "weight_decay": 0.1}},
            r"algorithm\.base\.weight_decay",
        ),
        ({"base": {"name": "pfedclr"}}, "several phases"),
        ({"base": {"name": "fedrecgel"}}, "sends gradients"),
        ({"temperature": 0.5}, 'only if algorithm.regulariser is "duorec"'),
        ({"regulariser": "duorec", "off_weight": 0.1}, "algorithm.off_weight is set"),
        ({"regulariser": "au", "projector": False}, "algorithm.projector is set"),
        ({"projector": False, "projector_rate": 0.2}, "algorithm.projector is true"),
        ({"weight": 0.0, "regulariser": "au"}, "only if algorithm.weight is above 0"),
        ({"base": {"name": "fedrap"}, "rate_factor": 0.9}, "steps of fedrap use Adam"),
        (
            {"base": {"name": "fedncf", "optimiser": "adam"}, "rate_factor": 0.9},
            "algorithm.rate_factor is set",
        ),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(changes, words):
    (problem,) = check_plan(plan_of(**changes))
    assert words.replace("\\", "") in problem


@pytest.mark.parametrize(
    "changes",
    [
        {"upload": "table", "rounds": {"user_fraction": 0.5}},
        {"mixing": False, "rounds": {"user_fraction": 0.5}},
        {"weight": 0.0, "base": {"name": "fedmf", "batch_size": 1}},
        {"regulariser": "duorec", "temperature": 0.5, "rate_factor": 0.9},
        {"regulariser": "au", "off_weight": 0.1},
        {"projector": False, "off_weight": 0.1},
    ],
)
def test_what_means_something_is_taken(changes):
    assert check_plan(plan_of(**changes)) == []


@pytest.mark.parametrize("base", ["fedals", "ease", "plgc"])
def test_bases_without_a_loss_are_refused(base):
    with pytest.raises(ValidationError, match=f"{base} has no loss of its own"):
        plan_of({"name": base})


@pytest.mark.parametrize("base", ["cofedrec", "pfedgraph"])
def test_a_table_that_is_received_as_the_own_one_is_not_mixed(base):
    with pytest.raises(ValidationError, match=f"{base} makes a model for each user"):
        plan_of({"name": base})


@pytest.mark.parametrize(
    ("base", "received"),
    [("gpfedrec", "smoothed_item_embedding"), ("perfedrec", "cluster_item_embedding")],
)
def test_around_a_server_that_makes_models_all_the_server_sees_is_the_bases(base, received):
    plan = plan_of({"name": base}, protection={"name": "none"})
    assert check_plan(plan) == []
    algorithm, about = algorithm_of(plan, 30), ALGORITHMS[base].about
    assert {entry.name for entry in algorithm.parameters if entry.received} == {received}
    assert [t.name for t in algorithm.tensors] == [t.name for t in algorithm.base.tensors]
    assert exposure_of(plan) == about.exposes.in_the_clear
    assert set(about.modules) <= set(training_modules(plan))
    (refused,) = check_plan(plan_of({"name": base}, protection={"name": "bfv"}))
    assert about.supports.reason in refused and 'protection.name = "none"' in refused
    (unused,) = check_plan(plan_of({"name": base}, protection={"name": "none"}, upload="table"))
    assert "algorithm.upload is set" in unused
    with pytest.raises(RefusedError, match="a client is one user"):
        check_users(plan, 2)


def test_noise_is_refused_over_every_base():
    for base in ("fedmf", "fedncf", "pfedrec", "fedrap"):
        noisy = plan_of(base).model_copy(
            update={"privacy": PrivacySettings(mechanism="gaussian", epsilon=8.0)}
        )
        (problem,) = [line for line in check_plan(noisy) if "cannot be trained" in line]
        assert "weighted by numbers of training items" in problem


def test_warnings_of_the_base_are_heard():
    (warning,) = algorithm_warnings(plan_of("pfedrec"))
    assert "update.clip" in warning
    adam = {"name": "fedncf", "optimiser": "adam", "learning_rate": 0.1}
    (warning,) = algorithm_warnings(plan_of(adam))
    assert warning.startswith("algorithm.base.learning_rate is 0.1.")


@pytest.mark.parametrize("changes", [{}, {"weight": 0.5}, {"regulariser": "au"}])
def test_a_problem_of_the_base_is_told_once_with_the_settings_as_written(changes):
    plan = plan_of({"name": "gpfedrec", "pull": 4.5}, protection={"name": "none"}, **changes)
    (sentence,) = check_plan(plan)
    assert sentence.startswith("algorithm.base.pull is 4.5,")
    assert sentence.endswith("algorithm.base.item_rate_scale or algorithm.base.learning_rate.")


def test_a_new_user_is_scored_with_the_published_table():
    algorithm = algorithm_of(plan_of("fedmf"), 3)
    serving = {"item_embedding": np.array([[1, 0], [0, 2], [1, 1]], dtype=np.float32)}
    found = algorithm.preferences(serving, {"user_embedding": np.array([3, 1], dtype=np.float32)})
    assert found.tolist() == [3, 2, 4]
    with pytest.raises(SettingsError):
        algorithm_of(plan_of("fedncf"), 3).fold_in(np.ones((3, 2)), np.array([0]))
