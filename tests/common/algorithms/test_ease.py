"""ease against numbers derived by hand and against centralised EASE."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance.histories import split_of, versions
from reference.plain_ease import interactions_of, plain_ease

from fedrec.algorithms.ease import item_weights
from fedrec.data import generate, leave_one_out
from fedrec.errors import SettingsError, TrainingError
from fedrec.plan.combinations import find_conflicts
from fedrec.plan.layout import Layout, vector_spec
from fedrec.plan.schema import Plan
from fedrec.protection import PROTECTIONS
from fedrec.settings.schema import Settings
from fedrec.training.learner import Learner
from fedrec_lab.simulation.runner import simulate


def plan_of(n_rounds=4, regularisation=5.0, minimum_item_users=1, **sections):
    values = {
        "federation": {"maximum_users": 1024, "minimum_item_users": minimum_item_users},
        "algorithm": {"name": "ease", "regularisation": regularisation},
        "update": {"structure": "dense"},
        "rounds": {"total": n_rounds},
    }
    for section, change in sections.items():
        values[section] = {**values.get(section, {}), **change}
    return Plan.model_validate(values)


def weights_of(learner, shared):
    return item_weights(
        shared.tensors["pairs"],
        shared.tensors["item_users"],
        learner.server.active_items(shared),
        learner.server.plan.algorithm.regularisation,
    )


HISTORIES = ([0, 1], [0, 1], [0, 2])
# G + I of items 0, 1, 2 is [[4, 2, 1], [2, 3, 0], [1, 0, 2]] with the determinant 13, and its
# inverse [[6, -4, -3], [-4, 7, 2], [-3, 2, 8]] / 13. No user holds item 3.
WEIGHTS = [[0, 4 / 7, 3 / 8], [4 / 6, 0, -2 / 8], [3 / 6, -2 / 7, 0]]


def test_three_users_and_four_items_by_hand():
    learner = Learner(plan_of(n_rounds=2, regularisation=1.0), 4, device="cpu")
    users = split_of(HISTORIES)
    counted, first, last = versions(learner, [users])
    assert counted.holders.tolist() == [3, 2, 1, 0]
    assert counted.tensors["pairs"].tolist() == []
    # (0, 1), (0, 2), (1, 2); those with item 3 are not counted.
    assert first.tensors["pairs"].tolist() == [2, 1, 0]
    assert last.tensors["pairs"].tolist() == [2, 1, 0]
    assert last.tensors["item_users"].tolist() == [3, 2, 1, 0]
    for shared in (first, last):
        assert weights_of(learner, shared) == pytest.approx(np.array(WEIGHTS), abs=1e-15)
    ((_, scores),) = learner.local.score_blocks(last, users, learner.local.initial_private(users))
    # The third user holds 0 and 2; without a pair all scores were 0.
    assert scores[2].tolist() == pytest.approx([1 / 2, 4 / 7 - 2 / 7, 3 / 8, -np.inf])
    ((_, before),) = learner.local.score_blocks(
        counted, users, learner.local.initial_private(users)
    )
    assert before[2].tolist() == [0.0, 0.0, 0.0, -np.inf]


def test_the_loss_is_that_of_the_version_at_the_start():
    learner = Learner(plan_of(n_rounds=2, regularisation=1.0), 4, device="cpu")
    users = split_of(HISTORIES)
    _, _, last = versions(learner, [users])
    part = learner.contribute("train", 4, last, users, learner.local.initial_private(users))
    # Of {0, 1}: (1 - 4/6)^2 and (1 - 4/7)^2; of {0, 2}: (1 - 3/6)^2 and (1 - 3/8)^2.
    own = [(1 / 9 + 9 / 49) / 2, (1 / 9 + 9 / 49) / 2, (1 / 4 + 25 / 64) / 2]
    assert learner.server.metrics(part.vector).loss == pytest.approx(np.mean(own), abs=1e-5)
    assert not learner.server.travelling.unpack("train", last, part.vector).changes["pairs"].any()
    again = learner.server.apply("train", 4, last, part.vector)
    assert again.canonical_bytes() == replace(last, trained=3).canonical_bytes()


def test_more_rounds_than_pairs_leave_the_last_ones_nothing_to_count():
    # 256 rows travel, with 32,640 pairs: two of them in each round.
    learner = Learner(plan_of(n_rounds=16_320), 4, device="cpu")
    found = [
        shared.tensors["pairs"].tolist()
        for _, shared in zip(range(4), versions(learner, [split_of(HISTORIES)]), strict=False)
    ]
    assert found == [[], [2, 1], [2, 1, 0], [2, 1, 0]]


def test_pairs_are_those_of_active_items():
    """Items 1 and 3 have too few holders; 0, 2 and 4 are the places 0, 1 and 2."""
    learner = Learner(plan_of(n_rounds=1, minimum_item_users=2), 5, device="cpu")
    *_, last = versions(learner, [split_of(([0, 1, 2, 4], [0, 2], [0, 3, 4]))])
    assert last.holders.tolist() == [3, 1, 2, 1, 2]
    # (0, 2) by two users, (0, 4) by two, (2, 4) by one.
    assert last.tensors["pairs"].tolist() == [2, 2, 1]


@pytest.fixture(scope="module")
def data():
    return generate(n_users=150, n_items=80, n_clusters=5, interactions_per_user=14, seed=4)


@pytest.fixture(scope="module")
def users(data):
    return leave_one_out(data.interactions, data.catalogue)


@pytest.mark.parametrize("n_rounds", [1, 4, 7])
@pytest.mark.parametrize("least", [1, 22])
def test_it_equals_centralised_ease_on_the_filtered_catalogue(users, n_rounds, least):
    learner = Learner(plan_of(n_rounds, minimum_item_users=least), 80, device="cpu")
    dealt = np.random.default_rng(0).permutation(len(users))
    parties = [users.select(rows) for rows in np.array_split(dealt, 3)]
    *_, last = versions(learner, parties)
    histories = [party.train_of(row) for party in parties for row in range(len(party))]
    matrix = interactions_of(histories, 80)
    enough = matrix.sum(0) >= least
    assert least == 1 or 0 < enough.sum() < 80
    kept = matrix[:, enough]
    wanted = plain_ease(kept, 5.0)
    assert np.abs(weights_of(learner, last) - wanted).max() < 1e-9
    ((_, scores),) = learner.local.score_blocks(
        last, parties[0], learner.local.initial_private(parties[0])
    )
    own = kept[: len(parties[0])] @ wanted
    assert scores[:, enough].numpy() == pytest.approx(own, abs=1e-5)


def test_nothing_is_scored_before_the_last_pair_is_counted(users):
    learner = Learner(plan_of(40), 80, device="cpu")
    matrix = interactions_of([users.train_of(row) for row in range(len(users))], 80)
    found = list(versions(learner, [users]))
    # 80 * 79 / 2 = 3160 pairs of active items, in parts of 32640 / 40 = 816.
    for part in range(1, 7):
        assert len(found[part].tensors["pairs"]) == min(3160, 816 * part)
    assert not any(weights_of(learner, shared).any() for shared in found[:4])
    assert np.abs(weights_of(learner, found[4]) - plain_ease(matrix, 5.0)).max() < 1e-9


def test_the_whole_model_is_chosen(data, users):
    # 32,640 pairs in parts of 1,088: those of 80 items are there after the third.
    settings = Settings.model_validate(plan_of(30).model_dump() | {"client": {"device": "cpu"}})
    result = simulate(settings, users=users, catalogue=data.catalogue)
    assert result.best.round == 4
    measured = [report.validation.ndcg for report in result.rounds if report.validation]
    # Scores of 0 are ties, which rank like chance.
    assert measured[3] > measured[0] == measured[1] == measured[2]


def test_who_holds_every_item_is_counted_too():
    learner = Learner(plan_of(n_rounds=1), 3, device="cpu")
    *_, last = versions(learner, [split_of(([0, 1, 2], [0, 1]))])
    assert last.tensors["pairs"].tolist() == [2, 1, 1]
    assert last.tensors["item_users"].tolist() == [2, 2, 1]


def test_a_round_sums_over_those_who_were_counted_last():
    # 256 rows travel, with 32,640 pairs: one of them in each round.
    learner = Learner(plan_of(n_rounds=32_640, regularisation=1.0), 3, device="cpu")
    here, there = split_of(([0, 1, 2],)), split_of(([0, 1, 2], [0, 1]))
    shared = learner.server.initial_shared()
    for parties in ([here, there], [here], [here, there]):
        for kind in ("count", "train"):
            total = sum(
                learner.contribute(kind, 2, shared, own, learner.local.initial_private(own)).vector
                for own in parties
            )
            shared = learner.server.apply(kind, 2, shared, total)
    assert shared.tensors["pairs"].tolist() == [3, 1, 2]
    assert shared.tensors["item_users"].tolist() == [3, 3, 2]


@pytest.mark.slow
def test_the_weights_do_not_depend_on_threads():
    held = (np.random.default_rng(0).random((400, 300)) < 0.1).astype(np.float64)
    gram = held.T @ held
    pairs = np.concatenate([gram[:item, item] for item in range(1, 300)])
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(item_weights(pairs, np.diag(gram).copy(), np.arange(300), 5.0))
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)
    inverse = np.linalg.inv(gram + 5.0 * np.eye(300))
    wanted = inverse / -np.diag(inverse)
    np.fill_diagonal(wanted, 0.0)
    assert found[0] == pytest.approx(wanted, abs=1e-10)


def test_counts_of_no_set_of_users_give_no_model():
    all_equal = np.ones(3)
    # Items 0 and 1 and items 1 and 2 always together, but never 0 and 2.
    assert np.linalg.eigvalsh([[1, 1, 0], [1, 1, 1], [0, 1, 1]])[0] < -0.4
    with pytest.raises(TrainingError, match="No set of users has these pair counts") as caught:
        item_weights(np.array([1.0, 0.0, 1.0]), all_equal, np.arange(3), 0.1)
    assert "rounds.minimum_clients" in caught.value.remedy
    assert np.isfinite(item_weights(np.array([1.0, 0.0, 1.0]), all_equal, np.arange(3), 1.0)).all()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rounds": {"user_fraction": 0.5}}, "rounds.user_fraction is 0.5"),
        ({"rounds": {"clients_per_round": 8}}, "rounds.clients_per_round is 8"),
        ({"update": {"fraction_bits": 12}}, "update.fraction_bits is set"),
        ({"update": {"structure": "colr"}}, "no low-rank form"),
        ({"evaluation": {"protocol": "paper"}}, "No negatives are drawn"),
    ],
)
def test_plans_that_cannot_count_are_refused(change, word):
    assert find_conflicts(plan_of()) == []
    found = [conflict.sentence for conflict in find_conflicts(plan_of(**change))]
    assert any(word in sentence for sentence in found), found


def test_too_large_a_catalogue_is_refused_with_what_would_help():
    with pytest.raises(SettingsError, match=r"20000 rows travel, .* 199990000 pairs") as caught:
        Layout.of(plan_of(100), 20_000)
    assert "fedals" in caught.value.remedy
    # 10,000 items have 49,995,000 pairs; in three rounds those are 16,665,000 each.
    with pytest.raises(SettingsError, match="sum 24997500 of them: 99990000 bytes") as caught:
        Layout.of(plan_of(2), 10_000)
    assert "rounds.total = 3 or more" in caught.value.remedy
    assert Layout.of(plan_of(3), 10_000).change_slice.stop == 16_665_000


@pytest.mark.parametrize("protection", ["bfv", "ckks"])
def test_encrypted_sums_are_exact_integers(protection):
    plan = plan_of(4, protection={"name": protection, "preset": "default"})
    assert find_conflicts(plan) == []
    spec = vector_spec(plan, 100)
    # 256 rows: 256 * 255 / 2 pairs in four parts.
    assert spec.segments[0].length == 8160
    assert spec.segments[0].max_abs_sum == 1024
    assert not spec.segments[0].signed
    assert PROTECTIONS[protection].plan(spec, preset="default").error_bound < 1 / 4
