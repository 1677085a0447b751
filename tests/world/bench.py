"""A small federation's data and folders, and what its model must be, computed in one process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from world.federation import DemoData, Workspace, change, keep, prepare, rotate

from fedrec.data import Interactions, UserSplit, generate, leave_one_out, partition_users
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.identity.authority import AUTHORITY_FOLDER, ROSTERS_FOLDER
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import held_widely, own_rows_of
from fedrec.settings.schema import Settings
from fedrec.settings.validation import load_settings
from fedrec.training.learner import Contribution, Learner
from fedrec.training.personalising import TrainedUsers, personalised
from fedrec.training.user_half import Resources
from fedrec.wire.messages import PublishedRound, RoundKind
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_client.state.private_store import PrivateStore

N_USERS, N_ITEMS = 40, 60
ROUNDS = 3
KINDS: tuple[RoundKind, ...] = ("count", *(("train",) * ROUNDS), "evaluate")


@cache
def data() -> DemoData:
    """Return planted tastes of people whose names are easy to find among other bytes."""
    made = generate(
        n_users=N_USERS, n_items=N_ITEMS, n_clusters=4, interactions_per_user=12, noise=0.2, seed=5
    )
    names = np.array([f"person-{u}@example.org" for u in made.interactions.user_ids], dtype=object)
    interactions = Interactions(
        user_ids=names,
        item_ids=made.interactions.item_ids,
        timestamps=made.interactions.timestamps,
    )
    return DemoData(name="test", interactions=interactions, catalogue=made.catalogue, note="")


APART = ("gpfedrec", "perfedrec", "cofedrec", "pfedgraph")
"""Algorithms whose server makes a model for each client."""
UPDATES = {
    "fedmf": {"structure": "colr", "rank": 2},
    "fedals": {"structure": "dense", "clip": 2.0},
    "pfedrec": {"structure": "dense", "clip": 16.0},
    "fedncf": {"structure": "dense", "clip": 16.0},
    "fedrecgel": {"structure": "dense"},
    "ease": {"structure": "dense"},
    "plgc": {"structure": "dense", "clip": 16.0},
    "fedrap": {"structure": "dense", "clip": 16.0},
    "pfedclr": {"structure": "dense", "clip": 4.0},
    "sketch": {"structure": "dense"},
    **{name: {"structure": "dense", "clip": 64.0} for name in APART},
}
"""An update structure that goes with each algorithm."""

ALGORITHMS: dict[str, dict[str, Any]] = {
    "ease": {},
    # Two layers are as good as three and have a third of the values.
    "fedrecgel": {"dim": 2, "hidden_layers": 2},
    "plgc": {"base": {"name": "fedmf", "dim": 4, "local_epochs": 2}},
    "gpfedrec": {"dim": 4, "item_rate_scale": 1.0, "user_rate_scale": 8.0},
    "perfedrec": {"dim": 4, "learning_rate": 0.02, "clusters": 3},
    "cofedrec": {"dim": 4, "item_rate_scale": 1.0, "clusters": 4},
    "pfedgraph": {"dim": 4, "learning_rate": 0.02},
}
"""Settings of those that take others than a length of vectors."""


def never_met(bench: Bench, *numbers: int) -> None:
    """Write the coordinator's first epoch anew, of a federation that does not know some clients."""
    folder = AuthorityFolder(bench.workspace.folder / "keys")
    ids = {Identity.load(bench.state(number)).client_id for number in numbers}
    known = folder.membership
    members = tuple(member for member in known.members if member.client_id not in ids)
    keep(folder, replace(known, members=members))
    rotate(folder)
    for number in numbers:
        shutil.rmtree(bench.state(number))


def invite(bench: Bench, name: str = "joiner", *, confirm: bool = False) -> str:
    """Return the file of an invitation, for `client__invitation`."""
    folder = AuthorityFolder(bench.workspace.folder / "keys")
    now = int(time.time())
    return str(change(folder, lambda keys: keys.invite(name, confirm=confirm, now=now)))


def plan_of(
    protection: str,
    n_clients: int = 3,
    algorithm: str = "fedmf",
    key_holder: str = "members",
    **rounds: float,
) -> Plan:
    """Return the plan of the tests; every client is needed in every round unless told otherwise.

    Args:
        protection: its name, and after a slash a parameter set.
        key_holder: who opens sums.
    """
    name, _, preset = protection.partition("/")
    return Plan.model_validate(
        {
            "federation": {
                "name": "tests", "seed": 11, "maximum_users": 64, "minimum_item_users": 6,
            },
            "algorithm": {"name": algorithm} | ALGORITHMS.get(algorithm, {"dim": 4}),
            "update": UPDATES[algorithm],
            "protection": {
                "name": name, "preset": preset or "default", "key_holder": key_holder,
            },
            "evaluation": {"at": 5},
            "rounds": {"total": ROUNDS, "minimum_clients": n_clients, **rounds},
        }
    )  # fmt: skip


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return settings in which `section__field` has another value."""
    for name, value in changes.items():
        section, _, field = name.partition("__")
        part = getattr(settings, section).model_copy(update={field: value})
        settings = settings.model_copy(update={section: part})
    return settings


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Folders of a federation whose clients share the users of `data`."""

    workspace: Workspace

    @classmethod
    def make(cls, folder: Path, plan: Plan, n_clients: int = 3) -> Bench:
        """Write everything that the parties start from."""
        return cls(workspace=prepare(folder, plan, data(), n_clients=n_clients))

    @property
    def plan(self) -> Plan:
        """What all parties agree on."""
        return self.workspace.plan

    @property
    def n_clients(self) -> int:
        """How many clients are in the roster."""
        return len(self.workspace.parties.clients)

    def coordinator_settings(self, **changes: Any) -> Settings:
        """Return the coordinator's settings, with some of its section changed."""
        settings = load_settings(self.workspace.parties.coordinator)
        return changed(settings, {f"coordinator__{name}": changes[name] for name in changes})

    def client_settings(self, number: int, address: str, **changes: Any) -> Settings:
        """Return the settings of a client, counted from 0; `section__field` changes one."""
        settings = load_settings(self.workspace.parties.clients[number])
        local = {"client__coordinator": address, "client__device": "cpu"}
        return changed(settings, {**local, **changes})

    def state(self, number: int) -> Path:
        """Return a client's state folder."""
        return self.workspace.client_states[number]

    def model(self, number: int) -> bytes:
        """Return the canonical bytes of the shared model that a client ended with."""
        store = PrivateStore(self.state(number), read_only=True)
        assert store.state.shared is not None
        return SharedState.from_bytes(store.read(store.state.shared)).canonical_bytes()

    def private(self, number: int) -> PrivateState:
        """Return what a client knows of its users."""
        store = PrivateStore(self.state(number), read_only=True)
        assert store.state.private is not None
        return PrivateState.from_bytes(store.read(store.state.private))

    def users(self) -> list[UserSplit]:
        """Return each client's users."""
        parts = partition_users(data().interactions, self.n_clients)
        return [leave_one_out(part, data().catalogue) for part in parts]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A run as one process computes it.

    Attributes:
        model: the canonical bytes of the last shared model.
        metrics: by round, the published sums.
        private: each party's private state.
    """

    model: bytes
    metrics: Mapping[int, list[int]]
    private: tuple[PrivateState, ...]


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """One published round: its number, what it was for, and who was counted.

    Attributes:
        cells: the cores of its epoch's cells, where the plan has the authority count them.
    """

    round: RoundId
    kind: RoundKind
    clients: frozenset[int]
    cells: tuple[frozenset[int], ...] = ()


def compute(
    plan: Plan, parties: Sequence[UserSplit], rounds: Sequence[Accepted], *, floor: int = 1
) -> Result:
    """Play rounds without protection, wire or store: contribute, add, apply.

    Args:
        floor: every party's `client.minimum_own_item_users`.
    """
    learner = Learner(plan, N_ITEMS, device="cpu", resources=Resources(threads=1))
    holders = [np.bincount(users.train_items, minlength=N_ITEMS) for users in parties]
    own_rows = [own_rows_of(own, floor) for own in holders]
    shared = learner.server.initial_shared()
    private = [learner.local.initial_private(users) for users in parties]
    metrics: dict[int, list[int]] = {}
    counted: dict[frozenset[int], NDArray[np.int64]] = {}
    # Rounds that were given up move nothing that is drawn: the first that trains is 2, always.
    drawn = 2
    for played in rounds:
        layout = learner.server.travelling.layout(played.kind, shared)
        contributed: dict[int, Contribution] = {}
        for number in sorted(played.clients):
            made = learner.contribute(
                played.kind,
                drawn,
                shared,
                parties[number],
                private[number],
                own_rows=own_rows[number],
            )
            contributed[number] = made
            private[number] = made.private
        vectors = {number: made.vector for number, made in contributed.items()}
        total = np.sum(list(vectors.values()), axis=0)
        whole = [cell for cell in played.cells if cell <= played.clients]
        if played.kind == "count":
            for cell in whole:
                own = [
                    learner.server.travelling.counts("count", shared, vectors[one]) for one in cell
                ]
                counted.setdefault(cell, np.sum(own, axis=0))
        if played.kind != "evaluate" and len(played.cells) > 1:
            known = [counted[cell] for cell in whole if cell in counted]
            widely = held_widely(plan, [*known, np.zeros(N_ITEMS, dtype=np.int64)])
            total = learner.server.travelling.with_rows(played.kind, shared, total, widely)
        before, shared = shared, learner.server.apply(played.kind, drawn, shared, total)
        if played.kind == "train" and learner.server.algorithm.derived.personalises:
            users = [
                TrainedUsers(
                    user_keys=parties[number].user_keys(),
                    samples=np.diff(parties[number].train_indptr),
                    trained=made.trained,
                    private=made.private,
                    room=learner.local.room,
                )
                for number, made in contributed.items()
            ]
            shared, states = personalised(learner.server, drawn, before, shared, users)
            for number, state in zip(contributed, states, strict=True):
                private[number] = state
        drawn += played.kind == "train"
        metrics[played.round] = total[layout.metrics_slice].tolist()
    return Result(model=shared.canonical_bytes(), metrics=metrics, private=tuple(private))


@cache
def merged(algorithm: str = "fedmf") -> Result:
    """Return the undisturbed run of one party that holds every client; protection plays no part."""
    users = leave_one_out(data().interactions, data().catalogue)
    rounds = [
        Accepted(round=RoundId(number), kind=kind, clients=frozenset({0}))
        for number, kind in enumerate(KINDS, start=1)
    ]
    return compute(plan_of("none", algorithm=algorithm), [users], rounds)


def federal(metrics: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """Leave out what a party's users reach alone: that alone depends on who is in the party."""
    end = METRIC_NAMES.index("local.validation.users")
    return {number: sums[:end] for number, sums in metrics.items()}


def accepted(bench: Bench, published: Sequence[PublishedRound]) -> list[Accepted]:
    """Return who was counted in each published round."""
    number_of = {Identity.load(bench.state(n)).client_id: n for n in range(bench.n_clients)}
    return [
        Accepted(
            round=found.round,
            kind=found.kind,
            clients=frozenset(number_of[header.client_id] for header in found.contributions),
            cells=tuple(
                frozenset(map(number_of.__getitem__, core)) for core in cores_of(bench, found.epoch)
            ),
        )
        for found in published
    ]


def cores_of(bench: Bench, epoch: int) -> list[tuple[ClientId, ...]]:
    """Return the cores of an epoch's cells; none where rows don't depend on them."""
    if not bench.plan.counts_by_cell:
        return []
    # Of whichever authority made it: a test may have restored one from its backup.
    kept = f"*/{AUTHORITY_FOLDER}/{ROSTERS_FOLDER}/{epoch:08d}.json"
    roster = Roster.from_json(next(bench.workspace.folder.glob(kept)).read_bytes())
    return [cell.core for cell in roster.partition.in_use]


N_ALONE = 8


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
    def make(cls, folder: Path, plan: Plan, n_clients: int = N_ALONE) -> Alone:
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
    plan["rounds"] |= {"minimum_clients": N_ALONE, **rounds}
    plan["update"] = {"structure": "topk", "ratio": ratio, "indices": indices}
    plan["federation"]["minimum_item_users"] = 1
    return Plan.model_validate(plan)


def apart_plan(algorithm: str, n_clients: int = N_ALONE, **rounds: float) -> Plan:
    """Return the plan of a server that makes a model for each of some clients of one user each.

    Args:
        algorithm: its name, after `plgc-` if PLGC is around it.
    """
    name = algorithm.removeprefix("plgc-")
    plan = plan_of("none", n_clients, name, **rounds).model_dump()
    if name != algorithm:
        plan["algorithm"] = {"name": "plgc", "base": plan["algorithm"]}
    plan["federation"]["minimum_item_users"] = 1 + (n_clients == N_ALONE)
    return Plan.model_validate(plan)
