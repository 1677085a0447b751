"""What a device holds at once, counted on the CPU, against what training may take there."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance.live_tensors import LiveTensors
from conformance.party import empty_sums
from world.plans import plan_of

from fedrec.algorithms.algorithm import ChunkResult
from fedrec.algorithms.trained import _BYTES_PER_SAMPLE
from fedrec.data.splits import UserSplit
from fedrec.ids import UserId
from fedrec.training import trainer as trainer_module
from fedrec.training.blocks import BlockSize, blocks_of, buckets_of
from fedrec.training.device import DeviceTables
from fedrec.training.learner import Learner
from fedrec.training.local_round import train_locally
from fedrec.training.samples import draw_samples
from fedrec.training.trainer import BlockRoom, block_bytes

pytestmark = pytest.mark.slow

N_ITEMS, BATCH = 2000, 20
POSITIVES_OF_A_STEP = BATCH // 5
BUDGET = {2: (3, 120), 16: (12, 50), 64: (40, 24)}
"""By steps: client.device_memory_mib, and more users than fit it at once."""
BETWEEN = pytest.param(16, marks=pytest.mark.long)
"""A number of steps that `make test-more` looks at besides the least and the most."""
COLR = {"structure": "colr", "rank": 4}
SMALL = {"batch_size": BATCH, "local_epochs": 1}
CASES = {
    "fedmf": ({"name": "fedmf", "local_epochs": 1}, {}),
    "colr": ({"name": "fedmf", "local_epochs": 1}, COLR),
    "pfedrec": ({"name": "pfedrec", "personal_items": False}, {"clip": 256.0}),
    "pfedrec-scores": ({"name": "pfedrec"}, {"clip": 256.0}),
    "fedrap": ({"name": "fedrap", "dim": 2, "item_rate": 8.0, "local_epochs": 1}, {}),
    "fedncf-sgd": ({"name": "fedncf", "item_rate_scale": 0.1}, {}),
    "fedncf-adam": ({"name": "fedncf", "optimiser": "adam", "learning_rate": 0.001}, {}),
    "fedrecgel": ({"name": "fedrecgel", "dim": 4}, {}),
    "pfedclr": ({"name": "pfedclr", "dim": 2, "local_epochs": 1}, {}),
    "plgc": (
        {"name": "plgc", "upload": "table", "base": {"name": "fedmf", **SMALL, "dim": 2}}, {}
    ),
}  # fmt: skip
LARGER = {"pfedclr": 2, "plgc": 2}
"""Times the budget: both steps' minibatches are drawn at once, and whole tables sent."""


def learner_of(case, device_mib=0):
    algorithm, update = CASES[case]
    # A wrapper has these in its base.
    usual = {} if "base" in algorithm else {"dim": 16, "batch_size": BATCH}
    plan = plan_of(
        federation={"maximum_users": 1024, "minimum_item_users": 1},
        algorithm=usual | algorithm,
        update={"structure": "dense", **update},
        training={"accelerated": False},
    )
    learner = Learner(plan, N_ITEMS, device="cpu")
    # As on a CUDA device of so much memory.
    learner.local.device_bytes = device_mib << 20
    learner.local.on_device = DeviceTables(learner.local.device, learner.local.device_bytes // 8)
    return learner


def users_of(n_users, n_steps):
    """Return users who all take as many minibatches, with items drawn for each."""
    rng, held = np.random.default_rng(n_steps), n_steps * POSITIVES_OF_A_STEP
    items = np.stack([rng.permutation(N_ITEMS)[: held + 2] for _ in range(n_users)])
    return UserSplit(
        user_ids=tuple(UserId(f"u{number:04d}") for number in range(n_users)),
        train_indptr=np.arange(n_users + 1) * held,
        train_items=np.sort(items[:, :held], axis=1).reshape(-1),
        validation_items=items[:, held],
        test_items=items[:, held + 1],
    )


@pytest.mark.parametrize("n_steps", [2, BETWEEN, 64])
@pytest.mark.parametrize("case", CASES)
def test_what_is_alive_keeps_to_the_budget(case, n_steps, monkeypatch):
    device_mib, n_users = BUDGET[n_steps]
    device_mib *= LARGER.get(case, 1)
    learner, users = learner_of(case, device_mib), users_of(n_users, n_steps)
    blocks = []
    train = trainer_module.Trainer.train_block

    def trained(self, chunk, block, *rest):
        if block.label.device.type == "cpu":
            blocks.append((chunk.n_users, block.n_users))
        return train(self, chunk, block, *rest)

    monkeypatch.setattr(trainer_module.Trainer, "train_block", trained)
    # First scores are made before a round, and lie in the processor's memory.
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    with LiveTensors().counting() as live:
        train_locally(learner.local, 2, shared, users, private)
    assert live.saved > 0
    assert live.peak <= 1.3 * (device_mib << 20)
    assert sum(n for _, n in blocks) == n_users
    assert any(n > 8 for _, n in blocks)


def fitted(case, n_steps, n_users=16):
    """Return a learner, what a round starts from, and its sums, samples and chunk of users."""
    learner, users = learner_of(case), users_of(n_users, n_steps)
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    cohort = learner.local.cohort(shared, users)
    start = learner.server.algorithm.derived.start(shared, cohort.active, 2, learner.local.device)
    chunk = cohort.chunk_of(np.arange(n_users), learner.local.device, n_steps=n_steps)
    own = {name: torch.from_numpy(values) for name, values in private.tensors.items()}
    return learner, start, empty_sums(learner, shared), chunk, own


@pytest.mark.parametrize("n_steps", [1, 2, BETWEEN, 64])
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_what_is_counted(case, n_steps):
    learner, start, sums, chunk, own = fitted(case, n_steps)
    training = trainer_module.Trainer(learner.server.algorithm, start)
    samples = draw_samples(chunk, seed=1, round_id=2, negatives_per_positive=4)
    ((size, members), *_) = sorted(
        buckets_of(
            samples,
            batch_size=BATCH,
            epochs=training.epochs,
            gathers=training.gathers,
            together=training.together,
        ),
        key=lambda bucket: -len(bucket[1]),
    )
    assert size.n_steps == (1 if training.together else n_steps)
    n_users = len(members)
    found = ChunkResult(
        private={name: values.clone() for name, values in own.items()},
        loss=torch.zeros(chunk.n_users),
        clipped=torch.zeros(chunk.n_users, dtype=torch.int64),
    )
    drawn = {"seed": learner.server.algorithm.shapes.seed, "round_id": 2, "dtype": start.dtype}
    with LiveTensors().counting() as live:
        # All steps, where the estimate counts two.
        for block in blocks_of(
            chunk, samples, members, size, block_users=n_users, together=False, **drawn
        ):
            training.train_block(chunk, block, own, sums, found)
    estimate = block_bytes(learner.server.algorithm, start, sums, size, n_users)
    # Counted are also views of what was there before: samples, tables and sums.
    before = sum(values.nbytes for values in (samples.item, samples.row, samples.label))
    before += 2 * start.shared["item_embedding"].nbytes + sums.n_bytes
    before += sum(values.nbytes for values in (*own.values(), *found.private.values()))
    assert live.peak / 1.1 - before - 10_000 <= estimate <= 1.1 * live.peak + 10_000


@pytest.mark.parametrize("case", CASES)
def test_memory_grows_with_users_and_no_faster(case):
    learner, start, sums, *_ = fitted(case, 2)
    gathers = trainer_module.Trainer(learner.server.algorithm, start).gathers
    size = replace(size_of(n_steps=4, n_rows=80), gathers=gathers)
    few, many = (block_bytes(learner.server.algorithm, start, sums, size, n) for n in (8, 64))
    assert 4.0 * few <= many <= 8.0 * few


def size_of(n_steps, n_rows):
    return BlockSize(n_steps=n_steps, n_rows=n_rows, batch_size=BATCH, epochs=1, gathers=True)


def test_room_is_counted_once_for_a_size_and_those_within(monkeypatch):
    learner, start, sums, *_ = fitted("fedmf", 2)
    counted = []

    def counting(*args):
        counted.append(args[3])
        return block_bytes(*args)

    monkeypatch.setattr("fedrec.training.trainer.block_bytes", counting)
    size, larger = size_of(4, 80), size_of(8, 160)
    taken = 2 * start.shared["item_embedding"].nbytes + sums.n_bytes
    each = block_bytes(learner.server.algorithm, start, sums, larger, 8) // 8
    room = BlockRoom(learner.server.algorithm, start, sums, taken + 100 * each)
    # 100 users fit, 96 of them in whole blocks of eight; or as many smaller ones at least.
    assert room.users(larger, 1000) == 96
    assert room.users(size, 90) == 96
    assert counted == [larger]
    more = room.users(size, 1000)
    assert more > 96
    assert more % 8 == 0
    room.users(size, 1000)
    assert counted == [larger, size]
    # What did not fit larger users is no word on smaller ones; the other way round it is.
    room.shrink(larger, 48)
    assert (room.users(larger, 1000), room.users(size, 1000)) == (48, more)
    room.shrink(size, 40)
    assert (room.users(larger, 1000), room.users(size, 1000)) == (40, 40)
    none = BlockRoom(learner.server.algorithm, start, sums, 0)
    assert none.users(size, 1000) == 8


@pytest.mark.parametrize("n_steps", [1, 2, 16, 64])
@pytest.mark.parametrize("per_positive", [1, 4])
def test_samples_take_what_a_chunk_is_sized_by(n_steps, per_positive):
    *_, chunk, _ = fitted("fedmf", n_steps)
    with LiveTensors().counting() as live:
        draw_samples(chunk, seed=1, round_id=2, negatives_per_positive=per_positive)
    n_samples = len(chunk.positives) * (1 + per_positive)
    assert 100 * n_samples <= live.peak <= _BYTES_PER_SAMPLE * n_samples
