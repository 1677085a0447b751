"""Tail at home: the dual form, what counts, the weight, and recommenders with it."""

import numpy as np
import pytest
import torch
from world.plans import users_of

from fedrec.errors import DataError, SettingsError
from fedrec.evaluation.protocols import held_out_ranks
from fedrec.recommender import Recommender
from fedrec.recommender.tail import (
    MOST_USERS,
    REGULARISATION,
    WEIGHTS,
    LocalTail,
    TailFigures,
    check_tail_users,
    crossed,
    figures_of,
    weighed,
)

N_ITEMS = 50
FIGURES = TailFigures(weight=2.0, n_rows=1, users=3, at=10, shared_ndcg=0.1, ndcg=0.2)


@pytest.fixture(scope="module")
def silo():
    return users_of(40, N_ITEMS, clusters=4, each=9, noise=0.3, seed=5)


def tail_of(silo, travelling=None, least=3):
    some = np.zeros(N_ITEMS, dtype=np.bool_) if travelling is None else travelling
    return LocalTail(silo.train_indptr, silo.train_items, some, least)


def primal(silo, least):
    """EASE over all columns that count, by the inverse over items."""
    held = np.zeros((len(silo), N_ITEMS))
    held[silo.train_owner, silo.train_items] = 1.0
    held[:, held.sum(0) < least] = 0.0
    inverse = np.linalg.inv(held.T @ held + REGULARISATION * np.eye(N_ITEMS))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return held, weights


def test_by_hand():
    """G is 3 everywhere: P is the inverse of [[33, 3], [3, 33]], so B_01 is 3 / 33."""
    tail = LocalTail(np.array([0, 2, 4, 6]), np.array([0, 1] * 3), np.array([True, False]), 3)
    assert tail.rows.tolist() == [1]
    assert tail.of(np.array([0])) == pytest.approx([1 / 11])
    assert tail.own(0) == pytest.approx([1 / 11])
    assert tail.of(np.array([1])) == pytest.approx([0.0])


@pytest.mark.parametrize("least", [1, 3, 6])
def test_the_dual_form_is_ease_over_the_own_users(silo, least):
    travelling = np.arange(N_ITEMS) % 3 == 0
    tail = tail_of(silo, travelling, least)
    held, weights = primal(silo, least)
    assert (held.sum(0)[tail.rows] >= least).all()
    assert set(tail.rows) == set(np.nonzero(~travelling & (held.sum(0) >= least))[0])
    for user in range(len(silo)):
        expected = (held[user] @ weights)[tail.rows]
        assert tail.own(user) == pytest.approx(expected, abs=1e-12)
        assert tail.of(silo.train_of(user)) == pytest.approx(expected, abs=1e-12)
    history = np.array([0, 7, 20, 41])
    new = np.zeros(N_ITEMS)
    new[history] = held.sum(0)[history] >= least
    assert tail.of(history) == pytest.approx((new @ weights)[tail.rows], abs=1e-12)


def test_the_same_histories_give_the_same_bits(silo):
    first, second = tail_of(silo), tail_of(silo)
    assert all(np.array_equal(first.own(user), second.own(user)) for user in range(len(silo)))


def test_other_items_keep_their_scores(silo):
    travelling = np.arange(N_ITEMS) < 20
    tail = tail_of(silo, travelling)
    before = np.full(N_ITEMS, -np.inf, dtype=np.float32)
    before[:20] = np.linspace(-1, 1, 20)
    for weight in WEIGHTS:
        scores = before.copy()
        tail.add(scores, tail.own(3), weight)
        assert np.array_equal(scores[:20], before[:20])
        expected = np.float32(weight * tail.own(3)) if weight else before[tail.rows]
        assert np.array_equal(scores[tail.rows], expected)


def test_ranks_are_those_of_the_protocol_full(silo):
    travelling = np.arange(N_ITEMS) < 20
    tail = tail_of(silo, travelling)
    scores = np.random.default_rng(1).normal(size=(len(silo), N_ITEMS)).astype(np.float32)
    scores[:, 20:] = -np.inf
    ranks = weighed(tail, silo, [(np.arange(len(silo)), scores)])
    for place, weight in enumerate(WEIGHTS):
        found = scores.copy()
        tail.add(found, np.array([tail.own(user) for user in range(len(silo))]), weight)
        wanted = held_out_ranks(
            torch.from_numpy(found), silo, "validation", protocol="full", seed=1
        )
        assert np.array_equal(ranks[place], wanted)


def test_validation_chooses_the_smallest_of_the_best_weights(silo):
    ranks = np.full((len(WEIGHTS), len(silo)), 5.0)
    assert figures_of(tail_of(silo), ranks, 10).weight == 0.0
    ranks[2:4, ::3] = 0.0
    found = figures_of(tail_of(silo), ranks, 10)
    assert (found.weight, found.users) == (1.0, len(silo))
    assert found.ndcg > found.shared_ndcg
    assert "weight 1 for" in str(found)


def test_one_user_alone_chooses_no_weight(silo):
    """The gain of one user is its standard error. That of two is more."""
    ranks = np.full((len(WEIGHTS), len(silo)), 5.0)
    ranks[3, 7] = 0.0
    assert figures_of(tail_of(silo), ranks, 10).weight == 0.0
    ranks[3, 9] = 0.0
    assert figures_of(tail_of(silo), ranks, 10).weight == 2.0
    ranks[3, 11] = 20.0
    assert figures_of(tail_of(silo), ranks, 10).weight == 0.0


def test_a_half_is_ranked_by_the_weight_of_the_other_half():
    """The first half gains by weight 1, the second by weight 4: neither gains from the other's."""
    ranks = np.full((len(WEIGHTS), 8), 20.0)
    ranks[0] = 3.0
    ranks[2, ::2], ranks[4, 1::2] = 0.0, 0.0
    assert crossed(ranks, 10).tolist() == [20.0] * 8
    ranks[2] = 0.0
    ranks[4] = 20.0
    assert crossed(ranks, 10).tolist() == [0.0] * 8


def test_bad_input(silo):
    one = silo.select(np.array([4]))
    scores = np.zeros((1, N_ITEMS), dtype=np.float32)
    for own, travelling, least in (
        (one, np.zeros(N_ITEMS, dtype=np.bool_), 3),
        (silo, np.ones(N_ITEMS, dtype=np.bool_), 3),
        (silo, np.zeros(N_ITEMS, dtype=np.bool_), 41),
        (silo.select(np.empty(0, dtype=np.int64)), np.zeros(N_ITEMS, dtype=np.bool_), 3),
    ):
        tail = tail_of(own, travelling, least)
        assert len(tail.rows) == len(tail.of(np.array([1]))) == 0
        blocks = [(np.arange(1), scores)] if len(own) else []
        ranks = weighed(tail, own, blocks)
        found = figures_of(tail, ranks, 10)
        assert (found.weight, str(found)[:8]) == (0.0, "not used")
        assert np.array_equal(crossed(ranks, 10), ranks[0])
    whole = silo.whole()
    tail = tail_of(whole)
    assert len(tail.rows)
    found = figures_of(tail, weighed(tail, whole, [(np.arange(40), np.zeros((40, 50)))]), 10)
    assert (found.weight, found.users) == (0.0, 0)
    assert "no validation item" in str(found)
    # Nothing travels: all scores are this silo's own.
    alone = np.full((40, N_ITEMS), -np.inf, dtype=np.float32)
    tail = tail_of(silo)
    assert figures_of(tail, weighed(tail, silo, [(np.arange(40), alone)]), 10).ndcg > 0.1
    with pytest.raises(SettingsError, match=r"limited to 8192 users\..*client.tail = false"):
        check_tail_users(MOST_USERS + 1)


def test_without_histories_there_is_none(model, catalogue):
    with pytest.raises(DataError, match="no user vectors"):
        Recommender(model, catalogue).with_tail(1, FIGURES)


def test_what_its_users_hold_is_recommended_and_never_saved(
    model, catalogue, users_with_rare, tmp_path
):
    plain = Recommender(model, catalogue, users_with_rare)
    local = plain.with_tail(2, FIGURES)
    ids, scores = local.recommend("anna", 7)
    before, expected = plain.recommend("anna", 7)
    assert set(ids) - set(before) == {"rare"}
    others = ids != "rare"
    assert ids[others].tolist() == before.tolist()
    assert np.array_equal(scores[others], expected)
    vector = np.array([1, 0], np.float32)
    assert "rare" in local.recommend_vector(vector, 7, history=["a0"])[0]
    assert "rare" not in local.recommend_vector(vector, 7, exclude=["a0"])[0]
    assert "rare" not in local.recommend("anna", 7, block=["rare"])[0]
    assert local.recommend("anna", 7, candidates=["rare"])[0].tolist() == ["rare"]
    assert "rare" not in local.similar_items("a0", 7)[0]
    plain.save(tmp_path / "plain")
    local.save(tmp_path / "local")
    for name in ("model.safetensors", "users.safetensors", "catalogue.csv"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
