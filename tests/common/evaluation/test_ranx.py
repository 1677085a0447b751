"""Metrics and ranks against `ranx`, an independent implementation, on random input.

Its metrics are called user by user: compiling its parallel `evaluate` takes minutes.
"""

import warnings

import numpy as np
import pytest
import torch
from world.plans import users_of

from fedrec.evaluation.metrics import rank_values
from fedrec.evaluation.protocols import draw_candidates, held_out_ranks

pytestmark = pytest.mark.slow

ONE = 1 << 20
N_USERS, N_ITEMS = 40, 150
CUTS = (1, 5, 10)


@pytest.fixture(scope="module")
def theirs():
    """Return hit rate, recall, NDCG and MRR of `ranx` for one user's ranked list."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ranx.metrics.hit_rate import _hit_rate
        from ranx.metrics.ndcg import _ndcg
        from ranx.metrics.recall import _recall
        from ranx.metrics.reciprocal_rank import _reciprocal_rank

    def measure(held, ranked, at):
        relevant = np.array([[float(held), 1.0]])
        return (
            _hit_rate(relevant, ranked, at, 1),
            _recall(relevant, ranked, at, 1),
            _ndcg(relevant, ranked, at, 1, True),
            _reciprocal_rank(relevant, ranked, at, 1),
        )

    return measure


@pytest.fixture(scope="module")
def users():
    return users_of(N_USERS, N_ITEMS, clusters=2, each=9, seed=6)


def candidates(users, protocol, split):
    """Yield every user's held-out item and candidates, that item included, by set arithmetic."""
    drawn, _ = draw_candidates(users, N_ITEMS, seed=4, device=torch.device("cpu"))
    for user in range(len(users)):
        held = int((users.validation_items if split == "validation" else users.test_items)[user])
        if protocol == "sampled":
            yield held, sorted({held, *drawn[user].tolist()})
            continue
        seen = set(users.train_of(user).tolist())
        if split == "test":
            seen.add(int(users.validation_items[user]))
        yield held, sorted(set(range(N_ITEMS)) - seen)


@pytest.mark.parametrize("protocol", ["full", "sampled"])
@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("tied", [False, True])
def test_metrics_agree_with_ranx(theirs, users, protocol, split, tied):
    random = np.random.default_rng(7)
    scores = random.normal(size=(N_USERS, N_ITEMS))
    if tied:
        # Few levels, and ties broken at random: ranx knows no expected rank.
        order = random.permuted(np.tile(np.linspace(0, 0.5, N_ITEMS), (N_USERS, 1)), axis=1)
        scores = random.integers(6, size=scores.shape) + order
    ranks = held_out_ranks(torch.from_numpy(scores), users, split, protocol=protocol, seed=4)
    for at in CUTS:
        expected = np.zeros(4)
        for user, (held, items) in enumerate(candidates(users, protocol, split)):
            own = scores[user, items]
            best = np.argsort(-own)
            ranked = np.stack([np.array(items, dtype=float)[best], own[best]], axis=1)
            expected += theirs(held, ranked, at)
        found, hits, gain, reciprocal = rank_values(ranks, at).sum(0).tolist()
        assert found == N_USERS
        assert expected[0] > 0 or at == 1
        assert (hits, hits) == tuple(expected[:2])
        assert gain / ONE == pytest.approx(expected[2], abs=1e-4)
        assert reciprocal / ONE == pytest.approx(expected[3], abs=1e-4)


def test_a_tie_counts_the_mean_of_its_places_in_ranx(theirs, users):
    """With expected ranks HR@K of a tie is all or nothing; its rank is the mean over orders."""
    scores = np.zeros((N_USERS, N_ITEMS))
    ranks = held_out_ranks(torch.from_numpy(scores), users, "test", protocol="full", seed=4)
    held, items = next(iter(candidates(users, "full", "test")))
    places = []
    for shift in range(len(items)):
        order = np.roll(np.array(items, dtype=float), shift)
        ranked = np.stack([order, np.zeros(len(items))], axis=1)
        places.append(1.0 / theirs(held, ranked, len(items))[3] - 1.0)
    assert ranks[0] == pytest.approx(np.mean(places))
