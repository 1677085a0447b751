"""Cells that are dealt, taken from rosters and counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedrec.data import generate, leave_one_out
from fedrec.errors import SettingsError
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import (
    CellRows,
    cell_rows,
    cells_in_use,
    deal_cells,
    fewest_clients_of,
    held_in_cells,
    trained_items,
)


def plan_of(**sections: dict[str, Any]) -> Plan:
    values = {
        "federation": {"minimum_item_users": 4},
        "protection": {"name": "bfv", "key_holder": "authority"},
        **sections,
    }
    return Plan.model_validate(values)


def test_parties_are_dealt_in_turn():
    plan = plan_of()
    assert deal_cells(plan, 2, 7) == ((0, 2, 4, 6), (1, 3, 5))
    assert deal_cells(plan, 1, 3) == ()
    assert fewest_clients_of(plan, 4) == 12
    assert fewest_clients_of(plan_of(rounds={"minimum_summands": 5, "minimum_clients": 5}), 2) == 10


@pytest.mark.parametrize(
    ("n_cells", "n_clients", "corrupt", "named"),
    [
        (3, 8, 1, "8 clients are too few for 3 cells: each has at least 3."),
        (2, 6, 2, "federation.corrupt_cells = 2"),
    ],
)
def test_cells_that_cannot_be(n_cells, n_clients, corrupt, named):
    plan = plan_of(federation={"minimum_item_users": 4, "corrupt_cells": corrupt})
    with pytest.raises(SettingsError) as raised:
        deal_cells(plan, n_cells, n_clients)
    assert named in raised.value.message
    assert raised.value.remedy


@pytest.mark.parametrize("cells", [((0, 1), (1, 2)), ((0,), (3,)), ((-1,), (0,))])
def test_cells_are_parts_of_the_parties(cells):
    with pytest.raises(SettingsError, match="0 to 2"):
        cells_in_use(plan_of(), cells, 3)


@pytest.mark.parametrize(
    "sections",
    [
        {"protection": {"name": "none"}},
        {"protection": {"name": "bfv", "key_holder": "members"}},
        {"federation": {"minimum_item_users": 1}},
    ],
)
def test_other_plans_count_no_cells(sections):
    assert deal_cells(plan_of(**sections), 2, 6) == ()


def test_an_item_is_held_outside_the_largest_cell():
    """Of cells (0, 2) and (1, 3); the last party of all is a guest and counts in neither."""
    counts = [
        np.array(one)
        for one in (
            [2, 9, 2, 0],
            [2, 0, 2, 0],
            [2, 9, 1, 0],
            [2, 3, 2, 0],
            [9, 9, 9, 9],
        )
    ]
    cells = ((0, 2), (1, 3))
    assert held_in_cells(plan_of(), counts, cells).tolist() == [True, False, False, False]


@pytest.mark.parametrize("n_cells", [0, 2, 3])
def test_rows_are_those_of_the_definition(n_cells):
    made = generate(n_users=60, n_items=80, n_clusters=3, interactions_per_user=10, seed=2)
    users, n_items = leave_one_out(made.interactions, made.catalogue), len(made.catalogue)
    plan = plan_of()
    cells = deal_cells(plan, n_cells, 9) if n_cells else ()
    kept = trained_items(plan, users, n_items, n_clients=9, cells=cells)
    holders = np.bincount(users.train_items, minlength=n_items)
    found = cell_rows(plan, users, n_items, n_clients=9, cells=cells)
    assert found.n_trained == kept.sum()
    assert found.n_trained + found.n_left_out == (holders >= 4).sum()
    assert (found.n_left_out > 0) == bool(cells)
    assert not kept[holders < 4].any()


def test_what_is_said_names_the_setting():
    found = CellRows(n_trained=7, n_left_out=2)
    assert found.sentence(plan_of()) == (
        "7 items are trained. 2 more are held by 4 users, but not outside the largest cell "
        "(federation.corrupt_cells = 1)."
    )
    two = plan_of(federation={"minimum_item_users": 4, "corrupt_cells": 2})
    assert "largest 2 cells (federation.corrupt_cells = 2)" in found.sentence(two)
