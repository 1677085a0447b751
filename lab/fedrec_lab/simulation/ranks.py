"""Ranks of every user's held-out item, for comparisons that need more than means.

Only where one process holds all users: a real federation releases sums, never a user's rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.evaluation.metrics import Split
from fedrec.evaluation.protocols import held_out_ranks
from fedrec.training.learner import Learner
from fedrec_lab.reports.bootstrap import PairedBootstrap, paired_bootstrap
from fedrec_lab.simulation.result import SimulationResult, Version

__all__ = ["UserRanks", "against_popularity", "model_ranks", "popularity_ranks", "user_ranks"]

_SCORES_AT_ONCE = 1 << 26


def model_ranks(
    learner: Learner, version: Version, users: UserSplit, split: Split = "test"
) -> NDArray[np.float64]:
    """Return expected 0-based ranks under a version of the model; -1 without held-out item.

    Args:
        users: everybody, in the order of the version's private vectors.
    """
    ranks = np.full(len(users), -1.0)
    for rows, scores in learner.score_blocks(version.shared, users, version.private):
        ranks[rows] = _ranks(learner, scores, users.select(rows), split)
    return ranks


def popularity_ranks(
    learner: Learner, version: Version, users: UserSplit, split: Split = "test"
) -> NDArray[np.float64]:
    """Return expected 0-based ranks under the counts of holders; -1 without held-out item."""
    ranks = np.full(len(users), -1.0)
    holders = version.shared.holders
    if holders is None:
        return ranks
    scores = torch.from_numpy(holders.astype(np.float64)).to(learner.device)
    at_once = max(1, _SCORES_AT_ONCE // max(1, learner.n_items))
    for start in range(0, len(users), at_once):
        rows = np.arange(start, min(len(users), start + at_once))
        ranks[rows] = _ranks(learner, scores.expand(len(rows), -1), users.select(rows), split)
    return ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserRanks:
    """Every user's rank of its held-out item; -1 without one.

    Attributes:
        model: under the version that was chosen, float64 (n_users,).
        popularity: under the counts of holders, likewise.
    """

    model: NDArray[np.float64]
    popularity: NDArray[np.float64]


def user_ranks(result: SimulationResult, split: Split = "test") -> UserRanks:
    """Return the ranks under a simulation's best version, and under popularity."""
    client = result.settings.client
    learner = Learner(
        result.settings.plan,
        len(result.catalogue),
        device=client.device,
        memory_mib=client.memory_mib,
        device_memory_mib=client.device_memory_mib,
        threads=client.threads,
    )
    return UserRanks(
        model=model_ranks(learner, result.best, result.users, split),
        popularity=popularity_ranks(learner, result.best, result.users, split),
    )


def against_popularity(ranks: UserRanks, *, at: int, seed: int = 0) -> PairedBootstrap:
    """Compare the best version's NDCG with popularity's, over users.

    Args:
        at: the K of NDCG@K.

    Raises:
        DataError: no user has a held-out item.
    """
    return paired_bootstrap(ranks.model, ranks.popularity, at=at, seed=seed)


def _ranks(
    learner: Learner, scores: torch.Tensor, users: UserSplit, split: Split
) -> NDArray[np.float64]:
    plan = learner.plan
    return held_out_ranks(
        scores, users, split, protocol=plan.evaluation.protocol, seed=plan.federation.seed
    )
