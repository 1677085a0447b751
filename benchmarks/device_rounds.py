"""Rounds of any algorithm on any device over MovieLens-100K's users, or many times as many."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

N_USERS, N_ITEMS, PER_USER = 943, 1682, 106
"""The size of MovieLens-100K."""


def made_of_ml_100k():
    """Return MovieLens-100K, or made-up data of its size where it is not in the cache."""
    from fedrec.data import fetch_ml_100k, generate
    from fedrec.errors import DataError
    from fedrec_lab.demo.workspace import DemoData

    try:
        fetched = fetch_ml_100k()
        interactions, name = fetched.read()[0].deduplicated(), "MovieLens-100K"
        return DemoData(
            name=name, interactions=interactions, catalogue=fetched.catalogue, note=name
        )
    except DataError as error:
        print(f"Made-up data: {error.message}")
    made = generate(
        n_users=N_USERS, n_items=N_ITEMS, n_clusters=8, interactions_per_user=PER_USER, noise=0.25
    )
    name = "made-up data of MovieLens-100K's size"
    return DemoData(name=name, interactions=made.interactions, catalogue=made.catalogue, note=name)


def users_of_ml_100k():
    """Return its users, split, and the number of items."""
    from fedrec.data import leave_one_out

    data = made_of_ml_100k()
    return leave_one_out(data.interactions, data.catalogue), len(data.catalogue)


def repeated(users, times: int):
    """Return as many users several times, under ids of their own."""
    from fedrec.data.splits import UserSplit

    n_train = users.n_train
    return UserSplit(
        user_ids=tuple(f"{name}/{copy}" for copy in range(times) for name in users.user_ids),
        train_indptr=np.append(
            (users.train_indptr[:-1] + n_train * np.arange(times)[:, None]).reshape(-1),
            n_train * times,
        ),
        train_items=np.tile(users.train_items, times),
        validation_items=np.tile(users.validation_items, times),
        test_items=np.tile(users.test_items, times),
    )


class Rounds:
    """An algorithm's rounds of some users on some device, from a counted model on."""

    def __init__(self, name: str, n_items: int, device: str, *, n_users: int, mib: int = 0):
        from fedrec.plan.schema import Plan
        from fedrec.training.learner import Learner
        from fedrec.training.user_half import Resources

        plan = Plan.model_validate(
            {
                "federation": {
                    "maximum_users": 1 << max(10, n_users.bit_length()),
                    "minimum_item_users": 1,
                },
                "algorithm": {"name": name},
                "update": {"structure": "dense"},
                "protection": {"name": "none", "key_holder": "members"},
                "evaluation": {"every_rounds": 1_000_000},
                # Without numba there is no compiled code.
                "training": {"accelerated": find_spec("numba") is not None},
            }
        )
        self.learner = Learner(
            plan,
            n_items,
            device=device,
            resources=Resources(memory_mib=max(2048, free_bytes() >> 21), device_memory_mib=mib),
        )

    def counted(self, users):
        """Return the model after the counting round."""
        shared = self.learner.server.initial_shared()
        counts = np.bincount(users.train_items, minlength=self.learner.server.n_items)
        return shared.with_holders(counts.astype(np.int64))

    def play(self, users, shared, private):
        """Train a round; return its seconds, the next model and tables."""
        self.learner.local.cohort(shared, users)
        begun = time.perf_counter()
        part = self.learner.contribute("train", shared.number, shared, users, private)
        self.learner.server.apply("train", shared.number, shared, part.vector)
        return time.perf_counter() - begun, part.private

    def second(self, users) -> float:
        """Return the seconds of the second of two rounds from the same model."""
        shared, private = self.counted(users), self.learner.local.initial_private(users)
        _, private = self.play(users, shared, private)
        return self.play(users, shared, private)[0]

    def one(self, users, few, times: int) -> float:
        """Return the seconds of a round of all, whose tables are those of the few, repeated."""
        from fedrec.model.state import PrivateState

        shared, private = self.counted(users), self.learner.local.initial_private(few)
        # Drawing that many users' first tables takes longer than a round.
        arrays = private.arrays().items()
        tables = {name: np.tile(own, (times, *(1,) * (own.ndim - 1))) for name, own in arrays}
        return self.play(users, shared, PrivateState.of(tables))[0]


def free_bytes() -> int:
    """Return the processor's memory that is free."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable")))


def processor_seconds(name: str, users, n_items: int) -> float:
    """Return the seconds of a processor's round of all users.

    A part of the users would take longer for each of them: their blocks would not be full.
    """
    rounds = Rounds(name, n_items, "cpu", n_users=len(users))
    if rounds.learner.local.accelerator is None:
        shared, private = rounds.counted(users), rounds.learner.local.initial_private(users)
        return rounds.play(users, shared, private)[0]
    rounds.learner.warm_up()
    return rounds.second(users)
