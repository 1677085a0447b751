"""What indices in the clear say about histories: guesses counted by hand, and on planted data."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data import generate, leave_one_out
from fedrec.errors import SettingsError
from fedrec.plan.schema import Plan
from fedrec_lab.audit.indices import audit_indices, guessed_items, leak_of


def plan_of(structure: str, algorithm: str = "fedmf", **update: object) -> Plan:
    algorithms = {"fedmf": {"name": "fedmf", "dim": 4}, "ease": {"name": "ease"}}
    return Plan.model_validate(
        {
            "federation": {"seed": 3, "minimum_item_users": 1},
            "algorithm": algorithms[algorithm],
            "update": {"structure": structure, **update},
        }
    )


DATA = generate(n_users=12, n_items=200, n_clusters=2, interactions_per_user=8, noise=0.2, seed=2)
USERS = leave_one_out(DATA.interactions, DATA.catalogue)
N_ITEMS = len(DATA.catalogue)


def test_items_that_came_every_time_are_guessed():
    times = np.array([3, 2, 0, 3, 1])
    assert guessed_items(times, 3).tolist() == [0, 3]


def test_precision_and_recall_by_hand():
    """Two of four guesses are right of five items; one of one of two; nothing of one."""
    guesses = [
        (np.array([1, 2, 3, 4]), np.array([3, 4, 5, 6, 7])),
        (np.array([9]), np.array([9, 10])),
        (np.array([], dtype=np.int64), np.array([5])),
    ]
    found = leak_of(guesses, 2)
    assert found.precision == pytest.approx((2 / 4 + 1) / 2)
    assert found.recall == pytest.approx((2 / 5 + 1 / 2 + 0) / 3)
    assert found.guessed == pytest.approx(5 / 3)
    assert found.known_users == 0
    assert leak_of([(np.array([1, 2]), np.array([1, 2]))], 1).known_users == 1


def test_touched_rows_hold_every_item_of_the_history():
    """A dense update moves the rows of all positives, and of as many negatives as were drawn."""
    found = audit_indices(plan_of("dense"), USERS, N_ITEMS, n_rounds=3)
    first, _, third = found.rounds
    assert first.recall == 1.0
    # Four negatives for each positive: a fifth of the touched rows at least.
    assert 0.2 <= first.precision < 0.5
    assert third.recall == 1.0
    assert third.precision > 2 * first.precision
    held = np.diff(USERS.train_indptr).mean()
    assert found.chance == pytest.approx(held / N_ITEMS)


def test_fewer_kept_values_show_fewer_rows():
    """k = ceil(.005 x 200 x 4) = 4 values are in four rows at most."""
    found = audit_indices(plan_of("topk", ratio=0.005), USERS, N_ITEMS, n_rounds=1, most_users=5)
    assert found.sent == "the 4 largest of 800 values, each with its index"
    assert found.n_users == 5
    assert 1 <= found.rounds[0].guessed <= 4


def test_clear_indices_are_said_to_travel():
    """What is measured is the same: hidden or not, the same values are kept."""
    clear = plan_of("topk", ratio=0.005, indices="clear")
    hidden = plan_of("topk", ratio=0.005)
    sent, would = (audit_indices(plan, USERS, N_ITEMS, n_rounds=1) for plan in (clear, hidden))
    assert (sent.is_sent, would.is_sent) == (True, False)
    assert (sent.sent, sent.rounds) == (would.sent, would.rounds)


def test_sums_without_rows_of_items_have_no_indices():
    with pytest.raises(SettingsError, match="no rows of items"):
        audit_indices(plan_of("dense", "ease"), USERS, N_ITEMS)
