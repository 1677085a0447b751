"""A federation of clients that are one user each, as the papers have it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from integration.support.bench import Bench, data, plan_of
from world.federation import DemoData, prepare

from fedrec.data import Interactions, UserSplit, leave_one_out, partition_users
from fedrec.plan.schema import Plan

N_USERS = 8


@cache
def few(n_users: int) -> DemoData:
    """Return the first users of the tests' data."""
    every = data().interactions
    mine = np.isin(every.user_ids, np.unique(every.user_ids)[:n_users])
    kept = Interactions(
        user_ids=every.user_ids[mine],
        item_ids=every.item_ids[mine],
        timestamps=None if every.timestamps is None else every.timestamps[mine],
    )
    return replace(data(), interactions=kept)


class Alone(Bench):
    """Folders of a federation in which every client is one user."""

    @classmethod
    def make(cls, folder: Path, plan: Plan, n_clients: int = N_USERS) -> Alone:
        """Write everything that the parties start from."""
        return cls(workspace=prepare(folder, plan, few(n_clients), n_clients=n_clients))

    def users(self) -> list[UserSplit]:
        """Return each client's user."""
        parts = partition_users(few(self.n_clients).interactions, self.n_clients)
        return [leave_one_out(part, data().catalogue) for part in parts]


def clear_plan(
    protection: str = "paillier/single-2048",
    *,
    ratio: float = 0.125,
    key_holder: str = "members",
    indices: str = "clear",
    **rounds: float,
) -> Plan:
    """Return the plan of Top-K with indices in the clear; 8 clients of one user each."""
    plan = plan_of(protection, key_holder=key_holder).model_dump()
    plan["rounds"] |= {"minimum_clients": N_USERS, **rounds}
    plan["update"] = {"structure": "topk", "ratio": ratio, "indices": indices}
    plan["federation"]["minimum_item_users"] = 1
    return Plan.model_validate(plan)
