"""PFedRec: what users keep, what they are scored with, and what is refused."""

from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
import torch
from conformance.histories import counted, unequal_users
from reference.plain_pfedrec import train_user
from world.plans import check_plan, plans

from fedrec.algorithms import Circumstances, PFedRec, PFedRecSettings
from fedrec.algorithms.declarations import Parameter
from fedrec.algorithms.trained import first_scores
from fedrec.plan.algorithm import algorithm_of
from fedrec.training.learner import Learner
from fedrec.updates.update import UpdateSettings

N_ITEMS = 61


plan_of = plans(
    federation={"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
    algorithm={"name": "pfedrec", "dim": 5, "learning_rate": 0.3, "item_rate_scale": 0.2},
    update={"structure": "dense", "clip": 64.0, "fraction_bits": 26},
)


@pytest.fixture(scope="module")
def users():
    return unequal_users(N_ITEMS)


def states_of(plan, users):
    learner = Learner(plan, N_ITEMS, device="cpu")
    return learner, learner.server.initial_shared(), learner.local.initial_private(users)


def test_every_user_starts_from_one_table_and_one_head(users):
    learner, shared, private = states_of(plan_of(algorithm={"dim": 32}), users)
    table = shared.tensors["item_embedding"]
    assert abs(table.mean()) < 0.1 and table.std() == pytest.approx(1.0, abs=0.1)
    heads, biases = private.tensors["user_embedding"], private.tensors["user_bias"]
    assert heads.shape == (23, 32) and biases.shape == (23,)
    assert np.abs(heads).max() <= 32**-0.5 and heads[0].std() > 0.05
    assert (heads == heads[0]).all() and (biases == biases[0]).all()
    expected = table @ heads[0] + biases[0]
    assert private.tensors["personal_scores"] == pytest.approx(np.tile(expected, (23, 1)), abs=1e-5)
    # No user has trained: the first measurement does not depend on where the scores come from.
    bare = Learner(plan_of(algorithm={"dim": 32, "personal_items": False}), N_ITEMS, device="cpu")
    ((_, kept),) = learner.local.score_blocks(shared, users, private)
    ((_, made),) = bare.local.score_blocks(shared, users, bare.local.initial_private(users))
    assert torch.allclose(kept, made, atol=1e-5)


def test_personal_scores_are_those_of_the_last_training(users):
    """A version that is published later has no part in them; who sits out keeps them."""
    learner, shared, private = states_of(plan_of(), users)
    first = learner.contribute("train", 1, shared, users, private)
    published = learner.server.apply("train", 1, shared, first.vector)
    ((_, before),) = learner.local.score_blocks(shared, users, first.private)
    ((_, after),) = learner.local.score_blocks(published, users, first.private)
    assert torch.equal(before, after)
    taking = np.arange(23) % 2 == 0
    second = learner.contribute("train", 2, published, users, first.private, taking)
    for name, values in second.private.tensors.items():
        assert np.array_equal(values[~taking], first.private.tensors[name][~taking])
        assert not np.array_equal(values[taking], first.private.tensors[name][taking])


def test_without_personal_items_the_published_table_scores(users):
    learner, shared, private = states_of(plan_of(algorithm={"personal_items": False}), users)
    assert set(private.tensors) == {"user_embedding", "user_bias"}
    part = learner.contribute("train", 1, shared, users, private)
    assert set(part.private.tensors) == {"user_embedding", "user_bias"}
    published = learner.server.apply("train", 1, shared, part.vector)
    ((_, scores),) = learner.local.score_blocks(published, users, part.private)
    heads, biases = part.private.tensors["user_embedding"], part.private.tensors["user_bias"]
    expected = heads @ published.tensors["item_embedding"].T + biases[:, None]
    assert scores.numpy() == pytest.approx(expected, abs=1e-5)


def test_rare_items_stay_and_the_step_does_not_move_with_them(users):
    plan = plan_of(federation={"minimum_item_users": 5})
    learner = Learner(plan, N_ITEMS, device="cpu")
    shared, private = counted(learner, users)
    rare = shared.holders < 5
    assert 0 < rare.sum() < N_ITEMS
    (phase,) = learner.server.algorithm.phases({})
    (rows,) = phase.steps[1]
    assert rows.rates == {"item_embedding": pytest.approx(0.3 * N_ITEMS * 0.2)}
    part = learner.contribute("train", 2, shared, users, private)
    sums = learner.server.travelling.unpack("train", shared, part.vector)
    assert not sums.changes["item_embedding"][rare].any()
    assert not sums.counts.any()
    after = learner.server.apply("train", 2, shared, part.vector)
    before, now = shared.tensors["item_embedding"], after.tensors["item_embedding"]
    assert np.array_equal(before[rare], now[rare])
    assert (before[~rare] != now[~rare]).any(1).all()
    kept = part.private.tensors["personal_scores"][:, rare]
    assert np.array_equal(kept, private.tensors["personal_scores"][:, rare])
    active = np.nonzero(~rare)[0]
    position = np.full(N_ITEMS, -1)
    position[active] = np.arange(len(active))
    positives = [p for p in position[users.train_of(3)].tolist() if p >= 0]
    w, c, own = train_user(
        private.tensors["user_embedding"][3].astype(float), float(private.tensors["user_bias"][3]),
        before[active], int(users.user_keys()[3]), positives, positives, seed=7, round_id=2,
        per_positive=4, epochs=1, batch_size=256, rate=0.3, item_rate=0.3 * N_ITEMS * 0.2,
    )  # fmt: skip
    scores = part.private.tensors["personal_scores"][3, active]
    assert scores == pytest.approx(own @ w + c, abs=1e-4)


class OwnTerms(PFedRec):
    """Adds a term of each user's own, drawn for each user and item."""

    folding_pull = None

    @cached_property
    def parameters(self):
        return (*super().parameters, Parameter("term", "own_rows", ()))

    def score(self, v):
        return super().score(v) + v.term


def test_first_scores_differ_if_own_rows_do():
    plain = algorithm_of(plan_of(), N_ITEMS)
    algorithm = OwnTerms(plain.settings, plain.shapes)
    keys = np.arange(3)
    common = first_scores(plain, plain.derived.initial_private(keys).arrays())
    begun = algorithm.derived.initial_private(keys).arrays()
    assert common.shape == (1, N_ITEMS)
    assert first_scores(algorithm, begun) == pytest.approx(common + begun["term"], abs=1e-5)


def test_of_low_rank_forms_it_has_one():
    assert check_plan(plan_of(update={"structure": "colr", "rank": 2})) == []
    for structure in ("scolr", "svd", "topk"):
        (sentence,) = check_plan(plan_of(update={"structure": structure, "rank": 2}))
        assert "another mean" in sentence and 'update.structure = "' in sentence


def test_a_history_is_folded_into_a_head(users):
    learner, shared, _ = states_of(plan_of(algorithm={"dim": 32}), users)
    items, held = shared.tensors["item_embedding"], users.train_of(0)
    vector = learner.server.algorithm.fold_in(items, held)
    scores = items @ vector
    assert scores[held].mean() > np.delete(scores, held).mean() + 0.5


def test_a_narrow_range_is_said_to_be_that_of_a():
    at = Circumstances(
        settings=PFedRecSettings(), update=UpdateSettings(structure="colr", clip=16.0),
        n_items=1682, n_rounds=100, minimum_item_users=1, minimum_clients=3,
    )  # fmt: skip
    (low,) = PFedRec.about.advice.warnings(at)
    whole = replace(at, update=UpdateSettings(structure="dense", clip=16.0))
    (dense,) = PFedRec.about.advice.warnings(whole)
    assert low.startswith(dense) and "that of A" in low
    assert PFedRec.about.advice.warnings(replace(at, update=UpdateSettings(clip=256.0))) == []
