"""Ranks of held-out items against a slow plain version, and the drawn candidates."""

import numpy as np
import pytest
import torch

from fedrec.data import NO_ITEM, generate, leave_one_out
from fedrec.evaluation import protocols
from fedrec.evaluation.protocols import Ranking, draw_candidates, held_out_ranks

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def users():
    data = generate(n_users=37, n_items=150, n_clusters=3, interactions_per_user=12, seed=5)
    split = leave_one_out(data.interactions, data.catalogue)
    # One user without a test item, one without any held-out item.
    split.test_items[3] = NO_ITEM
    split.test_items[8] = split.validation_items[8] = NO_ITEM
    return split


def plain_ranks(scores, users, split):
    """Count, for one user after the other, who stands before the held-out item."""
    ranks = []
    for user in range(len(users)):
        held = (users.validation_items if split == "validation" else users.test_items)[user]
        if held == NO_ITEM:
            ranks.append(-1.0)
            continue
        left_out = {*users.train_of(user).tolist(), int(held)}
        if split == "test":
            left_out.add(int(users.validation_items[user]))
        own = scores[user, held]
        rank = 0.0
        for item in range(scores.shape[1]):
            if item not in left_out:
                rank += 1.0 if scores[user, item] > own else 0.5 * (scores[user, item] == own)
        ranks.append(rank)
    return np.array(ranks)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("levels", [5, 10_000])
def test_full_agrees_with_counting_by_hand(users, split, levels):
    random = np.random.default_rng(1)
    scores = random.integers(levels, size=(37, 150)).astype(np.float32)
    scores[random.random(scores.shape) < 0.2] = -np.inf
    given = torch.from_numpy(scores.copy())
    found = held_out_ranks(given, users, split, protocol="full", seed=1)
    assert np.array_equal(found, plain_ranks(scores, users, split))
    assert np.array_equal(given.numpy(), scores)


@pytest.mark.parametrize("protocol", ["sampled", "paper"])
def test_a_drawn_rank_counts_the_candidates_only(users, protocol):
    scores = torch.from_numpy(
        np.random.default_rng(2).integers(20, size=(37, 150)).astype(np.float32)
    )
    found = held_out_ranks(scores, users, "test", protocol=protocol, seed=4)
    items, usable = draw_candidates(users, 150, seed=4, device=CPU)
    assert usable.all()
    for user in range(37):
        held = users.test_items[user]
        own, others = scores[user, held], scores[user, items[user]]
        rank = float((others > own).sum() + 0.5 * (others == own).sum())
        assert found[user] == (rank if held != NO_ITEM else -1.0)


@pytest.mark.parametrize("protocol", ["full", "sampled"])
def test_a_score_that_is_not_a_number_ranks_last(users, protocol):
    scores = torch.zeros((37, 150))
    scores[0, users.test_items[0]] = torch.nan
    ranks = held_out_ranks(scores, users, "test", protocol=protocol, seed=1)
    n_candidates = 99 if protocol == "sampled" else 150 - len(users.train_of(0)) - 2
    assert ranks[0] == n_candidates
    assert ranks[1] == pytest.approx((99 if protocol == "sampled" else n_candidates) / 2)


def test_candidates_are_99_distinct_items_that_the_user_does_not_have(users):
    items, usable = draw_candidates(users, 150, seed=9, device=CPU)
    assert items.shape == (37, 99)
    assert usable.all()
    for user in range(37):
        drawn = set(items[user].tolist())
        assert len(drawn) == 99
        held = {int(users.validation_items[user]), int(users.test_items[user])}
        assert not drawn & (held | set(users.train_of(user).tolist()))


def test_candidates_follow_from_seed_and_user_alone(users, monkeypatch):
    items, _ = draw_candidates(users, 150, seed=9, device=CPU)
    chosen = np.array([30, 2, 17])
    some, _ = draw_candidates(users.select(chosen), 150, seed=9, device=CPU)
    assert torch.equal(some, items[torch.from_numpy(chosen)])
    monkeypatch.setattr(protocols, "_WORDS_AT_ONCE", 300)
    assert torch.equal(draw_candidates(users, 150, seed=9, device=CPU)[0], items)
    monkeypatch.undo()
    assert not torch.equal(draw_candidates(users, 150, seed=10, device=CPU)[0], items)


def test_candidates_are_uniform_over_the_free_items():
    data = generate(n_users=2000, n_items=400, n_clusters=4, interactions_per_user=5, seed=2)
    users = leave_one_out(data.interactions, data.catalogue)
    items, _ = draw_candidates(users, 400, seed=3, device=CPU)
    drawn = np.bincount(items.numpy().ravel(), minlength=400)
    held = np.bincount(
        np.concatenate([users.train_items, users.validation_items, users.test_items]),
        minlength=400,
    )
    chance = 99 / 395
    expected = (2000 - held) * chance
    deviations = (drawn - expected) / np.sqrt(expected * (1 - chance))
    assert np.abs(deviations).max() < 4.5
    assert 0.8 < deviations.std() < 1.2


def test_a_user_with_few_free_items_has_fewer_candidates():
    data = generate(n_users=4, n_items=40, n_clusters=2, interactions_per_user=10, seed=2)
    users = leave_one_out(data.interactions, data.catalogue)
    items, usable = draw_candidates(users, 40, seed=3, device=CPU)
    assert items.shape == (4, 40)
    assert usable.sum(1).tolist() == [30] * 4
    best = torch.zeros((4, 40))
    best[torch.arange(4), torch.from_numpy(users.test_items)] = 1.0
    ranks = held_out_ranks(best, users, "test", protocol="sampled", seed=3)
    assert ranks.tolist() == [0.0] * 4
    ranks = held_out_ranks(-best, users, "test", protocol="sampled", seed=3)
    assert ranks.tolist() == [30.0] * 4


@pytest.mark.parametrize("protocol", ["full", "sampled"])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_scores_of_some_items_rank_as_those_of_all_with_nothing_for_the_others(protocol, split):
    data = generate(n_users=40, n_items=150, n_clusters=3, interactions_per_user=8, seed=3)
    users = leave_one_out(data.interactions, data.catalogue)
    columns = np.sort(np.random.default_rng(1).choice(150, 60, replace=False))
    scores = torch.from_numpy(np.random.default_rng(2).integers(0, 9, (40, 60))).to(torch.float32)
    scores[3, :] = torch.nan
    whole = torch.full((40, 150), -torch.inf)
    whole[:, torch.from_numpy(columns)] = scores
    ranking = Ranking(users, 150, seed=5, device=torch.device("cpu"))
    rows = np.arange(40)
    expected = ranking.ranks(whole, rows, split, protocol)
    assert np.array_equal(ranking.ranks(scores, rows, split, protocol, columns), expected)
    held = users.validation_items if split == "validation" else users.test_items
    assert np.isin(held, columns).any()
    assert not np.isin(held, columns).all()


def test_one_row_of_scores_for_every_user_ranks_as_its_copies():
    data = generate(n_users=40, n_items=150, n_clusters=3, interactions_per_user=8, seed=3)
    users = leave_one_out(data.interactions, data.catalogue)
    row = torch.from_numpy(np.random.default_rng(2).integers(0, 9, 150)).to(torch.float64)
    ranking = Ranking(users, 150, seed=5, device=torch.device("cpu"))
    rows = np.arange(40)
    copies = ranking.ranks(row.repeat(40, 1), rows, "test", "full")
    assert np.array_equal(ranking.ranks(row.expand(40, -1), rows, "test", "full"), copies)


@pytest.mark.parametrize("protocol", ["full", "sampled"])
def test_where_no_item_has_a_score_all_are_equal(users, protocol):
    """A catalogue of which no item has enough holders: as if all were never recommended."""
    rows = np.arange(37)
    ranking = Ranking(users, 150, seed=4, device=CPU)
    nothing = torch.full((37, 150), -torch.inf)
    whole = ranking.ranks(nothing, rows, "test", protocol)
    none = np.zeros(0, dtype=np.int64)
    found = ranking.ranks(torch.zeros((37, 0)), rows, "test", protocol, none)
    assert np.array_equal(found, whole)
