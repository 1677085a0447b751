"""A client's own floor against a member that raises the counts of rare items."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from world.plans import plan_of

from fedrec.data import UserSplit, generate, leave_one_out
from fedrec.data.interactions import user_groups
from fedrec.plan.travelling_rows import own_rows_of
from fedrec.training.learner import Learner
from fedrec_lab.audit.sums import determined_users

N_ITEMS, N_CLIENTS, LEAST = 60, 3, 6


@pytest.mark.parametrize(("floor", "succeeds"), [(1, True), (3, False)])
def test_a_member_that_raises_all_counts_reads_rows_of_few(floor, succeeds):
    """The attacker is the first client; it takes its own part away and looks at the others'."""
    made = generate(n_users=36, n_items=N_ITEMS, n_clusters=3, interactions_per_user=8, seed=2)
    users = leave_one_out(made.interactions, made.catalogue)
    others = [users.select(rows) for rows in user_groups(users.user_ids, N_CLIENTS)][1:]
    plan = plan_of(
        federation={"minimum_item_users": LEAST, "maximum_users": 64},
        algorithm={"name": "ease"},
        update={"structure": "dense"},
        rounds={"total": 1},
    )
    learner = Learner(plan, N_ITEMS, device="cpu")
    shared = learner.server.initial_shared()
    counted = sum(vectors(learner, "count", others, floor, shared))
    raised = counted + np.where(np.arange(len(counted)) < N_ITEMS, LEAST, 0)
    shared = learner.server.apply("count", 1, shared, raised)
    assert len(learner.server.active_items(shared)) == N_ITEMS
    pairs = sum(vectors(learner, "train", others, floor, shared))[: N_ITEMS * (N_ITEMS - 1) // 2]
    gram = np.zeros((N_ITEMS, N_ITEMS), dtype=np.int64)
    for column in range(N_ITEMS):
        begin = column * (column - 1) // 2
        gram[:column, column] = pairs[begin : begin + column]
    few = np.zeros(N_ITEMS, dtype=np.bool_)
    for own in others:
        held = np.bincount(own.train_items, minlength=N_ITEMS)
        few |= (held > 0) & (held < 3)
    everywhere = few & ~held_by_enough(others)
    assert everywhere.any()
    assert ((gram + gram.T)[everywhere].any()) == succeeds
    # Rebuilt as `fedrec audit --only sums` does, over what the rows of rare items say.
    sent = [stripped(own, floor) for own in others]
    pointers = np.concatenate(
        [[0], np.cumsum([n for own in sent for n in np.diff(own.train_indptr)])]
    )
    items = np.concatenate([own.train_items for own in sent])
    inferred = determined_users(pointers, items, N_ITEMS)
    assert np.array_equal(np.triu(inferred.gram, 1), gram)
    holds_few = [bool(everywhere[items[a:b]].any()) for a, b in pairwise(pointers)]
    assert bool((inferred.determined & holds_few).any()) == succeeds


def held_by_enough(others: list[UserSplit]) -> NDArray[np.bool_]:
    counts = [np.bincount(own.train_items, minlength=N_ITEMS) for own in others]
    return np.any([count >= 3 for count in counts], axis=0)


def stripped(own: UserSplit, floor: int) -> UserSplit:
    rows = own_rows_of(np.bincount(own.train_items, minlength=N_ITEMS), floor)
    return own if rows is None else own.renumbered(np.where(rows, np.arange(N_ITEMS), -1))


def vectors(learner, kind, others, floor, shared):  # type: ignore[no-untyped-def]
    return [
        learner.contribute(
            kind,
            1,
            shared,
            own,
            learner.local.initial_private(own),
            own_rows=own_rows_of(np.bincount(own.train_items, minlength=N_ITEMS), floor),
        ).vector
        for own in others
    ]
