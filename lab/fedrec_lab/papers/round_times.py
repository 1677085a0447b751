"""What the rows of the CoLR paper's Table 2 take here: seconds of a client and of the server.

A client is one user with as many interactions as MovieLens-1M's users have on average; its data is
made up, since seconds do not depend on tastes. The server adds up the plain updates of a round's
60 clients and makes the next model of their sum.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from fedrec.algorithms import FedMFSettings
from fedrec.config.schema import Plan
from fedrec.data import generate, leave_one_out
from fedrec.ids import RoundId
from fedrec.training.learner import Learner
from fedrec_lab.papers.colr_times import DIM, N_ITEMS, N_ROUNDS, TimeRow, computation_minutes
from fedrec_lab.papers.encryption_costs import N_CLIENTS

__all__ = ["OwnTimes", "own_times"]

INTERACTIONS_PER_USER = 165
N_TIMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimes:
    """A row on this machine.

    Attributes:
        link_minutes: by the paper's model, exactly.
        client_seconds: the slowest client's training; None where nothing was timed.
        server_seconds: adding the updates of `N_CLIENTS` clients and applying their sum.
        computation_minutes: what the paper's model makes of both.
    """

    link_minutes: float
    client_seconds: float | None = None
    server_seconds: float | None = None
    computation_minutes: float | None = None


def own_times(row: TimeRow, *, timed: bool = True) -> OwnTimes:
    """Return what a row takes on this machine.

    Args:
        timed: whether to measure seconds at all.
    """
    plan = _plan(row)
    learner = Learner(plan, N_ITEMS, device="cpu", threads=1)
    numbers = learner.algorithm.paper_numbers()
    assert numbers is not None
    link = numbers.link_minutes(N_ROUNDS)
    if not timed:
        return OwnTimes(link_minutes=link)
    data = generate(
        n_users=N_TIMED + 1,
        n_items=N_ITEMS,
        n_clusters=1,
        interactions_per_user=INTERACTIONS_PER_USER,
        seed=1,
    )
    users = leave_one_out(data.interactions, data.catalogue)
    shared = learner.initial_shared()
    seconds, vector = [], np.zeros(0, dtype=np.int64)
    for number in range(N_TIMED + 1):
        own = users.select(np.array([number]))
        private = learner.initial_private(own)
        began = time.perf_counter()
        vector = learner.contribute("train", RoundId(2), shared, own, private).vector
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    total = np.zeros_like(vector)
    for _ in range(N_CLIENTS):
        total += vector
    learner.apply("train", RoundId(2), shared, total)
    server = time.perf_counter() - began
    # The first client also compiles what trains, once for the life of the process.
    client = max(seconds[1:])
    return OwnTimes(
        link_minutes=link,
        client_seconds=client,
        server_seconds=server,
        computation_minutes=computation_minutes(client, server),
    )


def _plan(row: TimeRow) -> Plan:
    # Nothing is measured in the round that is timed, and every item is trained, as in the paper.
    return Plan.model_validate(
        {
            "federation": {"seed": 1, "minimum_item_users": 1},
            "algorithm": FedMFSettings(
                dim=DIM, learning_rate=0.5, regularisation=5e-4, local_epochs=2, batch_size=256
            ).model_dump(),
            "update": row.update.model_dump(),
            "protection": {"name": "none"},
            "evaluation": {"every_rounds": 1000},
            "rounds": {"total": N_ROUNDS},
        }
    )
