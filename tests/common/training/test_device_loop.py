"""Training leaves its device once a chunk, and never in the loop: every algorithm, without a GPU.

Tensors of torch's meta device have no values: whoever reads one, or asks for a result whose size
depends on values, fails. What a device would wait for is seen by `DeviceGuard` besides.
"""

import random
from dataclasses import replace

import pytest
import torch
from conformance.device_guard import DeviceGuard
from conformance.party import Party, empty_sums, plan_of
from world.plans import users_of

from fedrec.algorithms import ALGORITHMS, PerFedRec
from fedrec.algorithms.algorithm import ChunkResult
from fedrec.algorithms.cohort import Chunk
from fedrec.algorithms.declarations import TRAINING_ITEMS, USER_KEY
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.training import blocks, samples
from fedrec.training.blocks import Block
from fedrec.training.trained_block import TrainedBlock
from fedrec.training.trainer import Trainer
from fedrec.training.training_round import TrainingRound
from fedrec.updates.compressed import TopK

pytestmark = pytest.mark.slow

META = torch.device("meta")
OWN = {
    "fedncf": [{"optimiser": "adam"}, {"weight_decay": 1e-5}],
    "pfedrec": [{"personal_items": False}],
    "plgc": [
        {"upload": "table"},
        {"mixing": False, "regulariser": "duorec"},
        {"regulariser": "au", "base": {"name": "pfedrec", "dim": 5, "batch_size": 16}},
        {"weight": 0.0, "base": {"name": "fedncf", "dim": 5, "batch_size": 16}},
        {"base": {"name": "gpfedrec", "dim": 5, "batch_size": 16, "item_rate_scale": 1.0}},
    ],
    "fedrap": [{"tables": "private"}, {"schedule": "square", "sparsity": "l2"}],
    "pfedclr": [{"variant": "cf"}, {"variant": "af", "gradient_clip": 0.1}],
}
"""Settings that change what the loop does."""
TRAINED = [name for name in sorted(ALGORITHMS) if issubclass(ALGORITHMS[name], TrainedAlgorithm)]
CHOICES = [
    *(
        (name, structure, {})
        for name in TRAINED
        for structure in ALGORITHMS[name].about.supports.updates
    ),
    *((name, "dense", own) for name in TRAINED for own in OWN.get(name, [])),
]
IDS = ["-".join([name, structure, *own]) for name, structure, own in CHOICES]
every_algorithm = pytest.mark.parametrize(("name", "structure", "own"), CHOICES, ids=IDS)


@pytest.fixture(scope="module")
def users():
    """Of unequal activity, so that there are blocks of one step, two and more."""
    return users_of(37, 60, thin=0.3)


def party_of(name, structure, own, users, **changes):
    return Party.of(
        plan_of(name, structure, algorithm=own, training={"accelerated": False}, **changes), users
    )


def start_of(party):
    cohort = party.learner.local.cohort(party.shared, party.users)
    return party.algorithm.derived.start(party.shared, cohort.active, 5, party.learner.local.device)


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device=META)


def meta_block(trainer, n_places, n_rows, n_steps, width):
    """Return a block without values, as `blocks_of` makes them."""
    gathers = trainer.gathers and n_steps > 1
    passes = trainer.epochs if n_steps > 1 else 1
    index = empty(passes, n_steps, n_places * width, dtype=torch.int64) if gathers else None
    return Block(
        users=empty(n_places, dtype=torch.int64),
        n_users=n_places - 1,
        item=empty(n_places, n_rows, dtype=torch.int64),
        label=empty(n_places, n_rows),
        share=empty(n_steps, n_places),
        index=index,
        weight=empty(passes, n_steps, n_places, width if gathers else n_rows),
    )


@every_algorithm
@pytest.mark.parametrize(
    ("n_steps", "noise"),
    [
        (1, True),
        (5, False),
        # Noise is of the sums, behind the steps: either number with either is for the long tests.
        pytest.param(1, False, marks=pytest.mark.long),
        pytest.param(5, True, marks=pytest.mark.long),
    ],
)
def test_a_block_trains_without_values(name, structure, own, n_steps, noise, users, monkeypatch):
    monkeypatch.setattr(TopK, "in_numpy", False)
    party = party_of(name, structure, own, users)
    start = start_of(party)
    n_items, sums = len(start.active), empty_sums(party.learner, party.shared).shapes()
    if noise:
        sums._longest, sums._counts_rows = 1 << 20, False
    there = replace(
        start,
        shared={key: values.to(META) for key, values in start.shared.items()},
        active=start.active.to(META),
        basis=None if start.basis is None else start.basis.to(META),
    )
    draw = random.Random(f"{name} {structure} {n_steps}")
    n_users, n_places = draw.randint(30, 50), 8 * draw.randint(1, 3)
    n_rows, width = draw.randint(20, n_items), draw.randint(4, 16)
    numbers = empty(n_users + 1, dtype=torch.int64)
    chunk = Chunk(
        user_index=numbers[1:],
        user_keys=numbers[1:],
        pointers=numbers,
        positives=empty(400, dtype=torch.int64),
        excluded_pointers=numbers,
        excluded=empty(400, dtype=torch.int64),
        n_items=n_items,
        n_steps=n_steps,
    )
    private = {
        entry.name: empty(
            *entry.whole_shape(n_items=party.algorithm.shapes.n_items, n_users=n_users)
        )
        for entry in party.algorithm.parameters
        if entry.private
    }
    found = ChunkResult(
        private=dict(private), loss=empty(n_users), clipped=empty(n_users, dtype=torch.int64)
    )
    trainer = Trainer(party.algorithm, there)
    block = meta_block(trainer, n_places, n_rows, n_steps, width)
    trained = TrainedBlock(TrainingRound(party.algorithm, there), chunk, block, private)
    assert trained.run().shape == (n_places,)
    change = trained.change(chunk.pointers[1:] - chunk.pointers[:-1], private)
    whole = any(entry.sends_whole_table for entry in party.algorithm.parameters)
    n_rows = n_items if whole else n_rows
    assert change.item.shape == (n_places - 1, n_rows)
    # What only shows a server the user follows from the data, not from the block.
    shown = {USER_KEY, TRAINING_ITEMS}
    shown |= {entry.name for entry in party.algorithm.parameters if entry.shown}
    tensors = {one.name: one for one in party.algorithm.tensors if one.name not in shown}
    assert change.rows.keys() | change.whole.keys() == tensors.keys()
    for key, rows in change.rows.items():
        assert rows.shape == (n_places - 1, n_rows, tensors[key].shape[-1])
    for key, values in change.whole.items():
        assert values.shape == (n_places - 1, tensors[key].size)
    trainer.train_block(chunk, block, private, sums, found)


@every_algorithm
def test_a_chunk_is_read_once(name, structure, own, users, monkeypatch):
    """Numbers of rows and samples; positions go the other way once. The loop asks for nothing."""
    monkeypatch.setattr(TopK, "in_numpy", False)
    monkeypatch.setattr(PerFedRec, "reads_numbers", False)
    monkeypatch.setattr(samples, "argsorted", torch.argsort)
    monkeypatch.setattr(blocks, "sorted_rows", lambda keys: torch.sort(keys, dim=-1).values)
    party = party_of(name, structure, own, users)
    learner, start = party.learner, start_of(party)
    trainer, sums = Trainer(party.algorithm, start), empty_sums(learner, party.shared)
    n_steps = set()
    for chunk in learner.local.chunks(learner.local.cohort(party.shared, users)):
        own_rows = {
            key: torch.from_numpy(values)[chunk.user_index]
            for key, values in party.private.tensors.items()
        }
        guard = DeviceGuard()
        with guard.watching():
            trainer.train(chunk, own_rows, sums)
        assert guard.found == [["torch.cpu", "torch.numpy", "torch.from_numpy"]]
        n_steps.add(chunk.n_steps)
    assert len(n_steps) > 1


def test_a_read_in_the_loop_is_found(users, monkeypatch):
    """The tests above are able to fail: a loss that looks at a value."""
    party = party_of("fedmf", "dense", {}, users)
    loss = type(party.algorithm).loss

    def looking(self, values, batch):
        found = loss(self, values, batch)
        assert float(found.detach().sum()) > 0
        return found

    monkeypatch.setattr(type(party.algorithm), "loss", looking)
    learner, start = party.learner, start_of(party)
    chunk = next(learner.local.chunks(learner.local.cohort(party.shared, users)))
    own = {
        key: torch.from_numpy(values)[chunk.user_index]
        for key, values in party.private.tensors.items()
    }
    guard = DeviceGuard()
    with guard.watching():
        Trainer(party.algorithm, start).train(chunk, own, empty_sums(learner, party.shared))
    assert "aten._local_scalar_dense.default" in guard.found[0]
