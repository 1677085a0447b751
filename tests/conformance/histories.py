"""Users whose histories a test chooses, and the models that they train one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedrec.data import UserSplit, generate, leave_one_out
from fedrec.ids import UserId
from fedrec.model.state import PrivateState, SharedState
from fedrec.training.learner import Learner
from fedrec.wire.messages import RoundKind


def unequal_users(n_items: int) -> UserSplit:
    """Return 23 users with 3 to 16 training items, so that weights and minibatches differ."""
    data = generate(n_users=23, n_items=n_items, n_clusters=3, interactions_per_user=18, seed=3)
    place = np.arange(len(data.interactions))
    kept = data.interactions.take(place % 18 >= place // 18 % 14)
    split = leave_one_out(kept, data.catalogue)
    assert {len(split.train_of(index)) for index in range(23)} == set(range(3, 17))
    return split


def split_of(histories: Sequence[Sequence[int]]) -> UserSplit:
    """Return users who only train, with these items."""
    lengths = [len(held) for held in histories]
    nothing = np.full(len(histories), -1, dtype=np.int64)
    return UserSplit(
        user_ids=tuple(UserId(f"u{index}") for index in range(len(histories))),
        train_indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        train_items=np.concatenate(histories).astype(np.int64),
        validation_items=nothing,
        test_items=nothing,
    )


def versions(learner: Learner, parties: Sequence[UserSplit]) -> Iterator[SharedState]:
    """Yield the shared model after the counting round and after every training round."""
    shared = learner.server.initial_shared()
    for round_id in range(1, learner.server.plan.rounds.total + 2):
        kind: RoundKind = "count" if round_id == 1 else "train"
        total = sum(
            learner.contribute(
                kind, round_id, shared, users, learner.local.initial_private(users)
            ).vector
            for users in parties
        )
        shared = learner.server.apply(kind, round_id, shared, np.asarray(total))
        yield shared


def counted(learner: Learner, users: UserSplit) -> tuple[SharedState, PrivateState]:
    """Return the shared model after a counting round of these users, and their first values."""
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    part = learner.contribute("count", 1, shared, users, private)
    return learner.server.apply("count", 1, shared, part.vector), private
