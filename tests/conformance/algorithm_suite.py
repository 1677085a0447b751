"""What every algorithm must do; `AlgorithmSuite` runs over the registry.

A new line in `ALGORITHMS` is tested without another line here, with every update structure that
the table of combinations allows. An algorithm that does not learn with its own defaults on this
little data names others in `ALGORITHM_SETTINGS`. One that is registered elsewhere subclasses the
suite with a fixture `name` of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedrec.algorithms import ALGORITHMS, Algorithm
from fedrec.config.combinations import find_conflicts
from fedrec.config.schema import Plan, UpdateSettings
from fedrec.data import UserSplit, generate, leave_one_out
from fedrec.errors import TrainingError
from fedrec.training.layout import shared_values
from fedrec.training.learner import Contribution, Learner
from fedrec.training.state import PrivateState, SharedState

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
    "pfedrec": {"dim": 6, "item_rate_scale": 1.0, "batch_size": 16},
    "ease": {"regularisation": 2.0},
}
"""By an algorithm's name: settings in which it differs from its defaults."""
WITHOUT_A_DRAW = frozenset({"ease"})
"""Algorithms whose initial state nothing is drawn for, so that it is the same for every seed."""


def plan_of(name: str, structure: str, **changes: dict[str, Any]) -> Plan:
    """Return the suite's plan for an algorithm and an update structure."""
    choice = {
        "algorithm": {"name": name, **ALGORITHM_SETTINGS.get(name, {})},
        "update": {"structure": structure},
    }
    merged: dict[str, dict[str, Any]] = {}
    if not ALGORITHMS[name].clips:
        choice["update"] |= {key: default_of(key) for key in ("clip", "fraction_bits")}
    for settings in (SETTINGS, choice, changes):
        for section, values in settings.items():
            merged[section] = merged.get(section, {}) | values
    return Plan.model_validate(merged)


def default_of(key: str) -> Any:
    """Return the default of a setting of `update`."""
    return UpdateSettings.model_fields[key].default


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Everybody's users at one client, after the counting round."""

    learner: Learner
    algorithm: Algorithm
    users: UserSplit
    shared: SharedState
    private: PrivateState

    @classmethod
    def of(cls, plan: Plan, users: UserSplit) -> Party:
        learner = Learner(plan, N_ITEMS, device="cpu")
        private = learner.initial_private(users)
        counts = learner.contribute("count", 1, learner.initial_shared(), users, private)
        return cls(
            learner=learner,
            algorithm=ALGORITHMS[plan.algorithm.name](plan, N_ITEMS),
            users=users,
            shared=learner.apply("count", 1, learner.initial_shared(), counts.vector),
            private=private,
        )

    def train(
        self,
        users: UserSplit | None = None,
        private: PrivateState | None = None,
        participating: NDArray[np.bool_] | None = None,
        shared: SharedState | None = None,
    ) -> Contribution:
        """Return the contribution of some users, by default of all, to a training round."""
        chosen = self.users if users is None else users
        own = self.learner.initial_private(chosen) if private is None else private
        base = self.shared if shared is None else shared
        return self.learner.contribute("train", ROUND, base, chosen, own, participating)

    def parts(self, vector: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all tensors end to end and the counts, (n_items,), of a vector."""
        layout = self.learner.layout
        return vector[layout.change_slice], vector[layout.count_slice]

    def rows(self, vector: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tensors that have a row for each item side by side, (n_items, n_values)."""
        layout = self.learner.layout
        changes = layout.changes_of(vector)
        nothing = np.zeros((N_ITEMS, 0), dtype=np.int64)
        rows = [changes[tensor.name] for tensor in layout.tensors if tensor.per_item]
        return np.concatenate([nothing, *rows], axis=1)

    def fresh(self, private: PrivateState) -> PrivateState:
        """Return what private parameters are before a round trains them."""
        return self.learner.refreshed(self.shared, self.users, private)


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


class AlgorithmSuite:
    """The conformance suite of the algorithm seam."""

    @pytest.fixture(
        scope="class",
        params=[
            (name, update) for name in sorted(ALGORITHMS) for update in ALGORITHMS[name].updates
        ],
        ids="-".join,
    )
    @classmethod
    def choice(cls, request: pytest.FixtureRequest) -> tuple[str, str]:
        """An algorithm and an update structure that it goes with."""
        name, structure = request.param
        return name, structure

    @pytest.fixture(scope="class")
    @classmethod
    def name(cls, choice: tuple[str, str]) -> str:
        """The algorithm under test."""
        return choice[0]

    @pytest.fixture(scope="class")
    @classmethod
    def plan(cls, choice: tuple[str, str]) -> Plan:
        plan = plan_of(*choice)
        assert not find_conflicts(plan)
        return plan

    @pytest.fixture(scope="class")
    @classmethod
    def users(cls) -> UserSplit:
        """Users of unequal activity; some items are held by too few of them to be trained."""
        data = generate(
            n_users=N_USERS, n_items=N_ITEMS, n_clusters=3, interactions_per_user=12, seed=3
        )
        keep = np.random.default_rng(0).random(len(data.interactions)) < np.repeat(
            np.linspace(0.3, 1.0, N_USERS), 12
        )
        return leave_one_out(data.interactions.take(keep), data.catalogue)

    @pytest.fixture(scope="class")
    @classmethod
    def party(cls, plan: Plan, users: UserSplit) -> Party:
        return Party.of(plan, users)

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, party: Party) -> Contribution:
        return party.train()

    @pytest.fixture(scope="class")
    @classmethod
    def finished(cls, party: Party) -> tuple[SharedState, PrivateState]:
        """What all training rounds lead to."""
        shared, private = party.shared, party.private
        for round_id in range(2, 2 + party.learner.plan.rounds.total):
            part = party.learner.contribute("train", round_id, shared, party.users, private)
            shared = party.learner.apply("train", round_id, shared, part.vector)
            private = part.private
        return shared, private

    # What an algorithm declares is what it makes.

    def test_it_is_registered_under_its_own_name(self, name: str) -> None:
        assert ALGORITHMS[name].name == name

    def test_the_initial_state_is_what_it_declares(self, party: Party, plan: Plan) -> None:
        sizes = {
            "n_items": N_ITEMS,
            "n_pairs": N_ITEMS * (N_ITEMS - 1) // 2,
            "n_users": len(party.users),
            **plan.algorithm.model_dump(),
        }
        shared, declared = party.learner.initial_shared(), party.algorithm.parameters
        assert len({parameter.name for parameter in declared}) == len(declared)
        assert shared.holders is None
        kinds = {"shared": np.float64, "private": np.float32}
        for scope, tensors in (("shared", shared.tensors), ("private", party.private.tensors)):
            of_scope = {entry.name: entry for entry in declared if entry.scope == scope}
            assert set(tensors) == set(of_scope)
            for entry in of_scope.values():
                found = tensors[entry.name]
                assert found.shape == tuple(
                    math.prod(sizes.get(factor) or int(factor) for factor in axis.split())
                    for axis in entry.shape
                ), entry.name
                assert found.dtype == kinds[scope], entry.name
                assert np.isfinite(found).all(), entry.name
                assert scope == "shared" or entry.shape[0] == "n_users", entry.name
        n_shared = sum(values.size for values in shared.tensors.values())
        assert shared_values(plan, N_ITEMS) == n_shared

    def test_the_seed_alone_decides_the_initial_shared_state(
        self, party: Party, plan: Plan
    ) -> None:
        first = party.algorithm.initial_shared().canonical_bytes()
        again = type(party.algorithm)(plan, N_ITEMS)
        assert again.initial_shared().canonical_bytes() == first
        seed = plan.federation.model_copy(update={"seed": plan.federation.seed + 1})
        other = plan.model_copy(update={"federation": seed})
        different = type(party.algorithm)(other, N_ITEMS)
        drawn = different.initial_shared().canonical_bytes() != first
        assert drawn is (party.algorithm.name not in WITHOUT_A_DRAW)

    def test_a_users_initial_vectors_depend_on_that_user_alone(self, party: Party) -> None:
        keys = party.users.user_keys()
        chosen = np.random.default_rng(1).permutation(len(keys))[: len(keys) // 2]
        some = party.algorithm.initial_private(keys[chosen])
        assert_same(some, rows_of(party.private, chosen))

    def test_memory_grows_with_the_items(self, party: Party) -> None:
        for n_steps in (1, 64):
            sizes = [party.algorithm.bytes_per_user(n, n_steps) for n in (1, 1000, 1_000_000)]
            assert sizes == sorted(sizes)
            assert sizes[0] > 0

    # A contribution is a function of users, seed, round and shared model.

    def test_training_again_gives_the_same_bits(self, party: Party, trained: Contribution) -> None:
        again = Party.of(party.learner.plan, party.users).train()
        assert np.array_equal(again.vector, trained.vector)
        assert_same(again.private, trained.private)
        assert trained.vector.any(), "nothing was trained"

    def test_training_changes_none_of_its_inputs(self, party: Party) -> None:
        before = party.shared.canonical_bytes(), party.private.to_bytes()
        party.train(private=party.private)
        assert (party.shared.canonical_bytes(), party.private.to_bytes()) == before

    @pytest.mark.parametrize("n_groups", [2, 5, N_USERS])
    def test_the_sum_does_not_depend_on_order_or_grouping(
        self, party: Party, trained: Contribution, n_groups: int
    ) -> None:
        order = np.random.default_rng(n_groups).permutation(len(party.users))
        total = np.zeros_like(trained.vector)
        for rows in np.array_split(order, n_groups):
            own = party.train(party.users.select(rows))
            total += own.vector
            assert_same(own.private, rows_of(trained.private, rows))
        # Nobody was measured twice, so the metric sums are equal, too.
        assert np.array_equal(total, trained.vector)

    def test_chunks_change_no_bit(self, party: Party, trained: Contribution) -> None:
        small = Party.of(party.learner.plan, party.users)
        small.learner.memory_bytes = 3 * small.algorithm.bytes_per_user(N_ITEMS, 1)
        again = small.train()
        assert np.array_equal(again.vector, trained.vector)
        assert_same(again.private, trained.private)

    def test_who_does_not_take_part_changes_nothing(
        self, party: Party, trained: Contribution
    ) -> None:
        some = np.arange(len(party.users)) % 3 == 0
        part = party.train(participating=some)
        absent, present = np.nonzero(~some)[0], np.nonzero(some)[0]
        assert_same(rows_of(part.private, absent), rows_of(party.fresh(party.private), absent))
        assert_same(rows_of(part.private, present), rows_of(trained.private, present))
        change, counts = party.parts(part.vector)
        alone = party.parts(party.train(party.users.select(present)).vector)
        assert np.array_equal(change, alone[0])
        assert np.array_equal(counts, alone[1])
        nobody = party.parts(party.train(participating=np.zeros_like(some)).vector)
        assert not nobody[0].any()
        assert not nobody[1].any()

    def test_warming_up_leaves_nothing_behind(self, party: Party, trained: Contribution) -> None:
        fresh = Party.of(party.learner.plan, party.users)
        fresh.learner.warm_up()
        assert np.array_equal(fresh.train().vector, trained.vector)

    # What is handed over: exactly the vector, on the grid, within its proven bounds.

    def test_the_vector_is_what_the_layout_promises(
        self, party: Party, trained: Contribution
    ) -> None:
        layout = party.learner.layout
        assert trained.vector.dtype == np.int64
        assert trained.vector.shape == (layout.length,)
        layout.vector_spec.validated(trained.vector)

    def test_no_private_vector_is_in_the_vector(self, party: Party) -> None:
        """Nowhere in one user's contribution, in the units of any tensor, with any sign."""
        for index in (0, 20):
            one = party.users.select(np.array([index]))
            own = party.train(one)
            for tensor in party.learner.layout.tensors:
                sent = party.learner.layout.changes_of(own.vector)[tensor.name].reshape(-1)
                for name, values in own.private.tensors.items():
                    row = values.reshape(-1).astype(np.float64)
                    if len(row) < 2 or len(row) > len(sent) or not row.any():
                        continue
                    windows = np.lib.stride_tricks.sliding_window_view(sent * tensor.step, len(row))
                    for sign in (1.0, -1.0):
                        apart = np.abs(windows - sign * row).max(1)
                        assert apart.min() > 2 * tensor.step, (tensor.name, name)
            assert not hasattr(own.private, "canonical_bytes")

    def test_counts_are_the_users_who_touched_a_row(
        self, party: Party, trained: Contribution
    ) -> None:
        active = np.isin(np.arange(N_ITEMS), party.learner.active_items(party.shared))
        assert 0 < active.sum() < N_ITEMS, "the data has no item that is held too rarely"
        total = np.zeros(N_ITEMS, dtype=np.int64)
        for index in range(len(party.users)):
            vector = party.train(party.users.select(np.array([index]))).vector
            change, counts = party.rows(vector), party.parts(vector)[1]
            assert set(np.unique(counts)) <= {0, 1}
            held = np.isin(np.arange(N_ITEMS), party.users.train_of(index)) & active
            if party.algorithm.counts_rows:
                assert (counts[held] == 1).all()
                assert not change[counts == 0].any()
            else:
                assert not counts.any()
            total += counts
        change, counts = party.rows(trained.vector), party.parts(trained.vector)[1]
        assert np.array_equal(counts, total)
        assert not counts[~active].any()
        assert not change[~active].any()

    def test_sums_stay_within_the_grids_bound(self, party: Party, trained: Contribution) -> None:
        for clip in (party.learner.plan.update.clip, 1e-3):
            found = trained if clip > 1e-3 else self.clipped(party, clip).train()
            counts = party.parts(found.vector)[1]
            changes = party.learner.layout.changes_of(found.vector)
            for tensor in party.learner.layout.tensors:
                counted = tensor.per_item and party.algorithm.counts_rows
                users = counts[:, None] if counted else len(party.users)
                assert (np.abs(changes[tensor.name]) <= users << tensor.fraction_bits).all()

    def test_values_outside_the_range_are_clipped_and_reported(
        self, party: Party, trained: Contribution
    ) -> None:
        assert trained.n_clipped == 0
        tight = self.clipped(party, 1e-3)
        found = tight.train()
        if not party.algorithm.clips:
            assert np.array_equal(found.vector, trained.vector)
            return
        sums = tight.learner.metrics(found.vector)
        assert found.n_clipped > 0
        assert sums.sum_of("clipped_values") == found.n_clipped
        assert 0 < sums.sum_of("clipped_users") <= len(party.users)
        # What a user keeps is not clipped: only what is handed over.
        assert_same(found.private, trained.private)

    def clipped(self, party: Party, clip: float) -> Party:
        """Return the same party with another public range."""
        update = party.learner.plan.update.model_copy(update={"clip": clip})
        return Party.of(party.learner.plan.model_copy(update={"update": update}), party.users)

    def test_values_that_are_not_finite_stop_the_round(self, party: Party) -> None:
        name, values = next(iter(party.shared.tensors.items()))
        broken = party.shared.with_tensors(**{name: values * np.nan})
        with pytest.raises(TrainingError, match=r"algorithm\."):
            party.train(shared=broken)

    def test_losses_are_reported_for_those_who_trained(
        self, party: Party, trained: Contribution
    ) -> None:
        active = party.learner.active_items(party.shared)
        able = [
            np.isin(party.users.train_of(index), active).any() for index in range(len(party.users))
        ]
        sums = party.learner.metrics(trained.vector)
        assert sums.participants == sum(able) > 0
        assert sums.loss is not None
        assert sums.loss >= 0

    # The next version: a pure function of the sum.

    def applied(
        self, party: Party, change: dict[str, NDArray[np.float64]], counts: NDArray[np.int64]
    ) -> SharedState:
        return party.algorithm.apply(party.shared, change, counts, ROUND)

    def test_apply_is_pure_and_leaves_rows_that_nobody_touched(self, party: Party) -> None:
        rng = np.random.default_rng(2)
        counts = rng.integers(0, 3, N_ITEMS)
        change = {
            tensor.name: rng.normal(size=tensor.shape) * (counts > 0)[:, None]
            if tensor.per_item
            else 1.0 + rng.random(tensor.shape)
            for tensor in party.learner.layout.tensors
        }
        copies = {name: values.copy() for name, values in change.items()}
        before = party.shared.canonical_bytes(), copies, counts.copy()
        after = self.applied(party, change, counts)
        assert after.canonical_bytes() == self.applied(party, change, counts).canonical_bytes()
        assert party.shared.canonical_bytes() == before[0]
        assert all(np.array_equal(change[name], values) for name, values in copies.items())
        assert np.array_equal(counts, before[2])
        assert set(after.tensors) == set(party.shared.tensors)
        assert after.holders is party.shared.holders
        moved = np.zeros(N_ITEMS, dtype=np.bool_)
        for name, values in after.tensors.items():
            old = party.shared.tensors[name]
            assert values.dtype == np.float64
            assert values.shape == old.shape
            if len(values) == N_ITEMS:
                changed = (values != old).reshape(N_ITEMS, -1).any(1)
                assert not changed[counts == 0].any(), name
                moved |= changed
        # Top-K leaves out small changes, of whole rows too.
        kept = moved[counts > 0]
        assert kept.any() if party.learner.plan.update.structure == "topk" else kept.all()

    def test_apply_of_nothing_changes_nothing(self, party: Party) -> None:
        nothing = {t.name: np.zeros(t.shape) for t in party.learner.layout.tensors}
        after = self.applied(party, nothing, np.zeros(N_ITEMS, dtype=np.int64))
        assert after.canonical_bytes() == party.shared.canonical_bytes()

    @pytest.mark.parametrize("users_learn", [True, False])
    def test_the_loss_falls(self, party: Party, users_learn: bool) -> None:
        """Also where users start anew in every round, so that the shared model must learn."""
        losses = []
        shared, private = party.shared, party.private
        for round_id in range(2, 2 + party.learner.plan.rounds.total):
            part = party.learner.contribute("train", round_id, shared, party.users, private)
            shared = party.learner.apply("train", round_id, shared, part.vector)
            private = part.private if users_learn else party.private
            losses.append(party.learner.metrics(part.vector).loss or np.inf)
        assert losses[-1] < losses[0]

    # Scores.

    def scores(
        self, party: Party, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> NDArray[np.float32]:
        blocks = party.learner.score_blocks(shared, users, private)
        return np.concatenate([scores.numpy() for _, scores in blocks])

    def test_scores_are_finite_where_items_are_active(
        self, party: Party, finished: tuple[SharedState, PrivateState]
    ) -> None:
        found = self.scores(party, finished[0], party.users, finished[1])
        active = party.learner.active_items(party.shared)
        assert found.shape == (len(party.users), N_ITEMS)
        assert found.dtype == np.float32
        assert np.isfinite(found[:, active]).all()
        assert np.isneginf(np.delete(found, active, axis=1)).all()
        assert found[:, active].std() > 0

    def test_a_users_scores_depend_on_that_user_alone(
        self, party: Party, finished: tuple[SharedState, PrivateState]
    ) -> None:
        shared, private = finished
        everybody = self.scores(party, shared, party.users, private)
        for rows in (np.array([3]), np.array([20, 3, 11])):
            own = rows_of(private, rows)
            found = self.scores(party, shared, party.users.select(rows), own)
            assert np.array_equal(found, everybody[rows])

    # States on disk.

    def test_training_goes_on_from_stored_states_with_the_same_bits(
        self, party: Party, trained: Contribution
    ) -> None:
        shared = party.learner.apply("train", ROUND, party.shared, trained.vector)
        stored = SharedState.from_bytes(shared.to_bytes())
        kept = PrivateState.from_bytes(trained.private.to_bytes())
        assert stored.canonical_bytes() == shared.canonical_bytes()
        assert_same(kept, trained.private)
        following = party.train(private=trained.private, shared=shared)
        again = party.train(private=kept, shared=stored)
        assert np.array_equal(again.vector, following.vector)

    # The chunk's own result.

    def test_a_chunks_result_covers_every_user_of_the_chunk(self, party: Party) -> None:
        for chunk, result in self.fitted(party):
            declared = {p.name for p in party.algorithm.parameters if p.scope == "private"}
            assert set(result.private) == declared
            for name, values in result.private.items():
                expected = (chunk.n_users, *party.private.tensors[name].shape[1:])
                assert tuple(values.shape) == expected, name
                assert values.dtype == torch.float32
            for values, kind in ((result.loss, torch.float32), (result.clipped, torch.int64)):
                assert tuple(values.shape) == (chunk.n_users,)
                assert values.dtype == kind
            assert bool(torch.isfinite(result.loss).all())
            assert not result.clipped.any()

    def fitted(self, party: Party) -> Iterator[tuple[Any, Any]]:
        """Yield every chunk with the result of fitting it."""
        learner = party.learner
        cohort = learner.cohort(party.shared, party.users)
        start = party.algorithm.start(party.shared, cohort.active, ROUND, learner.device)
        sums = learner.empty_sums(len(cohort.active))
        for chunk in learner.chunks(cohort):
            own = {
                name: torch.from_numpy(values)[chunk.user_index]
                for name, values in party.fresh(party.private).tensors.items()
            }
            yield chunk, party.algorithm.fit(chunk, start, own, sums)
