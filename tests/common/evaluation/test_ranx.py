"""Metrics and ranks against `ranx`, an independent implementation, on random input."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from fedrec.data import generate, leave_one_out
from fedrec.evaluation.metrics import rank_values
from fedrec.evaluation.protocols import draw_candidates, held_out_ranks

ONE = 1 << 20
N_ITEMS = 150


def candidates(users, protocol, split):
    """Return every user's candidate items, the held-out one included, by set arithmetic."""
    if protocol == "sampled":
        drawn, _ = draw_candidates(users, N_ITEMS, seed=4, device=torch.device("cpu"))
    for user in range(len(users)):
        held = int((users.validation_items if split == "validation" else users.test_items)[user])
        if protocol == "sampled":
            yield held, {held, *drawn[user].tolist()}
            continue
        seen = set(users.train_of(user).tolist())
        if split == "test":
            seen.add(int(users.validation_items[user]))
        yield held, set(range(N_ITEMS)) - seen


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["full", "sampled"])
@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("at", [1, 5, 10])
def test_metrics_agree_with_ranx(protocol, split, tied, at):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ranx import Qrels, Run, evaluate

    data = generate(n_users=40, n_items=N_ITEMS, n_clusters=2, interactions_per_user=9, seed=6)
    users = leave_one_out(data.interactions, data.catalogue)
    random = np.random.default_rng(7)
    scores = random.normal(size=(40, N_ITEMS))
    if tied:
        # Few levels, and ties broken at random: ranx knows no expected rank.
        levels = random.integers(6, size=scores.shape)
        scores = levels + random.permuted(np.tile(np.linspace(0, 0.5, N_ITEMS), (40, 1)), axis=1)
    ranks = held_out_ranks(torch.from_numpy(scores), users, split, protocol=protocol, seed=4)
    users_, hits, gain, reciprocal = rank_values(ranks, at).sum(0).tolist()
    assert users_ == 40
    relevant, ranked = {}, {}
    for user, (held, items) in enumerate(candidates(users, protocol, split)):
        relevant[str(user)] = {str(held): 1}
        ranked[str(user)] = {str(item): float(scores[user, item]) for item in items}
    names = [f"{name}@{at}" for name in ("hit_rate", "recall", "ndcg", "mrr")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = evaluate(Qrels(relevant), Run(ranked), names)
    assert hits / 40 == pytest.approx(expected[names[0]], abs=1e-9)
    assert hits / 40 == pytest.approx(expected[names[1]], abs=1e-9)
    assert gain / ONE / 40 == pytest.approx(expected[names[2]], abs=1e-6)
    assert reciprocal / ONE / 40 == pytest.approx(expected[names[3]], abs=1e-6)
