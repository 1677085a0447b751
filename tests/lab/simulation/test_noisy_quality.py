"""Under noise, pairs are released only if the published model is no worse than noisy counts."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data import Catalogue, Interactions, leave_one_out
from fedrec.evaluation.metrics import rate_of_users
from fedrec.plan.algorithm import algorithm_of
from fedrec.privacy.mechanism import Mechanism
from fedrec.settings.schema import Settings
from fedrec_lab.simulation import simulate, user_ranks

pytestmark = [pytest.mark.slow, pytest.mark.long]

DRAWS = 3
MADE = {
    # Taste decides much, something, or nothing beyond popularity.
    "tastes": {"n_users": 1500, "n_items": 300, "length": 30, "boost": 30.0},
    "weak tastes": {"n_users": 3000, "n_items": 500, "length": 20, "boost": 3.0},
    "popularity alone": {"n_users": 3000, "n_items": 300, "length": 25, "boost": 1.0},
    "few users": {"n_users": 400, "n_items": 200, "length": 25, "boost": 10.0},
    "short histories": {"n_users": 4000, "n_items": 400, "length": 6, "boost": 10.0},
}


def made(n_users, n_items, length, boost):
    """Return users that draw items by popularity, and `boost` times as often of their cluster."""
    random = np.random.default_rng(0)
    weights = np.arange(1.0, n_items + 1) ** -0.8
    ids = np.char.add("i", np.arange(n_items).astype(str))
    found = []
    for user in range(n_users):
        own = np.where(np.arange(n_items) % 5 == user % 5, boost, 1.0) * weights
        found.append(random.choice(n_items, length, replace=False, p=own / own.sum()))
    times = np.arange(n_users * length)
    users = np.char.add("u", np.char.zfill(np.repeat(np.arange(n_users), length).astype(str), 5))
    catalogue = Catalogue.of(sorted(ids.tolist()), sorted(ids.tolist()))
    items = ids[np.concatenate(found)]
    interactions = Interactions.from_arrays(users, items, timestamps=times)
    return leave_one_out(interactions, catalogue), catalogue


@pytest.fixture(params=["MovieLens-100K", *MADE])
def held(request):
    if request.param in MADE:
        return made(**MADE[request.param])
    return request.getfixturevalue("ml_100k_users"), request.getfixturevalue("ml_100k").catalogue


@pytest.fixture
def drawn_noise(monkeypatch):
    """The draws are the test's own: by a seed, a result near the bound is one forever."""
    random = np.random.default_rng(7)

    def noise(self, length):
        return np.rint(random.normal(0.0, self.share, length)).astype(np.int64)

    monkeypatch.setattr(Mechanism, "noise", noise)


def settings_of(users, epsilon, n_rounds):
    return Settings.model_validate(
        {
            "federation": {"minimum_item_users": 1, "maximum_users": 16_384},
            "algorithm": {"name": "ease"},
            "rounds": {"total": n_rounds, "minimum_clients": 3},
            "privacy": {
                "mechanism": "gaussian",
                "epsilon": epsilon,
                "expected_users": float(len(users)),
            },
            "client": {"device": "cpu", "threads": 1},
        }
    )


def ndcg_of(users, catalogue, settings):
    """Return each user's NDCG@10 on test, the mean of several draws. A refused model has 0."""
    found = []
    for _ in range(DRAWS):
        result = simulate(settings, users=users, catalogue=catalogue)
        ranks = user_ranks(result).model
        found.append(rate_of_users(ranks, 10) * (result.uninformed is None))
    return np.mean(found, axis=0)[users.test_items >= 0]


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 10.0])
def test_the_rule_is_never_below_noisy_popularity(held, epsilon, drawn_noise):
    users, catalogue = held
    chosen, popular = (settings_of(users, epsilon, n_rounds) for n_rounds in (2, 1))
    release = algorithm_of(chosen.plan, len(catalogue))._release
    if not release.n_rows:
        # All of epsilon is for the counts: it is noisy popularity.
        assert release.of_counts == 1.0
        return
    found, least = (ndcg_of(users, catalogue, each) for each in (chosen, popular))
    error = least.std(ddof=1) / np.sqrt(len(least))
    print(f"{epsilon:g}: {found.mean() - least.mean():+.4f}, standard error {error:.4f}")
    assert found.mean() >= least.mean() - error
