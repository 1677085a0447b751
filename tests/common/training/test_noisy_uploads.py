"""Noise on uploads: on every value of every user's table, before anything is rounded."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from world.plans import plan_of

from fedrec.algorithms import UploadNoise
from fedrec.algorithms.cohort import BlockChange
from fedrec.data import generate, leave_one_out
from fedrec.privacy.noise import RandomBits, gaussian_noise, laplace_noise
from fedrec.training.executors.processes import executor_of
from fedrec.training.fitting import NoisyUploads
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources

KEY = bytes(range(32))
N_ITEMS = 4
BLOCK = BlockChange(
    # User 0 touched items 2 and 0, user 1 item 1; the last place is unused.
    item=torch.tensor([[2, 0], [1, N_ITEMS]]),
    rows={
        "noisy": torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[0.3, 0.4], [0.0, 0.0]]]),
        "exact": torch.tensor([[[1.0], [2.0]], [[5.0], [0.0]]]),
    },
    whole={"bias": torch.tensor([[7.0], [8.0]])},
    weight={"noisy": torch.tensor([2, 9])},
)


class Kept:
    """A sink that keeps what it is given."""

    def add_block(self, change):
        self.change = change
        return torch.zeros(len(change.item), dtype=torch.int64)


def noisy(clip=None, kind="laplace"):
    kept = Kept()
    noise = UploadNoise(tensors=("noisy",), kind=kind, scale=0.5, clip=clip)
    tables = {"noisy": torch.zeros(N_ITEMS, 2)}
    sink = NoisyUploads(kept, noise, tables, bits=RandomBits(KEY))
    assert sink.add_block(BLOCK).tolist() == [0, 0]
    return kept.change


@pytest.mark.parametrize(
    ("kind", "draw"), [("laplace", laplace_noise), ("gaussian", gaussian_noise)]
)
def test_every_value_of_a_table_has_noise_of_its_own(kind, draw):
    change = noisy(kind=kind)
    table = np.zeros((2, N_ITEMS, 2))
    table[0, 2], table[0, 0], table[1, 1] = [3, 0], [0, 4], [0.3, 0.4]
    drawn = draw(0.5, 16, RandomBits(KEY)).reshape(table.shape)
    assert change.item.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert change.rows["noisy"].numpy() == pytest.approx(table + drawn, abs=1e-6)
    exact = [[[2], [0], [1], [0]], [[0], [5], [0], [0]]]
    assert change.rows["exact"].tolist() == exact
    assert change.whole is BLOCK.whole and change.weight is BLOCK.weight


def test_a_users_whole_change_is_shrunk_before():
    """User 0's length is 5 and becomes 2.5; user 1's is .5 and stays."""
    apart = noisy(clip=2.5).rows["noisy"] - noisy().rows["noisy"]
    wanted = np.zeros((2, N_ITEMS, 2))
    wanted[0, 2], wanted[0, 0] = [-1.5, 0], [0, -2]
    assert apart.numpy() == pytest.approx(wanted, abs=1e-6)


def test_untouched_rows_shrink_in_the_table_of_their_user():
    """User 0 took one step and user 1 two, which leave .9 and .8 of a row."""
    kept, start = Kept(), torch.arange(8.0).view(N_ITEMS, 2)
    noise = UploadNoise(tensors=("noisy",), kind="gaussian", scale=1e-9, clip=None)
    shrinking = {"noisy": torch.tensor([0.0, -0.1, -0.2])}
    sink = NoisyUploads(kept, noise, {"noisy": start}, shrinking)
    sink.add_block(replace(BLOCK, steps=torch.tensor([1, 2]), idle={"noisy": torch.zeros(2, 2, 2)}))
    wanted = np.stack([start.numpy() * -0.1, start.numpy() * -0.2])
    wanted[0, 2], wanted[0, 0], wanted[1, 1] = [3, 0], [0, 4], [0.3, 0.4]
    assert kept.change.rows["noisy"].numpy() == pytest.approx(wanted, abs=1e-6)
    # Nothing is left for `settle` to add.
    assert kept.change.steps is None and not kept.change.idle


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_noise_is_drawn_wherever_users_train(workers, tmp_path):
    """Its mean size tells its scale: on 20 users' weighed sums it is known to a few per cent."""
    data = generate(n_users=20, n_items=60, n_clusters=2, interactions_per_user=8, seed=3)
    users = leave_one_out(data.interactions, data.catalogue)
    executor = executor_of(workers, folder=tmp_path)
    try:
        exact, one, other = (change_of(users, executor, scale) for scale in (0.0, 0.5, 0.5))
    finally:
        executor.close()
    assert not np.array_equal(one, other)
    for noisy in (one, other):
        # Weights are all 6; the variance of one user's value is 2 x .5^2.
        apart = (noisy - exact) / 6
        # A step of the grid is 1/19,000 of their spread: of 960 values .02 round to zero.
        assert (apart == 0).sum() <= 2
        assert apart.std() == pytest.approx(np.sqrt(20 * 2 * 0.5**2), rel=0.1)


def change_of(users, executor, scale):
    plan = plan_of(
        federation={"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
        algorithm={"name": "pfedclr", "local_epochs": 1, "noise_scale": scale},
        update={"structure": "dense", "clip": 16.0},
    )
    learner = Learner(plan, 60, device="cpu", resources=Resources(workers=executor))
    private = learner.local.initial_private(users)
    part = learner.contribute("train", 2, learner.server.initial_shared(), users, private)
    assert part.n_clipped == 0
    return (
        learner.server.layout.changes_of(part.vector)["item_embedding"]
        * learner.server.layout.tensors[0].step
    )
