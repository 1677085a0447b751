"""What every algorithm's contribution to a round must be: a part of `AlgorithmSuite`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conformance.party import N_ITEMS, N_USERS, ROUND, Party, assert_same, empty_sums, rows_of
from numpy.typing import NDArray

from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.errors import TrainingError
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.layout import METRICS_SLICE
from fedrec.plan.travelling_rows import own_rows_of
from fedrec.training.fitting import fit_of


class ContributionSuite:
    """Of one party, with the fixtures `party` and `trained`."""

    # A function of users, seed, round and shared model.

    def test_training_again_gives_the_same_bits(self, party, trained):
        again = Party.of(party.learner.server.plan, party.users).train()
        assert np.array_equal(again.vector, trained.vector)
        assert_same(again.private, trained.private)
        assert trained.vector.any(), "nothing was trained"

    def test_training_changes_none_of_its_inputs(self, party):
        before = party.shared.canonical_bytes(), party.private.to_bytes()
        party.train(private=party.private)
        assert (party.shared.canonical_bytes(), party.private.to_bytes()) == before

    @pytest.mark.parametrize("n_groups", [2, 5, N_USERS])
    def test_the_sum_does_not_depend_on_order_or_grouping(self, party, trained, n_groups):
        order = np.random.default_rng(n_groups).permutation(len(party.users))
        total = np.zeros_like(trained.vector)
        for rows in np.array_split(order, n_groups):
            own = party.train(party.users.select(rows))
            total += own.vector
            assert_same(own.private, rows_of(trained.private, rows))
        # No user was measured twice, so the metric sums are equal, too.
        assert np.array_equal(total, trained.vector)

    def test_chunks_change_no_bit(self, party, trained):
        small = Party.of(party.learner.server.plan, party.users)
        small.learner.local.memory_bytes = 3 * small.algorithm.bytes_per_user(N_ITEMS, 1)
        again = small.train()
        assert np.array_equal(again.vector, trained.vector)
        assert_same(again.private, trained.private)

    def test_who_does_not_take_part_changes_nothing(self, party, trained):
        some = np.arange(len(party.users)) % 3 == 0
        part = party.train(participating=some)
        absent, present = np.nonzero(~some)[0], np.nonzero(some)[0]
        assert_same(rows_of(part.private, absent), rows_of(party.fresh(party.private), absent))
        assert_same(rows_of(part.private, present), rows_of(trained.private, present))
        change, counts = party.parts(part.vector)
        alone = party.parts(party.train(party.users.select(present)).vector)
        assert np.array_equal(change, alone[0])
        assert np.array_equal(counts, alone[1])
        untrained = party.parts(party.train(participating=np.zeros_like(some)).vector)
        assert not untrained[0].any()
        assert not untrained[1].any()

    def test_warming_up_leaves_nothing_behind(self, party, trained):
        fresh = Party.of(party.learner.server.plan, party.users)
        fresh.learner.warm_up()
        assert np.array_equal(fresh.train().vector, trained.vector)

    # A client's own floor (client.minimum_own_item_users).

    def own_rows(self, party: Party) -> NDArray[np.bool_]:
        """Return the rows that six users or more hold, while four make a row active."""
        holders = np.bincount(party.users.train_items, minlength=N_ITEMS)
        own_rows = own_rows_of(holders, 6)
        active = party.learner.server.active_items(party.shared)
        assert own_rows is not None
        assert 0 < own_rows[active].sum() < len(active)
        return own_rows

    def test_nothing_comes_out_of_rows_that_few_own_users_hold(self, party, trained):
        """The contribution is that of users who never had these items."""
        own_rows = self.own_rows(party)
        found = party.train(own_rows=own_rows)
        assert not party.rows(found.vector)[~own_rows].any()
        assert not party.parts(found.vector)[1][~own_rows].any()
        assert party.parts(found.vector)[0].any()
        assert not np.array_equal(found.vector, trained.vector)
        stripped = party.users.renumbered(np.where(own_rows, np.arange(N_ITEMS), -1))
        assert stripped.n_train < party.users.n_train
        without = party.train(
            replace(
                stripped,
                validation_items=party.users.validation_items,
                test_items=party.users.test_items,
            ),
            own_rows=own_rows,
        )
        of_data = slice(METRICS_SLICE.start)
        assert np.array_equal(found.vector[of_data], without.vector[of_data])
        training = (
            party.learner.server.metrics(found.vector),
            party.learner.server.metrics(without.vector),
        )
        assert training[0].participants == training[1].participants
        assert training[0].loss == training[1].loss

    def test_no_row_at_all_is_a_contribution_of_nothing(self, party):
        found = party.train(own_rows=np.zeros(N_ITEMS, dtype=np.bool_))
        change, counts = party.parts(found.vector)
        assert not change.any()
        assert not counts.any()
        assert not party.learner.server.metrics(found.vector).participants

    def test_items_below_the_own_floor_are_scored_at_home(self, party):
        """As those that a user did not touch: with the published row and what the user trained."""
        own_rows = self.own_rows(party)
        made = party.train(own_rows=own_rows)
        if not party.algorithm.kept_scores:
            return
        active = party.learner.server.active_items(party.shared)
        left_out = active[~own_rows[active]]
        kept = made.private.tensors[party.algorithm.kept_scores][:, left_out]
        assert isinstance(party.algorithm, TrainedAlgorithm)
        start = party.algorithm.derived.start(party.shared, left_out, 0, party.learner.local.device)
        own = {name: torch.from_numpy(values) for name, values in made.private.tensors.items()}
        wanted = party.algorithm.untouched_scores(len(party.users), start, own).numpy()
        able = np.diff(party.users.renumbered(np.where(own_rows, 0, -1)).train_indptr) > 0
        assert np.array_equal(kept[able], wanted[able])
        begun = party.private.tensors[party.algorithm.kept_scores][:, left_out]
        assert not np.array_equal(kept[able], begun[able])

    # What is handed over: exactly the vector, on the grid, within its proven bounds.

    def test_the_vector_is_what_the_layout_promises(self, party, trained):
        layout = party.learner.server.travelling.layout("train", party.shared)
        assert trained.vector.dtype == np.int64
        assert trained.vector.shape == (layout.length,)
        layout.vector_spec.validated(trained.vector)

    def test_no_private_vector_is_in_the_vector(self, party):
        """Nowhere in one user's contribution, in the units of any tensor, with any sign.

        But for what an algorithm declares that its server reads.
        """
        shown = {entry.name for entry in party.algorithm.parameters if entry.shown}
        for index in (0, 20):
            one = party.users.select(np.array([index]))
            own = party.train(one)
            for tensor in party.learner.server.layout.tensors:
                sent = party.sums(own.vector).changes[tensor.name].reshape(-1)
                for name, values in own.private.tensors.items():
                    row = values.reshape(-1).astype(np.float64)
                    if len(row) < 2 or len(row) > len(sent) or not row.any() or name in shown:
                        continue
                    windows = np.lib.stride_tricks.sliding_window_view(sent * tensor.step, len(row))
                    for sign in (1.0, -1.0):
                        apart = np.abs(windows - sign * row).max(1)
                        assert apart.min() > 2 * tensor.step, (tensor.name, name)
            assert not hasattr(own.private, "canonical_bytes")

    def test_counts_are_the_users_who_touched_a_row(self, party, trained):
        active = np.isin(np.arange(N_ITEMS), party.learner.server.active_items(party.shared))
        assert 0 < active.sum() < N_ITEMS, "the data has no item that is held too rarely"
        total = np.zeros(N_ITEMS, dtype=np.int64)
        for index in range(len(party.users)):
            vector = party.train(party.users.select(np.array([index]))).vector
            change, counts = party.rows(vector), party.parts(vector)[1]
            assert set(np.unique(counts)) <= {0, 1}
            held = np.isin(np.arange(N_ITEMS), party.users.train_of(index)) & active
            if party.algorithm.derived.counts_rows:
                assert (counts[held] == 1).all()
                assert not change[counts == 0].any()
            else:
                assert not counts.any()
            total += counts
        change, counts = party.rows(trained.vector), party.parts(trained.vector)[1]
        assert np.array_equal(counts, total)
        assert not counts[~active].any()
        assert not change[~active].any()

    def test_sums_stay_within_the_grids_bound(self, party, trained):
        for clip in (party.learner.server.plan.update.clip, 1e-3):
            found = trained if clip > 1e-3 else self.clipped(party, clip).train()
            counts = party.parts(found.vector)[1]
            changes = party.sums(found.vector).changes
            for tensor in party.learner.server.layout.tensors:
                counted = tensor.per_item and party.algorithm.derived.counts_rows
                users = counts[:, None] if counted else len(party.users)
                sums = changes[tensor.name].reshape(N_ITEMS if tensor.per_item else 1, -1)
                assert (np.abs(sums) <= users * tensor.bound).all()

    def test_values_outside_the_range_are_clipped_and_reported(self, party, trained):
        assert trained.n_clipped == 0
        tight = self.clipped(party, 1e-3)
        found = tight.train()
        if party.algorithm.about.range_instead:
            assert np.array_equal(found.vector, trained.vector)
            return
        sums = tight.learner.server.metrics(found.vector)
        assert found.n_clipped > 0
        assert sums.sum_of("clipped_values") == found.n_clipped
        assert 0 < sums.sum_of("clipped_users") <= len(party.users)
        # What a user keeps is not clipped: only what is handed over.
        assert_same(found.private, trained.private)

    def clipped(self, party: Party, clip: float) -> Party:
        """Return the same party with another public range."""
        update = party.learner.server.plan.update.model_copy(update={"clip": clip})
        return Party.of(
            party.learner.server.plan.model_copy(update={"update": update}), party.users
        )

    def test_values_that_are_not_finite_stop_the_round(self, party):
        name, values = next(iter(party.shared.tensors.items()))
        n_active = len(party.learner.server.active_items(party.shared))
        # Of what grows over the rounds nothing is known yet; then all of it is broken.
        whole = algorithm_of(party.learner.server.plan, n_active).parameters[0].grown_shape
        shape = values.shape if values.size else whole
        broken = party.shared.with_tensors(**{name: np.full(shape, np.nan)})
        with pytest.raises(TrainingError, match=r"algorithm\."):
            party.train(shared=broken)

    def test_losses_are_reported_for_those_who_trained(self, party, trained):
        active = party.learner.server.active_items(party.shared)
        able = [
            np.isin(party.users.train_of(index), active).any() for index in range(len(party.users))
        ]
        sums = party.learner.server.metrics(trained.vector)
        assert sums.participants == sum(able) > 0
        assert sums.loss is not None
        assert sums.loss >= 0

    # The chunk's own result.

    def test_a_chunks_result_covers_every_user_of_the_chunk(self, party):
        for chunk, result in self.fitted(party):
            declared = {entry.name for entry in party.algorithm.parameters if entry.private}
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
        cohort = learner.local.cohort(party.shared, party.users)
        start = party.algorithm.derived.start(
            party.shared, cohort.active, ROUND, learner.local.device
        )
        sums = empty_sums(learner, party.shared)
        fit = fit_of(party.algorithm, start, sums, learner.local.accelerator)
        for chunk in learner.local.chunks(cohort):
            own = {
                name: torch.from_numpy(values)[chunk.user_index]
                for name, values in party.fresh(party.private).tensors.items()
            }
            yield chunk, fit(chunk, own)
