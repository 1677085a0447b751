"""Blocks: shapes and samples follow from the user alone, as bits do in `test_invariance.py`."""

import numpy as np
import pytest
import torch
from conformance.unrounded import UnroundedSums, begin
from reference.plain_fedmf import batches_of, samples_of
from world.plans import plan_of, users_of

from fedrec.training import blocks as blocks_module
from fedrec.training.blocks import BLOCK_USERS, blocks_of, buckets_of, padded
from fedrec.training.learner import Learner
from fedrec.training.samples import draw_samples
from fedrec.training.trainer import Trainer

pytestmark = pytest.mark.slow

N_ITEMS, N_USERS, BATCH, EPOCHS, ROUND = 60, 23, 8, 3, 5
CPU = torch.device("cpu")
ALGORITHMS = {
    "fedmf": ({"name": "fedmf", "dim": 6}, {"structure": "dense"}),
    "fedmf-colr": ({"name": "fedmf", "dim": 6}, {"structure": "colr", "rank": 2}),
    "fedmf-svd": ({"name": "fedmf", "dim": 6}, {"structure": "svd", "rank": 2}),
    "pfedrec": ({"name": "pfedrec", "dim": 5, "item_rate_scale": 0.2}, {"structure": "dense"}),
    "fedncf": ({"name": "fedncf", "dim": 6}, {"structure": "dense"}),
    "fedncf-adam": (
        {"name": "fedncf", "dim": 6, "optimiser": "adam", "learning_rate": 0.01},
        {"structure": "dense"},
    ),
}


def learner_of(name="fedmf", **changes):
    algorithm, update = ALGORITHMS[name]
    plan = plan_of(
        federation={"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
        algorithm={"batch_size": BATCH, "local_epochs": EPOCHS} | algorithm | changes,
        update={"clip": 8.0} | update,
    )
    return Learner(plan, N_ITEMS, device="cpu")


@pytest.fixture(scope="module")
def users():
    """Of 1 to 16 training items, so that there are many sizes, and users of the same size."""
    return users_of(N_USERS, N_ITEMS, each=18, short=16)


def chunk_of(learner, users, members):
    cohort = learner.local.cohort(learner.server.initial_shared(), users)
    return cohort.chunk_of(np.asarray(members), CPU)


def drawn(learner, users, members, gathers=True, epochs=EPOCHS):
    """Return a chunk's samples and its blocks."""
    chunk = chunk_of(learner, users, members)
    samples = draw_samples(chunk, seed=7, round_id=ROUND, negatives_per_positive=4)
    blocks = [
        block
        for size, own in buckets_of(samples, batch_size=BATCH, epochs=epochs, gathers=gathers)
        for block in blocks_of(
            chunk, samples, own, size, seed=7, round_id=ROUND, dtype=torch.float64
        )
    ]
    return samples, blocks


def plain_samples(users, index):
    positives, key = users.train_of(index).tolist(), int(users.user_keys()[index])
    return key, samples_of(7, ROUND, key, positives, positives, N_ITEMS, 4)


@pytest.mark.parametrize("n_rows", [1, 7, 8, 9, 31, 32, 63, 64, 65, 1000, 1023, 1024])
def test_rows_are_padded_to_few_sizes_by_at_most_a_quarter(n_rows):
    height = padded(n_rows)
    assert n_rows < height <= max(n_rows + 8, 1.25 * n_rows + 1)
    assert height % 8 == 0
    # Of the numbers between two powers of two at most four or five are sizes.
    assert len({padded(n) for n in range(1 << 12, 1 << 13)}) <= 5


def test_samples_are_those_of_the_plain_twin(users):
    members = np.random.default_rng(0).permutation(N_USERS)
    samples, _ = drawn(learner_of(), users, members)
    for place, index in enumerate(members.tolist()):
        _, expected = plain_samples(users, index)
        rows = slice(*samples.row_pointers[place : place + 2].tolist())
        own = samples.row[slice(*samples.pointers[place : place + 2].tolist())]
        item, label = samples.item[rows], samples.label[rows]
        assert list(zip(item[own].tolist(), label[own].tolist(), strict=True)) == expected
        assert item.tolist() == sorted({name for name, _ in expected})
        names = [name for name, _ in expected]
        assert samples.count[rows].tolist() == [names.count(name) for name in item.tolist()]
        assert samples.n_rows[place] == len(item)
        assert samples.n_samples[place] == len(expected)


@pytest.mark.parametrize(("n_few", "n_sizes"), [(1 << 24, 1), (0, 4)])
def test_a_device_has_few_sizes_and_users_skip_missing_steps(users, n_few, n_sizes, monkeypatch):
    monkeypatch.setattr(blocks_module, "_FEW_SAMPLES", n_few)
    chunk = chunk_of(learner_of(), users, range(N_USERS))
    samples = draw_samples(chunk, seed=7, round_id=ROUND, negatives_per_positive=4)
    batch, there = 4 * BATCH, []
    sizes = dict(
        buckets_of(samples, batch_size=batch, epochs=1, gathers=True, coarse=N_ITEMS, uneven=True)
    )
    assert len(sizes) <= n_sizes
    for size, own in sizes.items():
        there += own.tolist()
        assert (samples.n_rows[own] < size.n_rows).all()
        (block,) = blocks_of(
            chunk, samples, own, size, seed=7, round_id=ROUND, dtype=torch.float64,
            block_users=N_USERS,
        )  # fmt: skip
        taken = -(-samples.n_samples[own] // batch)
        assert taken.max() <= size.n_steps <= 2 * taken.max()
        live = block.live if size.n_steps > 1 else torch.ones((1, N_USERS))
        assert live.sum(0)[: len(own)].tolist() == taken.tolist()
        assert live[0].all()
    assert sorted(there) == list(range(N_USERS))


@pytest.mark.parametrize("gathers", [True, False])
def test_minibatches_are_those_of_the_plain_twin(users, gathers):
    """Every sample once in an epoch; weights are its items' shares and sum to one."""
    _, blocks = drawn(learner_of(), users, np.arange(N_USERS), gathers)
    seen = set()
    for block in blocks:
        for place in range(block.n_users):
            index = int(block.users[place])
            seen.add(index)
            key, samples = plain_samples(users, index)
            for epoch in range(EPOCHS):
                batches = batches_of(7, ROUND, epoch, key, samples, BATCH)
                found = list(block.minibatches(epoch))
                assert len(found) == len(batches)
                for (rows, weight, share, live), batch in zip(found, batches, strict=True):
                    assert live is None
                    check_minibatch(block, place, rows, weight, share, batch, len(samples))
        dummies = slice(block.n_users, None)
        assert (block.item[dummies] == N_ITEMS).all()
        assert not block.weight[:, :, dummies].any()
        assert not block.share[:, dummies].any()
    assert seen == set(range(N_USERS))


def check_minibatch(block, place, rows, weight, share, batch, n_samples):
    names = [name for name, _ in batch]
    assert float(share[place]) == len(batch) / n_samples
    assert float(weight[place].sum()) == pytest.approx(1.0, abs=1e-12)
    own = block.item[place]
    if rows is not None:
        height = block.item.shape[1]
        mine = rows.view(len(block.users), -1)[place]
        assert (mine // height == place).all(), "a user reads another's rows"
        own = own[mine % height]
        labels = block.label[place][mine % height]
    else:
        labels = block.label[place]
    taken = weight[place] > 0
    found = {
        name: (w * len(batch), label)
        for name, w, label in zip(
            own[taken].tolist(), weight[place][taken].tolist(), labels[taken].tolist(), strict=True
        )
    }
    assert len(found) == int(taken.sum()), "an item has two rows"
    assert N_ITEMS not in found
    assert found == {
        name: (pytest.approx(names.count(name), abs=1e-12), label) for name, label in batch
    }


def shapes_of(learner, users, members, gathers):
    _, blocks = drawn(learner, users, members, gathers)
    return {
        int(members[block.users[place]]): (
            len(block.share), block.item.shape, block.weight.shape[1:],
            None if block.index is None else block.index.shape,
        )
        for block in blocks
        for place in range(block.n_users)
    }  # fmt: skip


@pytest.mark.parametrize("gathers", [True, False])
def test_shapes_follow_from_the_user_alone(users, gathers):
    learner, all_users = learner_of(), np.arange(N_USERS)
    expected = shapes_of(learner, users, all_users, gathers)
    assert len({shape for shape in expected.values()}) > 5
    assert all(shape[1][0] == BLOCK_USERS for shape in expected.values())
    for order in (all_users[::-1], np.random.default_rng(1).permutation(N_USERS)):
        assert shapes_of(learner, users, order, gathers) == expected
    for part in np.array_split(all_users, 5):
        own = shapes_of(learner, users, part, gathers)
        assert own == {index: expected[index] for index in part.tolist()}
    for index in all_users.tolist():
        assert shapes_of(learner, users, np.array([index]), gathers)[index] == expected[index]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_places_without_a_user_hand_over_nothing(users, name):
    """A block of one user and seven dummies: one user's rows, no values of any other user."""
    learner = learner_of(name)
    shared, private = begin(learner, users)
    start = learner.server.algorithm.derived.start(shared, np.arange(N_ITEMS), ROUND, CPU)
    sums = UnroundedSums(N_ITEMS)
    own = {key: torch.from_numpy(values[4:5]).float() for key, values in private.items()}
    chunk = chunk_of(learner, users, np.array([4]))
    Trainer(learner.server.algorithm, start).train(chunk, own, sums)
    (change,) = sums.blocks
    _, samples = plain_samples(users, 4)
    touched = sorted({name for name, _ in samples})
    assert len(change.item) == 1
    assert sorted(change.item[change.item < N_ITEMS].tolist()) == touched
    assert sums.counts.tolist() == [int(item in touched) for item in range(N_ITEMS)]
    for values in change.rows.values():
        assert not values[change.item == N_ITEMS].any()
