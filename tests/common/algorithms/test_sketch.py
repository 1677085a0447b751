"""sketch against numbers derived by hand, against a plain form, and against EASE."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance.histories import counted, split_of, versions
from reference.plain_ease import interactions_of, plain_ease
from reference.plain_sketch import plain_joined, plain_orth, plain_sum, plain_weights

from fedrec.algorithms.declarations import GRADES
from fedrec.algorithms.sketch import Candidate
from fedrec.algorithms.sketched_weights import (
    drawn_directions,
    joined,
    low_rank,
    orthonormal,
    weights_of,
)
from fedrec.data import generate, leave_one_out
from fedrec.errors import SettingsError, VersionMismatch
from fedrec.evaluation.metrics import MetricSums
from fedrec.plan.algorithm import algorithm_warnings
from fedrec.plan.combinations import find_conflicts
from fedrec.plan.layout import Layout, vector_spec
from fedrec.plan.schema import Plan
from fedrec.protection import PROTECTIONS
from fedrec.recommender import ModelFile, Recommender
from fedrec.settings.schema import Settings
from fedrec.training.evaluator import Evaluator
from fedrec.training.learner import Learner
from fedrec_lab.simulation.runner import simulate


def plan_of(n_rounds=3, minimum_item_users=1, **sections):
    values = {
        "federation": {"maximum_users": 1024, "minimum_item_users": minimum_item_users},
        "algorithm": {"name": "sketch", "dim": 4, "regularisation": 1.0, "form": "plain"},
        "update": {"structure": "dense"},
        "rounds": {"total": n_rounds},
    }
    for section, change in sections.items():
        values[section] = {**values.get(section, {}), **change}
    return Plan.model_validate(values)


def scores_of(learner, shared, users):
    blocks = learner.local.score_blocks(shared, users, learner.local.initial_private(users))
    return np.concatenate([scores.numpy() for _, scores in blocks])


HISTORIES = ([0, 1], [0, 1], [0, 2])


def test_three_users_and_four_items_by_hand():
    """More directions than items: G ~ T T^T is G itself, and the model is that of EASE.

    G + I of items 0, 1, 2 is [[4, 2, 1], [2, 3, 0], [1, 0, 2]] with the determinant 13, and its
    inverse [[6, -4, -3], [-4, 7, 2], [-3, 2, 8]] / 13: B is [[0, 4/7, 3/8], [4/6, 0, -2/8],
    [3/6, -2/7, 0]]. No user holds item 3.
    """
    learner = Learner(plan_of(2), 4, device="cpu")
    users = split_of(HISTORIES)
    counted, first, last = versions(learner, [users])
    assert counted.kept["product"].size == counted.kept["before"].size == 0
    gram = np.array([[3, 2, 1], [2, 2, 0], [1, 0, 1]])
    drawn = drawn_directions(learner.server.plan.federation.seed, np.arange(3), 4)
    step = learner.server.layout.tensors[0].step
    assert first.kept["product"].reshape(3, 4) == pytest.approx(gram @ drawn, abs=2 * step)
    assert np.array_equal(last.kept["before"], first.kept["product"])
    along = orthonormal(first.kept["product"].reshape(3, 4))
    assert last.kept["product"].reshape(3, 4) == pytest.approx(gram @ along, abs=step)
    assert last.tensors["item_users"].tolist() == [3, 2, 1, 0]
    # The third user holds 0 and 2.
    found = scores_of(learner, last, users)[2]
    assert found.tolist() == pytest.approx([1 / 2, 4 / 7 - 2 / 7, 3 / 8, -np.inf], abs=2e-3)
    # Before there is a sum the counts decide: shares of all six interactions.
    before = scores_of(learner, counted, users)[2]
    assert before.tolist() == pytest.approx([3 / 6, 2 / 6, 1 / 6, -np.inf])


def test_weights_of_two_items_by_hand():
    """T = (1, 1), lambda = 1; P is [[2/3, -1/3], [-1/3, 2/3]]."""
    low, holders = np.ones((2, 1)), np.array([3.0, 2.0])
    plain = weights_of(low, holders, 1.0, "plain")
    both = (plain.factor @ plain.factor.T) * plain.scale
    assert both[0, 1] == pytest.approx(1 / 2) and both[1, 0] == pytest.approx(1 / 2)
    assert np.diag(both) + plain.own == pytest.approx([0.0, 0.0])
    # d = c - 1 = (2, 1), D = (3, 2), M = 6/11: P_12 = -1/11, P_11 = 3/11, P_22 = 4/11.
    diag = weights_of(low, holders, 1.0, "diag")
    both = (diag.factor @ diag.factor.T) * diag.scale
    assert both[0, 1] == pytest.approx(1 / 4) and both[1, 0] == pytest.approx(1 / 3)
    assert np.diag(both) + diag.own == pytest.approx([0.0, 0.0])
    # D = (3, 2) + (3, 2) = (6, 4), M = 12/17: P_12 = -1/34, P_11 = 5/34, P_22 = 7/34.
    edlae = weights_of(low, holders, 1.0, "edlae")
    both = (edlae.factor @ edlae.factor.T) * edlae.scale
    assert both[0, 1] == pytest.approx(1 / 7) and both[1, 0] == pytest.approx(1 / 5)
    assert np.diag(both) + edlae.own == pytest.approx([0.0, 0.0])


def test_low_rank_by_hand():
    """G = diag(4, 1) along its first axis: Y = (4, 0), C = 4, T = (2, 0)."""
    along, total = np.array([[1.0], [0.0]]), np.array([[4.0], [0.0]])
    found = low_rank(along, total, deviation=0.0, drawn=False)
    assert np.abs(found) == pytest.approx(np.array([[2.0], [0.0]]), abs=1e-7)
    # Rounding could be all there is of it: 4 < 2 sigma sqrt(k).
    assert not low_rank(along, total, deviation=2.1, drawn=False).any()


def test_columns_that_say_nothing_are_zero():
    total = np.array([[1.0, 2.0, 0.0], [0.0, 0.0, -3.0]])
    found = orthonormal(total)
    assert np.abs(found[:, :2]) == pytest.approx(np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert not orthonormal(np.zeros((3, 2))).any()
    # Signs follow from the sum: the diagonal of R is positive.
    assert (np.diag(orthonormal(np.array([[-2.0, 0.0], [0.0, 3.0]]))) == [-1.0, 1.0]).all()


@pytest.fixture(scope="module")
def data():
    return generate(n_users=150, n_items=80, n_clusters=5, interactions_per_user=14, seed=4)


@pytest.fixture(scope="module")
def users(data):
    return leave_one_out(data.interactions, data.catalogue)


@pytest.fixture(scope="module")
def histories(users):
    return [users.train_of(row) for row in range(len(users))]


@pytest.mark.parametrize("sums", [1, 2, 3])
@pytest.mark.parametrize("form", ["plain", "diag", "edlae"])
def test_it_equals_its_plain_form(users, histories, sums, form):
    plan = plan_of(sums, algorithm={"dim": 12, "sums": sums, "form": form, "regularisation": 5.0})
    learner = Learner(plan, 80, device="cpu")
    dealt = np.random.default_rng(0).permutation(len(users))
    parties = [users.select(rows) for rows in np.array_split(dealt, 3)]
    last = list(versions(learner, parties))[-1]
    directions = drawn_directions(plan.federation.seed, np.arange(80), 12)
    total = plain_sum(histories, directions)
    for _ in range(sums - 1):
        directions = plain_orth(total)
        total = plain_sum(histories, directions)
    # 150 users, half a step each; from the second on steps are a quarter as large.
    step = learner.server.layout.tensors[0].step / (1 if sums == 1 else 4)
    off = np.abs(last.kept["product"].reshape(80, 12) - total).max()
    assert off < 150 * step / 2
    holders = np.bincount(np.concatenate(histories), minlength=80).astype(float)
    wanted = plain_weights(directions, total, holders, 5.0, form)
    own = interactions_of([users.train_of(row) for row in range(20)], 80) @ wanted
    found = scores_of(learner, last, users.select(np.arange(20)))
    assert found == pytest.approx(own, abs=5e-3)


@pytest.mark.parametrize("form", ["plain", "diag", "edlae"])
def test_the_mathematics_in_float64(histories, form):
    """The same formulas from exact sums: to the last digits, and without an n x n matrix."""
    along = plain_orth(plain_sum(histories, drawn_directions(3, np.arange(80), 20)))
    total = plain_sum(histories, along)
    holders = np.bincount(np.concatenate(histories), minlength=80).astype(float)
    assert orthonormal(along) == pytest.approx(along, abs=1e-12)
    low = low_rank(along, total, deviation=0.0, drawn=False)
    found = weights_of(low, holders, 5.0, form)
    dense = (found.factor @ found.factor.T) * found.scale + np.diag(found.own)
    wanted = plain_weights(along, total, holders, 5.0, form)
    assert np.linalg.norm(dense - wanted) < 1e-9 * np.linalg.norm(wanted)


@pytest.mark.parametrize("dim", [20, 60])
def test_both_sums_in_float64(histories, dim):
    """Along 2 x 20 directions, and along 2 x 60 of which 80 are independent: that is EASE."""
    drawn = drawn_directions(3, np.arange(80), dim)
    first = plain_sum(histories, drawn)
    along = orthonormal(first)
    second = plain_sum(histories, along)
    found, total = joined(drawn, first, along, second)
    assert found.shape == (80, min(2 * dim, 80))
    assert found.T @ found == pytest.approx(np.eye(len(found.T)), abs=1e-9)
    assert total == pytest.approx(plain_sum(histories, found), abs=1e-8)
    holders = np.bincount(np.concatenate(histories), minlength=80).astype(float)
    model = weights_of(low_rank(found, total, deviation=0.0, drawn=False), holders, 5.0, "diag")
    dense = (model.factor @ model.factor.T) * model.scale + np.diag(model.own)
    wanted = plain_weights(*plain_joined(drawn, first, along, second), holders, 5.0, "diag")
    assert np.linalg.norm(dense - wanted) < 1e-7 * np.linalg.norm(wanted)
    if dim == 60:
        ease = plain_ease(interactions_of(histories, 80), 5.0)
        assert np.linalg.norm(dense - ease) < 1e-6 * np.linalg.norm(ease)


@pytest.mark.parametrize(("dim", "directions", "beta"), [(80, 80, 0), (60, 120, 0), (60, 120, 0.2)])
def test_with_all_directions_it_is_ease(users, histories, dim, directions, beta):
    """As many as items, or fewer and both sums. The grid rounds."""
    plan = plan_of(2, algorithm={"dim": dim, "regularisation": 5.0})
    learner = Learner(plan, 80, device="cpu")
    ways = learner.server.algorithm.ways
    wanted = Candidate(dim=directions, regularisation=30.0, form="plain", exponent=beta)
    place = ways.index(wanted)
    last = list(versions(learner, [users]))[-1].with_tensors(choice=np.asarray(float(place)))
    matrix = interactions_of(histories, 80)
    found = scores_of(learner, last, users)
    pushed = (matrix.sum(0) / matrix.sum(0).mean()) ** -beta
    assert found == pytest.approx(matrix @ plain_ease(matrix, 30.0) * pushed, abs=2e-2)


@pytest.mark.slow
def test_the_choice_is_the_best_candidate_on_validation(users):
    plan = plan_of(4, algorithm={"dim": 12})
    learner = Learner(plan, 80, device="cpu")
    counted, _, summed, chosen, idle = versions(learner, [users])
    private = learner.local.initial_private(users)
    graded = learner.server.algorithm.graded
    candidates = list(learner.server.algorithm.candidates(summed))
    # Seven lambdas, three forms, and the settings' own lambda of 1. With both sums, two exponents.
    assert len(candidates) == len(graded) == 22 + 42
    measured = [
        MetricSums(
            Evaluator(learner.local).measure(one, users, private, references=False, number=4)
        ).sum_of("model.validation.gain")
        for one in candidates
    ]
    assert len(set(measured)) > 3
    assert float(chosen.kept["choice"]) == graded[measured.index(max(measured))]
    part = learner.contribute("train", 4, summed, users, private)
    assert learner.server.travelling.unpack("train", summed, part.vector).changes[
        GRADES
    ].tolist() == (measured)
    assert np.array_equal(
        scores_of(learner, chosen, users),
        scores_of(learner, candidates[measured.index(max(measured))], users),
    )
    # Nothing is left to do.
    assert idle.canonical_bytes() == replace(chosen, trained=4).canonical_bytes()
    assert not list(learner.server.algorithm.candidates(counted))
    assert not list(learner.server.algorithm.candidates(chosen))


@pytest.mark.parametrize(
    ("choice", "way"),
    [(1, (4, 30.0, "plain")), (10, (4, 3000.0, "diag")), (30, (1, 3000.0, "diag"))],
)
def test_earlier_models_keep_their_choice(choice, way):
    """Of 31 candidates: 4, 2 and 1 directions, five lambdas, two forms, and the settings."""
    algorithm = Learner(plan_of(3), 4, device="cpu").server.algorithm
    shared = Learner(plan_of(3), 4, device="cpu").server.initial_shared()
    found = algorithm.chosen(shared.with_tensors(choice=np.asarray(float(choice))))
    assert (found.dim, found.regularisation, found.form) == way


def test_a_newer_releases_candidate_is_refused():
    learner = Learner(plan_of(3), 4, device="cpu")
    algorithm, shared = learner.server.algorithm, learner.server.initial_shared()
    newer = shared.with_tensors(choice=np.asarray(float(len(algorithm.ways))))
    with pytest.raises(VersionMismatch, match="made by a newer fedrec") as refused:
        algorithm.chosen(newer)
    assert refused.value.remedy == "Install the fedrec that wrote it, or a newer one."


def test_settings_win_where_no_user_has_a_validation_item():
    learner = Learner(plan_of(3), 4, device="cpu")
    *_, chosen = versions(learner, [split_of(HISTORIES)])
    assert float(chosen.kept["choice"]) == 0.0
    own = learner.server.algorithm.chosen(chosen)
    assert (own.dim, own.regularisation, own.form) == (4, 1.0, "plain")


def test_rounds_after_the_last_sum_of_a_plan_that_does_not_grade():
    """An audit trains for as many rounds as it is asked for."""
    learner, users = Learner(plan_of(2), 4, device="cpu"), split_of(HISTORIES)
    *_, last = versions(learner, [users])
    private = learner.local.initial_private(users)
    part = learner.contribute("train", 4, last, users, private)
    after = learner.server.apply("train", 4, last, part.vector)
    assert after.canonical_bytes() == replace(last, trained=3).canonical_bytes()


@pytest.mark.slow
def test_a_simulation_publishes_its_choice_and_serves_histories(data, users, tmp_path):
    plan = plan_of(3, algorithm={"dim": 12}, federation={"minimum_item_users": 2})
    settings = Settings.model_validate(plan.model_dump() | {"client": {"device": "cpu"}})
    result = simulate(settings, users=users, catalogue=data.catalogue)
    assert float(result.last.shared.kept["choice"]) >= 0
    # Round 5 measured what round 4 chose; the version before it is the best, or as good.
    assert result.best.round in (3, 4)
    learner = Learner(plan, 80, device="cpu")
    model = ModelFile(
        plan=plan,
        catalogue_fingerprint=data.catalogue.fingerprint(),
        round=result.last.round,
        shared=result.last.shared,
    )
    Recommender(model, data.catalogue).save(tmp_path)
    recommender = Recommender.load(tmp_path)
    history = [data.catalogue.item_ids[row] for row in users.train_of(5)]
    vector = recommender.fold_in(history)
    ids, scores = recommender.recommend_vector(vector, 80)
    wanted = scores_of(learner, result.last.shared, users.select(np.array([5])))[0]
    for item, score in zip(ids, scores, strict=True):
        assert score == pytest.approx(wanted[data.catalogue.rows_of([item])[0]], abs=1e-5)
    near, _ = recommender.similar_items(history[0], 3)
    assert len(near) == 3 and history[0] not in near


def test_values_of_long_histories_are_clipped_and_counted():
    plan = plan_of(2, algorithm={"longest_history": 1})
    learner = Learner(plan, 64, device="cpu")
    users = split_of([list(range(64))])
    shared, private = counted(learner, users)
    part = learner.contribute("train", 2, shared, users, private)
    own = drawn_directions(plan.federation.seed, np.arange(64), 4).sum(0)
    assert part.n_clipped == 64 * int((np.abs(own) > 4.0).sum()) > 0
    sums = learner.server.travelling.unpack("train", shared, part.vector).changes["product"]
    assert np.abs(sums).max() == 1 << 18


def test_the_model_does_not_depend_on_threads(histories):
    before, found = torch.get_num_threads(), []
    total = plain_sum(histories, drawn_directions(3, np.arange(80), 20))
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            along = orthonormal(total)
            low = low_rank(along, plain_sum(histories, along), deviation=0.0, drawn=False)
            found.append(weights_of(low, np.ones(80), 5.0, "diag").factor)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rounds": {"user_fraction": 0.5}}, "rounds.user_fraction is 0.5"),
        ({"update": {"structure": "colr"}}, "no other low-rank form"),
        ({"evaluation": {"protocol": "paper"}}, "No negatives are drawn"),
        ({"privacy": {"mechanism": "gaussian"}}, "sketch has only its 2 sums"),
        (
            {
                "privacy": {"mechanism": "gaussian"},
                "rounds": {"total": 2},
                "algorithm": {"form": "diag"},
            },
            "the diagonal are unknown",
        ),
    ],
)
def test_plans_that_mean_nothing_are_refused(change, word):
    assert find_conflicts(plan_of()) == []
    found = [conflict.sentence for conflict in find_conflicts(plan_of(**change))]
    assert any(word in sentence for sentence in found), found


def test_rounds_that_are_missing_or_idle_are_told():
    with pytest.raises(SettingsError, match=r"rounds.total is 1, but algorithm.sums") as caught:
        Layout.of(plan_of(1), 256)
    assert "rounds.total = 3" in caught.value.remedy
    (conflict,) = find_conflicts(plan_of(1))
    assert conflict.keys[0] == "rounds.total"
    assert conflict.sentence.startswith("rounds.total is 1, but algorithm.sums")
    assert any("no round that grades" in line for line in algorithm_warnings(plan_of(2)))
    assert any("change nothing" in line for line in algorithm_warnings(plan_of(9)))
    assert not any("grades candidates" in line for line in algorithm_warnings(plan_of(3)))


@pytest.mark.parametrize("protection", ["bfv", "ckks", "paillier", "masks"])
def test_protected_sums_are_exact_integers(protection):
    plan = plan_of(3, protection={"name": protection})
    assert find_conflicts(plan) == []
    spec = vector_spec(plan, 100)
    # 256 rows of 4 values, up to 1024 users of 2^18 steps; 3 x 7 x 3 candidates and the settings.
    assert spec.segments[0].length == 1024
    assert spec.segments[0].max_abs_sum == 1024 << 18
    assert spec.segments[1].length == 64
    kind = PROTECTIONS[protection]
    assert kind.plan(spec, preset=plan.protection.preset).error_bound < 1 / 4


# Under noise.

PRIVATE = {"mechanism": "gaussian", "epsilon": 8.0, "expected_users": 150.0}


def private_learner(**changes):
    plan = plan_of(2, privacy=PRIVATE | changes, algorithm={"dim": 12, "regularisation": 0.5})
    assert find_conflicts(plan) == []
    return Learner(plan, 80, device="cpu")


def one_length(histories):
    """Return every history with length 1, dense (n_users, 80)."""
    matrix = interactions_of(histories, 80)
    return matrix / np.sqrt(matrix.sum(1, keepdims=True))


def test_under_noise_histories_have_one_length(users, histories):
    """Both sums against dense matrices; 150 users are expected, and 150 there are."""
    learner = private_learner()
    first, second = list(versions(learner, [users]))[1:]
    own, drawn = (
        one_length(histories),
        drawn_directions(learner.server.plan.federation.seed, np.arange(80), 12),
    )
    total = own.T @ (own @ drawn)
    # Steps of 2^-20, 2 sqrt(12) of them in the first sum, half a one for each user.
    step = 2.0**-20
    off = np.abs(first.kept["product"].reshape(80, 12) - total).max()
    assert off < 150 * step / 2 * 2 * np.sqrt(12)
    along = plain_orth(first.kept["product"].reshape(80, 12))
    wanted = own.T @ (own @ along)
    assert np.abs(second.kept["product"].reshape(80, 12) - wanted).max() < 150 * step / 2
    assert second.holders.tolist() == [1] * 80


@pytest.mark.parametrize("clip", [1.0, 0.125])
def test_no_user_moves_a_sum_by_more_than_the_clip(users, clip):
    learner = private_learner(clip=clip)
    bound, size = learner.server.layout.mechanism.bound, 80 * 12
    assert bound == clip * 2**20
    before = list(versions(learner, [users]))
    lengths = []
    for shared in before[:2]:
        for row in range(0, len(users), 10):
            one = users.select(np.array([row]))
            private = learner.local.initial_private(one)
            vector = learner.contribute("train", 2, shared, one, private).vector
            # All that is not the change is withheld.
            assert not vector[size:].any()
            lengths.append(float(np.linalg.norm(vector[:size].astype(float))) / bound)
    assert max(lengths) <= 1.0
    # Along drawn directions about half the clip; along the others what of a history lies in them.
    assert 0.3 < np.mean(lengths[:15]) < 0.7
    assert np.mean(lengths[15:]) > 0.3


def test_what_noise_alone_makes_counts_for_nothing(users):
    """The noise cannot be seeded: one draw in 80 rises above the bound, four of five never do."""
    learner = private_learner(epsilon=1.0)
    no_users = split_of([[0]]).select(np.array([], dtype=np.int64))
    above = 0
    for _ in range(5):
        shared = learner.server.initial_shared()
        for round_id, kind in ((1, "count"), (2, "train"), (3, "train")):
            private = learner.local.initial_private(no_users)
            vector = learner.contribute(kind, round_id, shared, no_users, private).vector
            if kind == "train":
                vector = learner.server.layout.add_noise(vector, 3)
            shared = learner.server.apply(kind, round_id, shared, vector)
        assert np.abs(shared.kept["product"]).max() > 0
        above += bool(scores_of(learner, shared, users).any())
    assert above <= 3


def test_what_rises_above_the_noise_is_the_model(users, histories):
    """As by a plain form that leaves out what noise could be: here nearly everything but one."""
    learner = private_learner()
    last = list(versions(learner, [users]))[-1]
    mechanism = learner.server.layout.mechanism
    deviation = mechanism.deviation * 2.0**-20
    assert deviation == pytest.approx(mechanism.cost.gaussian**-0.5 / np.sqrt(2), rel=1e-3)
    before = last.kept["before"].reshape(80, 12)
    along, total = plain_orth(before), last.kept["product"].reshape(80, 12)
    values, vectors = np.linalg.eigh((along.T @ total + total.T @ along) / 2)
    above = values > 2 * deviation * np.sqrt(12)
    assert 0 < above.sum() < 12
    half = total @ (vectors[:, above] / np.sqrt(values[above]))
    low = half @ half.T
    inverse = np.linalg.inv(low + 0.5 * np.eye(80))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    own = interactions_of([users.train_of(row) for row in range(20)], 80) @ weights
    assert scores_of(learner, last, users.select(np.arange(20))) == pytest.approx(own, abs=1e-4)


def test_a_private_simulation_charges_two_sums(data, users):
    settings = Settings.model_validate(
        {
            **private_learner().server.plan.model_dump(),
            "protection": {"name": "bfv"},
            "client": {"device": "cpu"},
        }
    )
    result = simulate(settings, users=users, catalogue=data.catalogue)
    assert result.finished
    assert [report.kind for report in result.rounds] == ["count", "train", "train", "evaluate"]
    mechanism = private_learner().server.layout.mechanism
    assert mechanism.epsilon_after(2) == pytest.approx(8.0, rel=1e-2)
    assert mechanism.epsilon_after(9) == mechanism.epsilon_after(2)
