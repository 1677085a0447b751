"""PFedCLR: the worked numbers of the specification, what users keep, and what is refused."""

import numpy as np
import pytest
from conformance.hand_made import HandMade
from world.plans import plans

from fedrec.algorithms.settings_warnings import nominal_epsilon
from fedrec.data import generate, leave_one_out
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.plan.algorithm import algorithm_warnings
from fedrec.plan.combinations import find_conflicts
from fedrec.recommender import Recommender
from fedrec.recommender.model_file import ModelFile, UsersFile
from fedrec.training.learner import Learner

N_ITEMS = 40


plan_of = plans(
    federation={"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
    algorithm={"name": "pfedclr", "dim": 4, "local_epochs": 2},
    update={"structure": "dense", "clip": 8.0},
)


def learner_of(**algorithm):
    return Learner(plan_of(algorithm=algorithm), N_ITEMS, device="cpu")


@pytest.fixture(scope="module")
def data():
    return generate(n_users=9, n_items=N_ITEMS, n_clusters=2, interactions_per_user=8, seed=3)


@pytest.fixture(scope="module")
def users(data):
    return leave_one_out(data.interactions, data.catalogue)


# The worked numbers: d = 2, r = 1, one positive, z = 1, so that sigma(z) - 1 = -.268941.


def worked(monkeypatch, *, steps=slice(None), n_items=2):
    plan = plan_of(algorithm={"dim": 2, "rank": 1, "local_epochs": 1})
    algorithm = Learner(plan, n_items, device="cpu").server.algorithm
    phases = algorithm.phases({})[steps]
    monkeypatch.setattr(type(algorithm), "phases", lambda self, scalars: phases)
    table = np.array([[1.0, 0.0], [3.0, 5.0]])
    begun = {
        "user_embedding": np.array([[1.0, 0.0]]),
        "item_factor": np.zeros((1, n_items, 1)),
        "factor": np.array([[[0.5, 0.5]]]),
        "personal_scores": np.zeros((1, n_items)),
    }
    # Left by earlier rounds, in which the user had drawn the other item.
    begun["item_factor"][0, 1] = 0.2
    made = HandMade(samples=[[(0, 1)]], n_items=n_items)
    return made.train(monkeypatch, algorithm, {"item_embedding": table}, begun)


def test_step_1_moves_the_table_alone(monkeypatch):
    """dq = (-.268941, 0); Adam's first step is its rate, .01."""
    result, sums = worked(monkeypatch, steps=slice(0, 1))
    change = sums.rows["item_embedding"][:-1].numpy()
    assert change == pytest.approx(np.array([[0.01, 0.0], [0.0, 0.0]]), abs=1e-8)
    assert result.loss.numpy() == pytest.approx([-np.log(0.731059)], abs=1e-6)
    assert sums.whole["samples"].tolist() == [1.0]


def test_step_2_from_the_same_table(monkeypatch):
    """dp = (-.268941, 0), dA = -.134471 and dB = 0, A being 0; then 1.01 x 1.005."""
    result, sums = worked(monkeypatch, steps=slice(1, 2))
    assert "item_embedding" not in sums.rows
    assert result.private["user_embedding"][0].numpy() == pytest.approx([1.01, 0.0], abs=1e-8)
    factor = result.private["item_factor"][0, :, 0].numpy()
    assert factor == pytest.approx([0.01, 0.2], abs=1e-8)
    assert result.private["factor"][0, 0].tolist() == [0.5, 0.5]
    scores = result.private["personal_scores"][0].numpy()
    # The other item: Q + A B = (3, 5) + .2 (.5, .5).
    assert scores == pytest.approx([1.01505, 1.01 * 3.1], abs=1e-7)


def test_what_is_kept_is_scored_with_the_users_own_table(monkeypatch):
    """Both steps: Q_u + A B = (1.01 + .005, .005), p = (1.01, 0)."""
    result, _ = worked(monkeypatch)
    scores = result.private["personal_scores"][0].numpy()
    assert scores == pytest.approx([1.01 * 1.015, 1.01 * 3.1], abs=1e-7)


def test_the_server_weighs_users_by_their_items():
    """One item and three: weights .25 and .75 of (1, 0) and (0, 1)."""
    algorithm = learner_of(dim=2).server.algorithm
    table = np.full((1, 2), 0.5)
    first, second = np.array([[1.0, 0.0]]) - table, np.array([[0.0, 1.0]]) - table
    change = {"item_embedding": first + 3 * second, "samples": np.array([4.0])}
    shared = SharedState({"item_embedding": table})
    after = algorithm.apply(shared, change, np.zeros(1, dtype=np.int64), 2)
    assert after.tensors["item_embedding"].tolist() == [[0.25, 0.75]]


def test_the_nominal_epsilon():
    found = nominal_epsilon(weight=0.01, rate=0.01, bound=1.0, scale=0.5)
    assert found == pytest.approx(4e-4, rel=1e-12)


# What users keep.


def rounds(learner, users, participating=None, n_rounds=2):
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    for round_id in range(2, 2 + n_rounds):
        part = learner.contribute("train", round_id, shared, users, private, participating)
        shared, private = learner.server.apply("train", round_id, shared, part.vector), part.private
    return shared, private


def scores_of(learner, shared, users, private):
    blocks = learner.local.score_blocks(shared, users, private)
    return np.concatenate([scores.numpy() for _, scores in blocks])


@pytest.mark.parametrize("newcomers", ["initial", "current"])
def test_users_who_never_trained(users, newcomers):
    learner = learner_of(newcomers=newcomers, dim=4)
    some = np.arange(len(users)) % 2 == 0
    shared, private = rounds(learner, users, some)
    begun = learner.server.initial_shared()
    assert not np.array_equal(begun.tensors["item_embedding"], shared.tensors["item_embedding"])
    table = (begun if newcomers == "initial" else shared).tensors["item_embedding"]
    found = scores_of(learner, shared, users, private)
    wanted = private.tensors["user_embedding"].astype(float) @ table.T
    assert found[~some] == pytest.approx(wanted[~some], abs=1e-6)
    assert np.array_equal(found[some], private.tensors["personal_scores"][some])


@pytest.mark.parametrize("variant", ["clr", "cf", "af"])
def test_without_kept_scores_the_published_table_is_calibrated(data, users, variant):
    """The same by the learner, by the recommender, and as it is written."""
    learner = learner_of(variant=variant, personal_items=False)
    shared, private = rounds(learner, users)
    own, table = private.tensors, shared.tensors["item_embedding"]
    if variant == "clr":
        calibration = own["item_factor"] @ own["factor"]
    else:
        calibration = own["item_calibration"]
    assert calibration.any()
    wanted = np.einsum("ud,uid->ui", own["user_embedding"], table + calibration)
    assert scores_of(learner, shared, users, private) == pytest.approx(wanted, abs=1e-6)
    model = ModelFile(
        plan=learner.server.plan, catalogue_fingerprint=data.catalogue.fingerprint(),
        round=RoundId(3), shared=shared,
    )  # fmt: skip
    recommender = Recommender(model, data.catalogue, UsersFile.of(users, private))
    ids, scores = recommender.recommend(list(users.user_ids), N_ITEMS, exclude_seen=False)
    assert scores == pytest.approx(np.sort(wanted)[:, ::-1], abs=1e-6)
    best = data.catalogue.ids_of(wanted.argmax(1))
    assert ids[:, 0].tolist() == list(best)
    folded = recommender.fold_in(ids[0, :3].tolist())
    assert folded.shape == (4,) and np.isfinite(folded).all() and folded.any()


def test_without_aggregation_the_table_stays_and_users_learn(users):
    learner = learner_of(aggregation=False)
    shared, private = rounds(learner, users)
    begun = learner.server.initial_shared()
    assert np.array_equal(begun.tensors["item_embedding"], shared.tensors["item_embedding"])
    assert private.tensors["item_factor"].any()
    assert any("aggregation is false" in line for line in algorithm_warnings(learner.server.plan))


def test_a_gradient_that_is_shrunk_takes_other_steps(users):
    """By hand it is compared in the parity tests; here, that the setting has a say."""
    free, _ = rounds(learner_of(), users, n_rounds=1)
    shrunk, _ = rounds(learner_of(gradient_clip=1e-3), users, n_rounds=1)
    one, other = free.tensors["item_embedding"], shrunk.tensors["item_embedding"]
    assert not np.allclose(one, other, atol=1e-6)


# What is refused and said.


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"rank": 5}, "algorithm.rank is 5, but algorithm.dim is 4"),
        ({"variant": "cf", "rank": 3}, "algorithm.rank is set, but"),
        ({"variant": "af", "factor_deviation": 0.1}, "algorithm.factor_deviation is set"),
        (
            {"newcomers": "current", "personal_items": False},
            "only if algorithm.personal_items is true",
        ),
        ({"newcomers": "current", "personal_rate": 0}, "algorithm.personal_rate is above 0"),
    ],
)
def test_settings_that_mean_nothing_together(algorithm, words):
    (conflict,) = find_conflicts(plan_of(algorithm=algorithm))
    assert words in conflict.sentence


def test_rank_up_to_dim_is_allowed():
    assert not find_conflicts(plan_of(algorithm={"rank": 4}))


def test_colr_is_refused_with_the_reason():
    (conflict,) = find_conflicts(plan_of(update={"structure": "colr", "rank": 2}))
    assert "not rotation-invariant" in conflict.sentence
    assert 'update.structure = "dense"' in conflict.sentence


def test_its_noise_and_that_of_privacy_are_refused_together():
    privacy = {"mechanism": "laplace"}
    found = find_conflicts(plan_of(algorithm={"noise_scale": 0.5}, privacy=privacy))
    assert any("no accounting for both together" in entry.sentence for entry in found)
    (alone,) = find_conflicts(plan_of(privacy=privacy))
    assert "weighted by users' numbers of interactions" in alone.sentence


def test_the_noise_is_called_nominal():
    plan = plan_of(algorithm={"noise_scale": 0.5, "learning_rate": 0.01}, update={"clip": 9.0})
    (line,) = algorithm_warnings(plan)
    # 2 x .01 x 1 / .5
    assert "0.04 w_u with C = 1 (nothing is clipped to it)" in line
    assert "nominal and not a guarantee" in line and "2 passes of Adam" in line
    narrow = plan_of(algorithm={"noise_scale": 0.5}, update={"clip": 1.0})
    assert "Set update.clip = 9." in algorithm_warnings(narrow)[1]
    bounded = replace_algorithm(plan, gradient_clip=0.25)
    assert "0.01 w_u with C = 0.25. It is nominal" in algorithm_warnings(bounded)[0]
    assert not algorithm_warnings(plan_of())


def replace_algorithm(plan, **changes):
    return plan.model_copy(update={"algorithm": plan.algorithm.model_copy(update=changes)})
