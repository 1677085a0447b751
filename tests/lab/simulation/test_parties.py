"""Dividing users among simulated clients."""

import numpy as np
import pytest

from fedrec.data import generate, leave_one_out, partition_users
from fedrec.data.interactions import user_groups
from fedrec.errors import TrainingError
from fedrec.model.state import PrivateState
from fedrec.settings.schema import Settings
from fedrec.training.user_half import UserHalf
from fedrec_lab.simulation import simulate
from fedrec_lab.simulation.parties import simulated_participants


@pytest.mark.parametrize("n_parts", [1, 3, 7])
def test_groups_are_those_of_partition_users(n_parts):
    made = generate(n_users=25, n_items=40, n_clusters=2, interactions_per_user=6, seed=1)
    users = leave_one_out(made.interactions, made.catalogue)
    groups = user_groups(users.user_ids, n_parts)
    for group, part in zip(groups, partition_users(made.interactions, n_parts), strict=True):
        expected = leave_one_out(part, made.catalogue)
        found = users.select(group)
        assert found.user_ids == expected.user_ids
        assert np.array_equal(found.train_items, expected.train_items)
        assert np.array_equal(found.test_items, expected.test_items)


def test_coins_depend_on_user_and_round_alone():
    keys = np.arange(5000, dtype=np.int64) * 7919
    coins = simulated_participants(keys, seed=1, round_id=3, fraction=0.3)
    assert np.array_equal(
        simulated_participants(keys[::-1], seed=1, round_id=3, fraction=0.3), coins[::-1]
    )
    assert abs(coins.mean() - 0.3) < 0.03
    other = simulated_participants(keys, seed=1, round_id=4, fraction=0.3)
    assert abs((coins & other).mean() - 0.09) < 0.02
    assert simulated_participants(keys, seed=1, round_id=3, fraction=1.0) is None


def test_a_counted_share_is_exact_and_drawn_anew_whatever_the_order():
    keys = np.arange(40, dtype=np.int64) * 7919
    rounds = [
        simulated_participants(keys, seed=1, round_id=number, fraction=0.3, counted=True)
        for number in range(1, 201)
    ]
    assert {int(chosen.sum()) for chosen in rounds} == {12}
    backwards = simulated_participants(keys[::-1], seed=1, round_id=1, fraction=0.3, counted=True)
    assert np.array_equal(backwards, rounds[0][::-1])
    # 200 rounds of 12 of 40: each user 60 times, with a standard deviation of 6.5.
    assert np.abs(np.sum(rounds, axis=0) - 60).max() < 26
    few = simulated_participants(keys[:2], seed=1, round_id=1, fraction=0.01, counted=True)
    assert few.sum() == 1


@pytest.mark.parametrize(
    ("n_users", "fraction", "n_chosen"),
    [(943, 0.6, 565), (1227, 0.1, 122), (6040, 0.01, 60), (100, 0.29, 29)],
)
def test_a_counted_share_is_rounded_down(n_users, fraction, n_chosen):
    """565.8, 122.7 and 60.4 users of papers' data; .29 x 100 is below 29 in binary."""
    keys = np.arange(n_users, dtype=np.int64)
    chosen = simulated_participants(keys, seed=1, round_id=2, fraction=fraction, counted=True)
    assert chosen.sum() == n_chosen


def settings_of(learning_rate, regularisation=0.0):
    return Settings.model_validate(
        {
            "federation": {"minimum_item_users": 1},
            "algorithm": {
                "name": "fedmf",
                "dim": 4,
                "learning_rate": learning_rate,
                "regularisation": regularisation,
            },
            "update": {"structure": "dense"},
            "rounds": {"total": 2},
            "client": {"device": "cpu"},
        }
    )


@pytest.fixture
def data():
    made = generate(n_users=12, n_items=20, n_clusters=2, interactions_per_user=6)
    return {
        "users": leave_one_out(made.interactions, made.catalogue),
        "catalogue": made.catalogue,
    }


def test_a_party_that_diverges_sits_out_and_is_counted(data, monkeypatch):
    """Its vectors are not numbers from the start; the other two go on as if it had not come."""
    begun = UserHalf.initial_private

    def broken(self, users):
        private = begun(self, users)
        if min(users.user_keys()) == min(data["users"].user_keys()):
            vectors = private.tensors["user_embedding"] * np.float32(np.nan)
            private = PrivateState({"user_embedding": vectors})
        return private

    monkeypatch.setattr(UserHalf, "initial_private", broken)
    result = simulate(settings_of(0.5), n_clients=3, **data)
    trained = [report for report in result.rounds if report.kind == "train"]
    assert [report.abstained for report in trained] == [1, 1]
    assert [report.participants for report in trained] == [8, 8]
    table = result.last.shared.tensors["item_embedding"]
    assert np.isfinite(table).all()


@pytest.mark.parametrize("n_clients", [1, 3])
def test_when_every_user_diverges_the_run_ends(data, n_clients):
    with pytest.raises(TrainingError, match=r"algorithm\.learning_rate"):
        simulate(settings_of(1000.0, 10.0), n_clients=n_clients, **data)
