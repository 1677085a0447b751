"""Compiling the trainer once, before several processes would do it at the same time."""

from __future__ import annotations

from fedrec.config.schema import Plan
from fedrec.data import generate, leave_one_out
from fedrec.training.learner import Learner

__all__ = ["compile_trainer"]


def compile_trainer(plan: Plan) -> None:
    """Train a handful of users, so that the compiled code lies in the user's cache."""
    data = generate(n_users=4, n_items=12, n_clusters=2, interactions_per_user=4)
    users = leave_one_out(data.interactions, data.catalogue)
    learner = Learner(plan, len(data.catalogue), device="cpu")
    learner.contribute("train", 1, learner.initial_shared(), users, learner.initial_private(users))
