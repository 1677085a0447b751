"""What every algorithm must do; `AlgorithmSuite` runs over the registry.

A new line in `ALGORITHMS` is tested without another line here, with every update structure that
the table of combinations allows. An algorithm that does not learn with its own defaults on this
little data names others in `party.ALGORITHM_SETTINGS`. One that is registered elsewhere
subclasses the suite with a fixture `name` of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from conformance.contribution_suite import ContributionSuite
from conformance.party import N_ITEMS, N_USERS, ROUND, Party, assert_same, plan_of, rows_of
from numpy.typing import NDArray
from world.plans import users_of

from fedrec.algorithms import ALGORITHMS
from fedrec.data import Catalogue, UserSplit
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.combinations import find_conflicts
from fedrec.plan.layout import shared_values
from fedrec.recommender import ModelFile, Recommender, UsersFile

WITHOUT_A_DRAW = frozenset({"ease", "sketch"})
"""Algorithms whose initial state nothing is drawn for, so that it is the same for every seed."""
FROM_ONE_HEAD = frozenset({("fedrap", "colr")})
"""Pairs whose users all start from one head and have no rows of their own: who starts anew in every
round leaves nothing in the shared table but how popular items are, and here all are alike."""


class AlgorithmSuite(ContributionSuite):
    """The conformance suite of the algorithm seam."""

    @pytest.fixture(
        scope="class",
        params=[
            (name, update)
            for name in sorted(ALGORITHMS)
            for update in ALGORITHMS[name].about.supports.updates
        ],
        ids="-".join,
    )
    @classmethod
    def choice(cls, request):
        """An algorithm and an update structure that it goes with."""
        name, structure = request.param
        return name, structure

    @pytest.fixture(scope="class")
    @classmethod
    def name(cls, choice):
        """The algorithm under test."""
        return choice[0]

    @pytest.fixture(scope="class")
    @classmethod
    def plan(cls, choice):
        plan = plan_of(*choice)
        assert not find_conflicts(plan)
        return plan

    @pytest.fixture(scope="class")
    @classmethod
    def users(cls):
        """Users of unequal activity; some items are held by too few of them to be trained."""
        return users_of(N_USERS, N_ITEMS, thin=0.3)

    @pytest.fixture(scope="class")
    @classmethod
    def party(cls, plan, users):
        return Party.of(plan, users)

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, party):
        return party.train()

    @pytest.fixture(scope="class")
    @classmethod
    def finished(cls, party):
        """What all training rounds lead to."""
        shared, private = party.shared, party.private
        # One more than planned: a round's loss is that of the version it starts from.
        for round_id in range(2, 3 + party.learner.server.plan.rounds.total):
            part = party.learner.contribute("train", round_id, shared, party.users, private)
            party.check(part, party.users, shared)
            shared, private = party.follow(round_id, shared, part)
        return shared, private

    # What an algorithm declares is what it makes.

    def test_it_is_registered_under_its_own_name(self, name):
        assert ALGORITHMS[name].name == name

    def test_the_initial_state_is_what_it_declares(self, party, plan):
        shared, declared = party.learner.server.initial_shared(), party.algorithm.parameters
        assert len({parameter.name for parameter in declared}) == len(declared)
        assert shared.holders is None
        for tensors, private, kind in (
            (shared.tensors, False, np.float64),
            (party.private.tensors, True, np.float32),
        ):
            # How many rounds were published stands in the state for all algorithms.
            stored = (entry for entry in declared if not entry.published)
            own = {entry.name: entry for entry in stored if entry.private is private}
            assert set(tensors) == set(own)
            for name, entry in own.items():
                shape = entry.whole_shape(n_items=N_ITEMS, n_users=len(party.users))
                assert tensors[name].shape == shape, name
                assert tensors[name].dtype == kind, name
                assert np.isfinite(tensors[name]).all(), name
                assert not private or shape[0] == len(party.users), name
        n_shared = sum(values.size for values in shared.tensors.values())
        # What grows over the rounds is there as far as it was summed: nothing of it at first.
        n_shared += sum(math.prod(entry.grown_shape) for entry in declared if entry.grown_shape)
        assert shared_values(plan, N_ITEMS) == n_shared

    def test_the_seed_alone_decides_the_initial_shared_state(self, party, plan):
        first = party.algorithm.derived.initial_shared().canonical_bytes()
        again = algorithm_of(plan, N_ITEMS)
        assert again.derived.initial_shared().canonical_bytes() == first
        seed = plan.federation.model_copy(update={"seed": plan.federation.seed + 1})
        other = plan.model_copy(update={"federation": seed})
        different = algorithm_of(other, N_ITEMS)
        drawn = different.derived.initial_shared().canonical_bytes() != first
        assert drawn is (party.algorithm.name not in WITHOUT_A_DRAW)

    def test_a_users_initial_vectors_depend_on_that_user_alone(self, party):
        chosen = np.sort(np.random.default_rng(1).permutation(len(party.users))[::2])
        some = party.learner.local.initial_private(party.users.select(chosen))
        assert_same(some, rows_of(party.private, chosen))

    def test_memory_grows_with_the_items(self, party):
        for n_steps in (1, 64):
            sizes = [party.algorithm.bytes_per_user(n, n_steps) for n in (1, 1000, 1_000_000)]
            assert sizes == sorted(sizes)
            assert sizes[0] > 0

    # The next version: a pure function of the sum.

    def applied(
        self, party: Party, change: dict[str, NDArray[np.float64]], counts: NDArray[np.int64]
    ) -> SharedState:
        return party.algorithm.apply(party.shared, change, counts, ROUND)

    def test_apply_is_pure_and_leaves_rows_that_no_user_touched(self, party):
        rng = np.random.default_rng(2)
        counts = rng.integers(0, 3, N_ITEMS)
        change = {
            tensor.name: rng.normal(size=tensor.shape)
            * (counts > 0).reshape(-1, *[1] * (len(tensor.shape) - 1))
            if tensor.per_item
            else 1.0 + rng.random(tensor.shape)
            for tensor in party.learner.server.layout.tensors
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
            grows = any(
                entry.grown_shape for entry in party.algorithm.parameters if entry.name == name
            )
            assert values.shape == old.shape or (grows and len(values) > len(old))
            if values.shape[:1] == (N_ITEMS,):
                changed = (values != old).reshape(N_ITEMS, -1).any(1)
                assert not changed[counts == 0].any(), name
                moved |= changed
        # Top-K leaves out small changes, of whole rows too.
        kept = moved[counts > 0]
        assert kept.any() if party.learner.server.plan.update.structure == "topk" else kept.all()

    def test_apply_of_nothing_changes_nothing(self, party):
        """Scalars apart, which count rounds."""
        nothing = {t.name: np.zeros(t.shape) for t in party.learner.server.layout.tensors}
        after = self.applied(party, nothing, np.zeros(N_ITEMS, dtype=np.int64))
        scalars = {entry.name for entry in party.algorithm.parameters if entry.scope == "scalar"}
        for name, values in party.shared.tensors.items():
            assert name in scalars or np.array_equal(values, after.tensors[name]), name

    @pytest.mark.parametrize("users_learn", [True, False])
    def test_the_loss_falls(self, party, users_learn):
        """Also where users start anew in every round, so that the shared model must learn."""
        if (party.algorithm.name, party.learner.server.plan.update.structure) in FROM_ONE_HEAD:
            losses = self.losses(party, users_learn=True, tables_learn=users_learn)
            assert losses[-1] < losses[0]
            if not users_learn:
                assert self.losses(party, users_learn=True)[-1] < losses[-1]
            return
        losses = self.losses(party, users_learn=users_learn)
        assert losses[-1] < losses[0]

    def losses(self, party: Party, *, users_learn: bool, tables_learn: bool = True) -> list[float]:
        """Return the loss of every round; what does not learn is as it was at first."""
        found = []
        shared, private = party.shared, party.private
        scalars = [
            entry.name
            for entry in party.algorithm.parameters
            if entry.scope == "scalar" and not entry.published
        ]
        received = [entry.name for entry in party.algorithm.parameters if entry.received]
        # One more than planned: the loss of a round is that of the version it starts from.
        for round_id in range(2, 3 + party.learner.server.plan.rounds.total):
            part = party.learner.contribute("train", round_id, shared, party.users, private)
            after, kept = party.follow(round_id, shared, part)
            counted = {name: after.tensors[name] for name in scalars}
            held = replace(shared.with_tensors(**counted), trained=after.trained)
            shared = after if tables_learn else held
            private = (
                kept
                if users_learn
                else PrivateState.of(
                    {**party.private.tensors, **{name: kept.tensors[name] for name in received}}
                )
            )
            found.append(party.learner.server.metrics(part.vector).loss or np.inf)
        return found

    # Scores.

    def scores(
        self, party: Party, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> NDArray[np.float32]:
        blocks = party.learner.local.score_blocks(shared, users, private)
        return np.concatenate([scores.numpy() for _, scores in blocks])

    def test_scores_are_finite_where_items_are_active(self, party, finished):
        found = self.scores(party, finished[0], party.users, finished[1])
        active = party.learner.server.active_items(party.shared)
        assert found.shape == (len(party.users), N_ITEMS)
        assert found.dtype == np.float32
        assert np.isfinite(found[:, active]).all()
        assert np.isneginf(np.delete(found, active, axis=1)).all()
        assert found[:, active].std() > 0

    def test_a_users_scores_depend_on_that_user_alone(self, party, finished):
        shared, private = finished
        all_users = self.scores(party, shared, party.users, private)
        for rows in (np.array([3]), np.array([20, 3, 11])):
            own = rows_of(private, rows)
            found = self.scores(party, shared, party.users.select(rows), own)
            assert np.array_equal(found, all_users[rows])

    def test_scores_are_read_from_what_is_named_alone(self, party, finished):
        shared, private = finished
        named, kept = party.algorithm.scoring, party.algorithm.kept_scores
        assert set(named) <= {entry.name for entry in party.algorithm.parameters}
        spoilt = shared.with_tensors(
            **{
                name: np.full_like(values, np.nan)
                for name, values in shared.tensors.items()
                if name not in named
            }
        )
        own = PrivateState(
            MappingProxyType({n: values for n, values in private.tensors.items() if n in named})
        )
        wanted = self.scores(party, shared, party.users, private)
        assert np.array_equal(self.scores(party, spoilt, party.users, own), wanted)
        if kept:
            assert kept in named
            active = party.learner.server.active_items(shared)
            assert np.array_equal(private.tensors[kept][:, active], wanted[:, active])

    def test_a_saved_model_recommends_what_the_learner_does(self, party, finished):
        shared, private = finished
        catalogue = Catalogue.of([f"item {row}" for row in range(N_ITEMS)])
        model = ModelFile(
            plan=party.learner.server.plan,
            catalogue_fingerprint=catalogue.fingerprint(),
            round=RoundId(ROUND),
            shared=shared,
        )
        own = party.learner.local.refreshed(shared, party.users, private)
        recommender = Recommender(model, catalogue, UsersFile.of(party.users, own))
        for user in (0, 7):
            rows, scores = party.learner.local.recommend(shared, party.users, private, user, 5)
            found, text = recommender.recommend(party.users.user_ids[user], 5)
            assert found.tolist() == list(catalogue.ids_of(rows))
            # What is the same for all items of a user may be missing.
            assert np.diff(text) == pytest.approx(np.diff(scores), rel=1e-3, abs=1e-4)

    # States on disk.

    def test_training_goes_on_from_stored_states_with_the_same_bits(self, party, trained):
        shared = party.learner.server.apply("train", ROUND, party.shared, trained.vector)
        stored = SharedState.from_bytes(shared.to_bytes())
        kept = PrivateState.from_bytes(trained.private.to_bytes())
        assert stored.canonical_bytes() == shared.canonical_bytes()
        assert_same(kept, trained.private)
        following = party.train(private=trained.private, shared=shared)
        again = party.train(private=kept, shared=stored)
        assert np.array_equal(again.vector, following.vector)
