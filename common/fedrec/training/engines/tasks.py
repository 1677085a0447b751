"""How a round's users are cut into tasks for workers, and what a round takes one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.training.blocks import BLOCK_USERS
from fedrec.training.engines.engine import Job

_TASKS_A_WORKER = 2
_MOST_BYTES = 32 << 20
"""Memory of one task's users; more of them at once make nobody faster."""
_SECONDS_A_MINIBATCH = 70e-6
_SECONDS_A_SAMPLE = 0.1e-6
_SECONDS_A_VALUE = 7e-9
_SECONDS_A_WEIGHT = 0.4e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """Users whom one worker trains at once.

    Attributes:
        members: their positions in the cohort, ascending int64 (n_users,).
        n_steps: most steps that one of them needs.
        cost: steps of their blocks.
    """

    members: NDArray[np.int64]
    n_steps: int
    cost: int


def tasks_of(job: Job, n_workers: int) -> list[WorkerTask]:
    """Return a job's users in about two tasks a worker, at least one a level, the largest first.

    Users of one task are alike, so that blocks of them are full: a level's users are ordered by
    their items before they are cut.
    """
    held = job.cohort.n_positives
    steps = job.algorithm.steps(held)
    levels = list(job.cohort.levels(job.participating, job.algorithm.steps))
    total = sum(_cost(steps[members]) for members, _ in levels)
    aim = max(1, total // (_TASKS_A_WORKER * n_workers))
    memory = min(job.memory_bytes // n_workers, _MOST_BYTES)
    tasks = []
    for members, n_steps in levels:
        each = job.algorithm.bytes_per_user(len(job.cohort.active), n_steps)
        ordered = members[np.argsort(-held[members], kind="stable")]
        reached = np.cumsum(steps[ordered])
        n_parts = max(1, round(_cost(steps[members]) / aim))
        ends = np.searchsorted(reached, int(reached[-1]) * np.arange(1, n_parts) / n_parts)
        at_once = max(1, memory // max(each, 1))
        for part in np.split(ordered, np.unique(ends)):
            for begin in range(0, len(part), at_once):
                own = np.sort(part[begin : begin + at_once])
                tasks.append(WorkerTask(members=own, n_steps=n_steps, cost=_cost(steps[own])))
    return sorted(tasks, key=lambda task: -task.cost)


def _cost(steps: NDArray[np.int64]) -> int:
    """Return the steps of all blocks of some users: a block's users have one number of them."""
    sizes, n_users = np.unique(steps, return_counts=True)
    return int((-(-n_users // BLOCK_USERS) * sizes).sum())


def estimated_seconds(job: Job) -> float:
    """Return about how long one processor takes for a job of the trainer.

    That is, for every epoch and step, 70 us for each of a user's minibatches and for each sample
    0.1 us, 7 ns for each value of the rows and tensors that are a user's own or an item's, and
    0.4 ns for each weight of a shared network. On the machine of
    `docs/explanation/performance.md` FedMF, PFedRec and FedNCF are within a factor of two of it;
    more is not needed to tell seconds from minutes.
    """
    algorithm = job.algorithm
    assert isinstance(algorithm, TrainedAlgorithm)
    values = weights = 0
    for entry in algorithm.parameters:
        if entry.name == algorithm.kept_scores or entry.applied:
            continue
        if entry.scope == "net":
            weights += math.prod(entry.shape)
        else:
            values += math.prod(entry.shape)
    passes = sum(phase.epochs * len(phase.steps) for phase in algorithm.phases(job.start.scalars))
    held = job.cohort.n_positives
    levels = [members for members, _ in job.cohort.levels(job.participating, algorithm.steps)]
    n_positives = sum(int(held[members].sum()) for members in levels)
    n_minibatches = sum(int(algorithm.steps(held[members]).sum()) for members in levels)
    n_samples = n_positives * (1 + algorithm.negatives_per_positive)
    each = _SECONDS_A_SAMPLE + _SECONDS_A_VALUE * values + _SECONDS_A_WEIGHT * weights
    return passes * (n_minibatches * _SECONDS_A_MINIBATCH + n_samples * each)
