"""Every user's users at one client, and the plans that conformance trains them with.

An algorithm that does not learn with its own defaults on this little data names others in
`ALGORITHM_SETTINGS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from conformance.histories import counted
from numpy.typing import NDArray

from fedrec.algorithms import ALGORITHMS, Algorithm
from fedrec.algorithms.grid import RoundSums
from fedrec.data import UserSplit
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.schema import Plan
from fedrec.training.learner import Contribution, Learner
from fedrec.training.personalising import TrainedUsers, personalised
from fedrec.training.server_half import Sums
from fedrec.updates.update import UpdateSettings

N_USERS, N_ITEMS = 37, 60
ROUND = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 4},
    "update": {"rank": 2, "clip": 8.0, "fraction_bits": 20},
    "rounds": {"total": 8},
}
ALGORITHM_SETTINGS: dict[str, dict[str, Any]] = {
    "fedmf": {
        "dim": 6,
        "learning_rate": 0.4,
        "regularisation": 0.01,
        "local_epochs": 2,
        "batch_size": 16,
    },
    "fedals": {"dim": 6, "regularisation": 2.0},
    "fedncf": {"dim": 6, "batch_size": 16},
    "fedrecgel": {"dim": 4, "batch_size": 16, "learning_rate": 0.01},
    "cofedrec": {"dim": 6, "item_rate_scale": 1.0, "batch_size": 16, "clusters": 4},
    "perfedrec": {"dim": 6, "learning_rate": 0.02, "batch_size": 16},
    "pfedgraph": {"dim": 6, "learning_rate": 0.02, "local_epochs": 2, "batch_size": 16},
    "gpfedrec": {"dim": 6, "item_rate_scale": 1.0, "user_rate_scale": 8.0, "batch_size": 16},
    "pfedrec": {"dim": 6, "item_rate_scale": 1.0, "batch_size": 16},
    "ease": {"regularisation": 2.0},
    "plgc": {
        "base": {
            "name": "fedmf",
            "dim": 5,
            "learning_rate": 0.4,
            "regularisation": 0.01,
            "local_epochs": 2,
            "batch_size": 16,
        },
    },
    "fedrap": {
        "dim": 6,
        "item_rate": 4.0,
        "weight_decay": 1e-3,
        "batch_size": 16,
        "local_epochs": 3,
    },
    "pfedclr": {
        "dim": 6,
        "learning_rate": 0.05,
        "personal_rate": 0.05,
        "local_epochs": 2,
        "batch_size": 16,
    },
    "sketch": {"dim": 6, "regularisation": 2.0},
}
"""By an algorithm's name: settings in which it differs from its defaults."""


def plan_of(name: str, structure: str, **changes: dict[str, Any]) -> Plan:
    """Return the suite's plan for an algorithm and an update structure."""
    about = ALGORITHMS[name].about
    asked = about.supports.needs[structure].settings if structure in about.supports.needs else {}
    choice = {
        "algorithm": {"name": name, **ALGORITHM_SETTINGS.get(name, {}), **asked},
        "update": {"structure": structure},
    }
    merged: dict[str, dict[str, Any]] = {}
    if about.range_instead:
        choice["update"] |= {key: default_of(key) for key in ("clip", "fraction_bits")}
    if about.supports.protections:
        choice["protection"] = {"name": about.supports.protections[0]}
    for settings in (SETTINGS, choice, changes):
        for section, values in settings.items():
            merged[section] = merged.get(section, {}) | values
    return Plan.model_validate(merged)


def default_of(key: str) -> Any:
    """Return the default of a setting of `update`."""
    return UpdateSettings.model_fields[key].default


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Every user's users at one client, after the counting round."""

    learner: Learner
    algorithm: Algorithm
    users: UserSplit
    shared: SharedState
    private: PrivateState

    @classmethod
    def of(cls, plan: Plan, users: UserSplit) -> Party:
        learner = Learner(plan, N_ITEMS, device="cpu")
        shared, private = counted(learner, users)
        return cls(
            learner=learner,
            algorithm=algorithm_of(plan, N_ITEMS),
            users=users,
            shared=shared,
            private=private,
        )

    def train(
        self,
        users: UserSplit | None = None,
        private: PrivateState | None = None,
        participating: NDArray[np.bool_] | None = None,
        shared: SharedState | None = None,
        own_rows: NDArray[np.bool_] | None = None,
    ) -> Contribution:
        """Return the contribution of some users, by default of all, to a training round."""
        chosen = self.users if users is None else users
        own = self.learner.local.initial_private(chosen) if private is None else private
        base = self.shared if shared is None else shared
        made = self.learner.contribute(
            "train", ROUND, base, chosen, own, participating, own_rows=own_rows
        )
        self.check(made, chosen, base)
        return made

    def follow(
        self, number: int, shared: SharedState, part: Contribution
    ) -> tuple[SharedState, PrivateState]:
        """Return the version and the private state after a training round of every user."""
        after = self.learner.server.apply("train", number, shared, part.vector)
        if not self.algorithm.derived.personalises:
            return after, part.private
        assert part.trained is not None
        trained = TrainedUsers(
            user_keys=self.users.user_keys(),
            samples=np.diff(self.users.train_indptr),
            trained=part.trained,
            private=part.private,
            room=self.learner.local.room,
        )
        after, (private,) = personalised(self.learner.server, number, shared, after, [trained])
        return after, private

    def check(self, made: Contribution, users: UserSplit, base: SharedState) -> None:
        """Hold an honest contribution to what whoever opens a sum refuses, by the exact users."""
        self.learner.server.travelling.check_sum(
            "train", base, made.vector, most_users=len(users), n_clients=1
        )

    def parts(self, vector: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all tensors end to end and the counts, (n_items,), of a vector."""
        sums = self.sums(vector)
        return np.concatenate([part.reshape(-1) for part in sums.changes.values()]), sums.counts

    def sums(self, vector: NDArray[np.int64]) -> Sums:
        """Return what a vector of a training round says of the catalogue's items."""
        return self.learner.server.travelling.unpack("train", self.shared, vector)

    def rows(self, vector: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tensors that have a row for each item side by side, (n_items, n_values)."""
        layout, changes = self.learner.server.layout, self.sums(vector).changes
        nothing = np.zeros((N_ITEMS, 0), dtype=np.int64)
        rows = [
            changes[tensor.name].reshape(N_ITEMS, -1)
            for tensor in layout.tensors
            if tensor.per_item
        ]
        return np.concatenate([nothing, *rows], axis=1)

    def fresh(self, private: PrivateState) -> PrivateState:
        """Return what private parameters are before a round trains them."""
        return self.learner.local.refreshed(self.shared, self.users, private)


def empty_sums(learner: Learner, shared: SharedState) -> RoundSums:
    """Return the sums of a round that starts from a version, with nothing in them."""
    return learner.local.sums_shape(shared).empty(learner.local.device)


def assert_same(one: PrivateState, other: PrivateState) -> None:
    """Compare two private states bit by bit."""
    assert set(one.tensors) == set(other.tensors)
    for name, values in one.tensors.items():
        assert np.array_equal(values, other.tensors[name]), name


def rows_of(state: PrivateState, rows: NDArray[np.int64]) -> PrivateState:
    """Return the private parameters of some users."""
    return PrivateState(
        MappingProxyType({name: values[rows] for name, values in state.tensors.items()})
    )
