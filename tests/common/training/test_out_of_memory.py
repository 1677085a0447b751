"""A device without room: fewer users at once, the same sums, and nothing added twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conformance.party import Party, empty_sums, plan_of
from torch.utils._python_dispatch import TorchDispatchMode

from fedrec.algorithms.fedmf import FedMF
from fedrec.data import generate, leave_one_out
from fedrec.errors import SettingsError
from fedrec.training import trainer as trainer_module
from fedrec.training.samples import draw_samples
from fedrec.training.trainer import Trainer

pytestmark = pytest.mark.slow


class Room:
    """As many users as a test says, where `BlockRoom` counts them."""

    def __init__(self, n_users):
        self.n_users = n_users

    def users(self, size, n_users):
        return self.n_users

    def shrink(self, size, users):
        self.n_users = users


@pytest.fixture(scope="module")
def party():
    """Users of one and of several minibatches; more than a block of each."""
    data = generate(n_users=150, n_items=60, n_clusters=3, interactions_per_user=12, seed=3)
    keep = np.random.default_rng(0).random(len(data.interactions)) < np.repeat(
        np.linspace(0.5, 1.0, 150), 12
    )
    users = leave_one_out(data.interactions.take(keep), data.catalogue)
    plan = plan_of(
        "fedmf", "dense", federation={"maximum_users": 200}, training={"accelerated": False}
    )
    return Party.of(plan, users)


def trained(party, room):
    """Return everything that a round leaves: sums, counts, and each user's own results."""
    learner = party.learner
    cohort = learner.local.cohort(party.shared, party.users)
    start = party.algorithm.derived.start(party.shared, cohort.active, 5, learner.local.device)
    sums, own = empty_sums(learner, party.shared), []
    trainer = Trainer(party.algorithm, start, room)
    for chunk in learner.local.chunks(cohort):
        private = {
            name: torch.from_numpy(values)[chunk.user_index]
            for name, values in party.private.tensors.items()
        }
        found = trainer.train(chunk, private, sums)
        own += [*found.private.values(), found.loss, found.clipped]
    return [*(total.change for total in sums.tensors.values()), sums.counts, *own]


def same(found, expected):
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def assert_near(found, expected):
    """Blocks of other sizes may have other last bits."""
    # Whole numbers: users who touched a row, values clipped.
    assert torch.equal(found[1], expected[1])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.to(torch.float64), other.to(torch.float64), rtol=1e-4, atol=2.0
        )


class Raises(TorchDispatchMode):
    """Has no memory left for one of the tensors that are made.

    Args:
        at: which one, counted from 0; None for never.
    """

    def __init__(self, at=None):
        super().__init__()
        self.at, self.n_made = at, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(value.alias_info is None for value in func._schema.returns):
            if self.n_made == self.at:
                self.n_made += 1
                raise torch.OutOfMemoryError("CUDA out of memory.")
            self.n_made += 1
        return func(*args, **(kwargs or {}))


def limited(monkeypatch, most):
    """Let the loss of more than `most` users run out of memory; return the sizes it was given."""
    loss, sizes = FedMF.loss, []

    def needing(self, values, batch):
        sizes.append(len(batch.label))
        if len(batch.label) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 TiB.")
        return loss(self, values, batch)

    monkeypatch.setattr(FedMF, "loss", needing)
    return sizes


@pytest.mark.parametrize("most", [8, 16, 31])
def test_a_block_is_halved_until_it_fits(party, most, monkeypatch):
    expected = trained(party, Room(64))
    sizes = limited(monkeypatch, most)
    room = Room(64)
    assert_near(trained(party, room), expected)
    assert max(sizes) > most
    # It is found out once, not for each block.
    assert len([size for size in sizes if size > most]) <= 3
    assert most // 2 <= room.n_users <= most


def test_eight_users_who_do_not_fit_are_an_error(party, monkeypatch):
    limited(monkeypatch, 7)
    for room in (Room(64), None):
        with pytest.raises(SettingsError, match=r"block of 8 users, .* 1\.00 TiB") as caught:
            trained(party, room)
        assert "client.device_memory_mib" in caught.value.remedy


def test_a_chunk_whose_samples_do_not_fit_is_halved(party, monkeypatch):
    expected, drawn = trained(party, None), []

    def drawing(chunk, **keywords):
        drawn.append(chunk.n_users)
        if chunk.n_users > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return draw_samples(chunk, **keywords)

    monkeypatch.setattr(trainer_module, "draw_samples", drawing)
    # Blocks of eight: a user's bits do not depend on who is beside it.
    assert same(trained(party, None), expected)
    assert max(drawn) > 40


def test_eight_users_whose_samples_do_not_fit_are_an_error(party, monkeypatch):
    def drawing(chunk, **keywords):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(trainer_module, "draw_samples", drawing)
    with pytest.raises(SettingsError, match=r"samples of [1-8] users don.t fit") as caught:
        trained(party, None)
    assert "client.device_memory_mib" in caught.value.remedy


def test_wherever_memory_ends_nothing_is_added_twice(party):
    """At a dozen of the tensors that a round makes, from the first sample to the last sum.

    Where a block is added up, each single one is tried by the test below.
    """
    with Raises() as counting:
        expected = trained(party, Room(16))
    n_made = counting.n_made
    assert n_made > 500
    halved = 0
    for at in range(n_made // 24, n_made, n_made // 12):
        with Raises(at) as raising:
            try:
                found = trained(party, Room(16))
            except (torch.OutOfMemoryError, SettingsError):
                # Beside the trainer, or where there were eight users at most.
                continue
        assert raising.n_made > at
        halved += 1
        assert_near(found, expected)
    assert halved > 6


def test_a_sum_takes_a_block_as_a_whole_or_not_at_all(party):
    """At every single tensor that `add_block` makes, also with a limit of users' whole changes."""
    learner = party.learner
    cohort = learner.local.cohort(party.shared, party.users)
    start = party.algorithm.derived.start(party.shared, cohort.active, 5, learner.local.device)
    seen = []

    class Keeps:
        def add_block(self, change):
            seen.append(change)
            return torch.zeros(len(change.item), dtype=torch.int64)

    chunk = next(learner.local.chunks(cohort))
    private = {
        name: torch.from_numpy(values)[chunk.user_index]
        for name, values in party.private.tensors.items()
    }
    Trainer(party.algorithm, start).train(chunk, private, Keeps())
    change = seen[0]
    for longest in (None, 1 << 18):

        def fresh(longest=longest):
            sums = empty_sums(learner, party.shared)
            sums._longest, sums._counts_rows = longest, longest is None
            return sums

        def values_of(sums):
            return [*(t.change for t in sums.tensors.values()), sums.counts, sums._n_shrunk.clone()]

        nothing, whole = values_of(fresh()), fresh()
        with Raises() as counting:
            whole.add_block(change)
        expected = values_of(whole)
        assert not same(expected, nothing)
        for at in range(counting.n_made):
            sums = fresh()
            with Raises(at), pytest.raises(torch.OutOfMemoryError):
                sums.add_block(change)
            assert same(values_of(sums), nothing)
            sums.add_block(change)
            assert same(values_of(sums), expected)
