"""ease under noise: what a user contributes in all parts together, and the model of noisy sums."""

from __future__ import annotations

import numpy as np
import pytest
from conformance.histories import split_of, versions
from world.plans import plans

from fedrec.algorithms import noisy_pairs
from fedrec.algorithms.declarations import SumNoise
from fedrec.algorithms.noisy_pairs import planned_release
from fedrec.data import generate, leave_one_out
from fedrec.plan.combinations import find_conflicts
from fedrec.plan.planned_noise import mechanism_of
from fedrec.training.learner import Learner

N_ITEMS = 12
plan_of = plans(
    federation={"maximum_users": 1024, "minimum_item_users": 1},
    algorithm={"name": "ease"},
    update={"structure": "dense"},
    rounds={"total": 3},
    privacy={"mechanism": "gaussian", "epsilon": 50.0, "expected_users": 1e5},
)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(noisy_pairs, "_FEWEST_ROWS", 4)


def learner_of(n_items=N_ITEMS, **sections):
    plan = plan_of(**sections)
    assert find_conflicts(plan) == []
    return Learner(plan, n_items, device="cpu")


def release_of(learner, users, counts=None):
    """Return what users contribute to all parts of a release, in grid steps and without noise.

    Args:
        counts: the noisy counts by which rows are chosen; those of these users by default.
    """
    server, found = learner.server, []
    shared = server.initial_shared()
    private = learner.local.initial_private(users)
    kinds = ["count", *["train"] * server.plan.rounds.total]
    for number, kind in enumerate(kinds, 1):
        vector = learner.contribute(kind, number, shared, users, private).vector
        if kind == "train":
            found.append(vector[server.layout.change_slice])
        shared = server.apply(kind, number, shared, vector)
        if len(found) == 1 and counts is not None:
            shared = shared.with_tensors(pairs=np.asarray(counts, dtype=np.float64))
    return np.concatenate(found)


HISTORIES = ([0], [0, 1], [2, 5, 7], list(range(N_ITEMS)), [11], [3, 4, 5, 6, 7, 8, 9])


@pytest.mark.parametrize("total", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("clip", [1.0, 0.37])
def test_all_parts_together_are_within_the_clip(total, clip):
    learner = learner_of(rounds={"total": total}, privacy={"clip": clip})
    bound = mechanism_of(learner.server.plan).bound
    for history in HISTORIES:
        values = release_of(learner, split_of([history])).tolist()
        square = sum(value * value for value in values)
        assert (0.999 * bound) ** 2 < square <= bound**2


def test_neighbours_differ_by_one_user_and_a_replaced_one_by_the_root_of_two():
    learner = learner_of()
    bound = mechanism_of(learner.server.plan).bound
    # The rows are public, and so the same for both neighbours.
    counts = np.arange(N_ITEMS, 0.0, -1.0)
    whole, without, replaced = (
        release_of(learner, split_of(histories), counts)
        for histories in (HISTORIES, HISTORIES[1:], [[4, 9], *HISTORIES[1:]])
    )
    alone = release_of(learner, split_of(HISTORIES[:1]), counts)
    assert np.array_equal(whole - without, alone)
    assert sum(value**2 for value in alone.tolist()) <= bound**2
    change = sum(value**2 for value in (whole - replaced).tolist())
    assert 1.9 * bound**2 < change <= 2 * bound**2


def test_rows_that_a_reader_chooses_change_nothing_of_the_bound(monkeypatch):
    """Whatever counts are published, a user's pairs have the length b at most."""
    monkeypatch.setattr(noisy_pairs, "MOST_ROWS", 5)
    learner = learner_of()
    bound, random = mechanism_of(learner.server.plan).bound, np.random.default_rng(0)
    for _ in range(8):
        counts = random.normal(size=N_ITEMS)
        for history in HISTORIES:
            values = release_of(learner, split_of([history]), counts).tolist()
            assert sum(value * value for value in values) <= bound**2


def test_three_users_by_hand():
    """a^2 = .3: of {0, 1} a count has a / sqrt(2), a pair sqrt(2) b / 2, an item b / 2."""
    learner = learner_of(4, rounds={"total": 2})
    values = release_of(learner, split_of([[0, 1], [2], [0, 1, 2, 3]])) * 2.0**-20
    a, b = 0.3**0.5, 0.7**0.5
    counts = [a / 2**0.5 + a / 2, a / 2**0.5 + a / 2, a + a / 2, a / 2]
    pair, item = b * 2**0.5 / 2, b / 2
    four, one = b * 2**0.5 / 4, b / 4
    # (0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2), (0, 3), (1, 3), (2, 3), (3, 3).
    entries = [item + one, pair + four, item + one, four, four, b + one, four, four, four, one]
    assert values[:4] == pytest.approx(counts, abs=1e-5)
    assert values[learner.server.layout.change_slice.stop :][:10] == pytest.approx(
        entries, abs=1e-5
    )


@pytest.mark.parametrize("total", [3, 4, 7, pytest.param(60, marks=pytest.mark.slow)])
def test_the_length_of_parts_changes_nothing(total):
    users = split_of(HISTORIES)
    found = []
    for n_rounds in (2, total):
        learner = learner_of(rounds={"total": n_rounds})
        *_, last = versions(learner, [users])
        found.append(last)
    assert np.array_equal(found[0].kept["pairs"], found[1].kept["pairs"])
    assert len(found[0].kept["pairs"]) == N_ITEMS + N_ITEMS * (N_ITEMS + 1) // 2


def noise_of(deviation, users):
    return SumNoise(clip=1.0, step=2.0**-20, deviation=deviation, users=users)


def test_the_rule_takes_rows_by_users_and_noise_and_rounds():
    def rows(users, deviation=1.0, n_items=1000, n_rounds=2):
        return planned_release(n_items, n_rounds, noise_of(deviation, users)).n_rows

    assert rows(1) == 0 and rows(1e9) == 1000
    assert rows(200) <= rows(400) <= rows(800)
    assert rows(400, deviation=4.0) <= rows(400)
    assert rows(1e9, n_rounds=1) == 0
    assert rows(1e9, n_items=40_000) * (rows(1e9, n_items=40_000) + 1) // 2 <= 1 << 24
    assert rows(1e9, n_items=40_000, n_rounds=100) == 16_384
    # The counts alone use the whole clip.
    assert planned_release(1000, 2, noise_of(1.0, 1)).of_counts == 1.0


def test_lambda_is_not_a_choice():
    (conflict,) = find_conflicts(plan_of(algorithm={"regularisation": 30.0}))
    assert "lambda follows from the noise" in conflict.sentence


@pytest.fixture(scope="module")
def data():
    return generate(n_users=150, n_items=80, n_clusters=5, interactions_per_user=14, seed=4)


def test_without_noise_it_is_ease_of_the_pairs_that_rise_above_the_edge(data, monkeypatch):
    """With hardly any noise, against a plain form of the formulas."""
    monkeypatch.setattr(noisy_pairs, "_POPULARITY", 0.0)
    users = leave_one_out(data.interactions, data.catalogue)
    learner = learner_of(80, rounds={"total": 2})
    release = learner.server.algorithm._release
    *_, last = versions(learner, [users])
    model = release.model(last.kept["pairs"])
    factor, scale = model["factor"], model["scale"]
    weights = (factor @ factor.T) * scale
    np.fill_diagonal(weights, 0.0)
    rows = np.zeros((len(users), 80))
    rows[users.train_owner, users.train_items] = 1.0
    gram = (rows / rows.sum(1, keepdims=True)).T @ rows
    assert release.n_rows == 80
    edge = release.deviation / release.of_pairs * np.sqrt(2 * release.n_rows)
    own, shown = np.diag(gram), np.zeros(80)
    for _ in range(noisy_pairs._FILLS + 1):
        values, vectors = np.linalg.eigh(gram - np.diag(own - shown))
        kept = np.where(values > edge, values, 0.0)
        shown = np.minimum(np.diag((vectors * kept) @ vectors.T), own)
    shrunk = np.sqrt(np.maximum(kept**2 - edge**2, 0.0))
    low = (vectors * shrunk) @ vectors.T
    rest = np.maximum(own - np.diag(low), 0.0)
    inverse = np.linalg.inv(low + np.diag(rest + noisy_pairs._LAMBDA * edge))
    wanted = -inverse / np.diag(inverse)
    np.fill_diagonal(wanted, 0.0)
    assert np.abs(weights - wanted).max() < 1e-4


def test_noise_alone_is_no_information():
    learner = learner_of(80, rounds={"total": 2}, privacy={"epsilon": 1.0})
    no_users = split_of([[0]]).select(np.array([], dtype=np.int64))
    server = learner.server
    shared = server.initial_shared()
    private = learner.local.initial_private(no_users)
    for number, kind in enumerate(("count", "train", "train"), 1):
        vector = learner.contribute(kind, number, shared, no_users, private).vector
        if kind == "train":
            vector = server.layout.add_noise(vector, 3)
        shared = server.apply(kind, number, shared, vector)
    served = server.algorithm.serving(shared, np.arange(80))
    assert not served["popularity"].any()
    assert np.abs(shared.kept["pairs"]).max() > 1.0


def test_a_setting_without_effect_is_refused():
    (conflict,) = find_conflicts(plan_of(privacy={"rounds_per_user": 3}))
    assert conflict.keys[0] == "privacy.rounds_per_user"
