"""The tables of a cohort: the same in parts of users as at once, and little memory to make them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from world.plans import users_of

from fedrec.algorithms import cohort
from fedrec.algorithms.cohort import Cohort
from fedrec.data import splits
from fedrec.data.splits import UserSplit


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("paper", [False, True])
def test_parts_of_users_make_the_tables_of_all_at_once(paper, mapped, monkeypatch, tmp_path):
    users = users_of(40, 60, clusters=4, each=9, seed=1, thin=0.25)
    counts = np.bincount(users.train_items, minlength=60).tolist()
    monkeypatch.setattr(splits, "MOST_FILE_USERS", 9)
    if mapped:
        users = users.in_files(tmp_path)
    monkeypatch.setattr(splits, "_ITEMS_AT_ONCE", 7)
    assert users.item_counts(60).tolist() == counts
    active = np.arange(0, 60, 2)
    assert users.counts_among(np.isin(np.arange(60), active)).tolist() == [
        np.isin(users.train_of(user), active).sum() for user in range(len(users))
    ]
    monkeypatch.setattr(cohort, "_USERS_AT_ONCE", 7)
    tables = Cohort(
        users,
        active=active,
        n_items=60,
        exclude_held_out=paper,
        needs_negatives=True,
        left_out=active == 8,
    ).tables
    place = {int(item): n for n, item in enumerate(active) if item != 8}
    for user in range(len(users)):
        own = users.train_of(user).tolist()
        held = [int(users.validation_items[user]), int(users.test_items[user])]
        begin, end = tables.pointers[user : user + 2]
        assert tables.positives[begin:end].tolist() == sorted(place[i] for i in own if i in place)
        begin, end = tables.excluded_pointers[user : user + 2]
        without = sorted(place[i] for i in own + held * paper if i in place)
        assert tables.excluded[begin:end].tolist() == without
    chunk = tables.chunk_of(np.array([3, 1]), torch.device("cpu"))
    assert chunk.positives.dtype == torch.int64


def test_making_the_tables_takes_little_more_memory_than_they_do():
    n_users, each = 100_000, 20
    items = np.arange(n_users * each) % each + np.repeat(np.arange(n_users) % 900, each)
    no_item = np.full(n_users, -1)
    users = UserSplit(
        user_ids=("u",) * n_users,
        train_indptr=np.arange(0, n_users * each + 1, each),
        train_items=items,
        validation_items=no_item,
        test_items=no_item,
    )
    tracemalloc.start()
    try:
        tables = Cohort(
            users,
            active=np.arange(1000),
            n_items=1000,
            exclude_held_out=False,
            needs_negatives=True,
        ).tables
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # All users at once took 82 MB more than the tables, and 16,384 at a time take 14 MB. A position
    # among 1,000 items takes 2 bytes.
    assert tables.positives.nbytes == 2 * n_users * each
    assert peak < tables.pointers.nbytes + tables.positives.nbytes + 24e6
