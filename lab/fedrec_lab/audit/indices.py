"""The audit of indices in the clear: what a user's transmitted rows reveal about its history.

The papers' Top-K sends (index, value) pairs. A client that sends only the touched rows sends
indices, too. Encryption does not cover them. Here a vector includes its zeros, so no index travels
unless `update.indices` is "clear". This audit measures what indices reveal then, or would reveal,
on this machine's data, with one user for each client as in the papers. Zeros that pad a short
message are left out: they have the lowest indices in every client's messages.

The guess is simple: the items whose rows had a nonzero value in every observed round. A user's own
items recur, while its sampled negatives change. A reader that knows the seed and the user's id, or
looks at values, does better, so the result is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms import ALGORITHMS
from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.model.state import PrivateState
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

FULL = 0.9
"""Precision and recall from which a history counts as revealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLeak:
    """The accuracy of guessed histories after some rounds, as means over users.

    Attributes:
        rounds: the number of rounds that the guess uses.
        precision: share of the guessed items that the user has, over users with a guess.
        recall: share of the user's training items that are guessed.
        known_users: the number of users for which both are at least 0.9.
        guessed: the number of guessed items of a user.
    """

    rounds: int
    precision: float
    recall: float
    known_users: int
    guessed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLeak:
    """The leak through indices in the clear, actual or hypothetical.

    Attributes:
        sent: what a user sends, or would send.
        is_sent: whether users send it, because `update.indices` is "clear".
        chance: precision of a random guess, which is the users' mean share of the catalogue.
        rounds: after one round, after two, and so on.
    """

    sent: str
    is_sent: bool
    n_users: int
    n_items: int
    chance: float
    rounds: tuple[RoundLeak, ...]


def audit_indices(
    plan: Plan,
    users: UserSplit,
    n_items: int,
    *,
    n_rounds: int = 5,
    most_users: int = 0,
    on_round: Callable[[int], None] = lambda _: None,
) -> IndexLeak:
    """Train each user as a client, and guess the histories from the rows that clients would send.

    Args:
        users: the whole federation. All users take part in every round.
        n_items: size of the catalogue.
        most_users: the number of users to measure, evenly chosen, or 0 for all. All users train
            anyway.
        on_round: called with a round's number, from 1, when it is done.

    Raises:
        SettingsError: if the algorithm's updates have no rows of items.
        TrainingError: if training diverges.
    """
    learner = Learner(plan, n_items, device="cpu")
    rows = [tensor for tensor in learner.server.layout.tensors if tensor.per_item]
    if not rows:
        able = [
            name
            for name, kind in ALGORITHMS.items()
            if kind.about.audit == "rows" and name != plan.algorithm.name
        ]
        raise SettingsError(
            f"The updates of {plan.algorithm.name} with these settings have no rows of items.",
            remedy="Audit its sums with `fedrec audit --only sums`, or set algorithm.name to one "
            f"of {', '.join(able)}.",
        )
    total = learner.contribute(
        "count", 1, learner.server.initial_shared(), users, learner.local.initial_private(users)
    )
    shared = learner.server.apply("count", 1, learner.server.initial_shared(), total.vector)
    alone = [users.select(np.array([index])) for index in range(len(users))]
    private = _each(learner.local.initial_private(users), len(users))
    chosen = np.unique(np.linspace(0, len(users) - 1, most_users or len(users)).astype(np.int64))
    times = np.zeros((len(users), n_items), dtype=np.int64)
    leaks = []
    for number in range(1, n_rounds + 1):
        layout = learner.server.travelling.layout("train", shared)
        aggregate = np.zeros(layout.length, dtype=np.int64)
        for index, own in enumerate(alone):
            made = learner.contribute("train", shared.number, shared, own, private[index])
            private[index] = made.private
            aggregate += made.vector
            changes = learner.server.travelling.unpack("train", shared, made.vector).changes
            parts = [changes[tensor.name].reshape(n_items, -1).any(axis=1) for tensor in rows]
            times[index] += np.logical_or.reduce(parts)
        shared = learner.server.apply("train", shared.number, shared, aggregate)
        every = [
            (guessed_items(times[index], number), alone[index].train_items)
            for index in chosen.tolist()
        ]
        leaks.append(leak_of(every, number))
        on_round(number)
    held = np.mean([len(alone[index].train_items) for index in chosen.tolist()])
    return IndexLeak(
        sent=_sent(plan, n_items),
        is_sent=plan.update.indices == "clear",
        n_users=len(chosen),
        n_items=n_items,
        chance=float(held / n_items),
        rounds=tuple(leaks),
    )


def guessed_items(times: NDArray[np.int64], n_rounds: int) -> NDArray[np.int64]:
    """Return the items whose rows came in every round.

    Args:
        times: the number of rounds with each item's row, int64 (n_items,).
    """
    return np.flatnonzero(times >= n_rounds)


def leak_of(guesses: list[tuple[NDArray[np.int64], NDArray[np.int64]]], n_rounds: int) -> RoundLeak:
    """Return the means over pairs of guessed and held items, one pair for each user."""
    precisions, recalls, known = [], [], 0
    for guessed, held in guesses:
        right = len(np.intersect1d(guessed, held))
        recall = right / max(1, len(held))
        recalls.append(recall)
        if len(guessed):
            precisions.append(right / len(guessed))
            known += precisions[-1] >= FULL and recall >= FULL
    return RoundLeak(
        rounds=n_rounds,
        precision=float(np.mean(precisions)) if precisions else 0.0,
        recall=float(np.mean(recalls)) if recalls else 0.0,
        known_users=known,
        guessed=float(np.mean([len(guessed) for guessed, _ in guesses])) if guesses else 0.0,
    )


def _sent(plan: Plan, n_items: int) -> str:
    from fedrec.updates import UPDATES
    from fedrec.updates.compressed import TopK

    dim = int(getattr(plan.algorithm, "dim", 0))
    if plan.update.structure == TopK.name and dim:
        structure = UPDATES[TopK.name](plan.update, dim)
        if isinstance(structure, TopK):
            kept = structure.n_kept(n_items * dim)
            return f"the {kept:,} largest of {n_items * dim:,} values, each with its index"
    return "only the rows that training touched, each with its item"


def _each(private: PrivateState, n_users: int) -> list[PrivateState]:
    """Return each user's own part."""
    return [
        PrivateState(
            MappingProxyType(
                {name: values[index : index + 1].copy() for name, values in private.tensors.items()}
            )
        )
        for index in range(n_users)
    ]
