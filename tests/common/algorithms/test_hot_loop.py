"""Nothing in the loop over minibatches leaves the device, for every algorithm of the registry."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from conformance.device_guard import DeviceGuard
from conformance.party import Party, plan_of

from fedrec.algorithms import ALGORITHMS
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.data import generate, leave_one_out
from fedrec.training import blocks, samplers, trainer
from fedrec.training.fitting import fit_of
from fedrec.training.grid import GridSum, RoundSums
from fedrec.updates.topk import TopK

WITHOUT_A_LOOP = {"ease"}
"""It counts pairs in one pass, on the processor on every device."""
CHOICES = [
    (name, {"structure": structure})
    for name in sorted(set(ALGORITHMS) - WITHOUT_A_LOOP)
    for structure in ALGORITHMS[name].about.updates
] + [("fedmf", {"structure": "scolr", "normaliser": "entry"})]
IDS = ["-".join([name, *update.values()]) for name, update in CHOICES]
TRAINED = [
    (name, update, {}) for name, update in CHOICES if issubclass(ALGORITHMS[name], TrainedAlgorithm)
] + [
    ("fedncf", {"structure": "dense"}, {"optimiser": "adam"}),
    ("fedncf", {"structure": "dense"}, {"weight_decay": 1e-4}),
    ("pfedrec", {"structure": "dense"}, {"personal_items": False}),
]
META = torch.device("meta")


@pytest.fixture(scope="module")
def users():
    """Of unequal activity, so that chunks have one minibatch, two and four."""
    data = generate(n_users=37, n_items=60, n_clusters=3, interactions_per_user=12, seed=3)
    keep = np.random.default_rng(0).random(len(data.interactions)) < np.repeat(
        np.linspace(0.3, 1.0, 37), 12
    )
    return leave_one_out(data.interactions.take(keep), data.catalogue)


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch):
    """A processor sorts and selects in numpy; a device does not."""
    monkeypatch.setattr(TopK, "in_numpy", False)
    monkeypatch.setattr(samplers, "argsorted", torch.argsort)
    monkeypatch.setattr(blocks, "sorted_rows", lambda keys: torch.sort(keys, dim=-1).values)


def watched_fits(plan, users, monkeypatch):
    """Yield a guard for every chunk, after its users were trained as tensors.

    A mark is set where a block is handed out and where rows are added to the sums.
    """
    party = Party.of(plan, users)
    learner, algorithm = party.learner, party.algorithm
    cohort = learner.cohort(party.shared, users)
    start = algorithm.start(party.shared, cohort.active, 5, learner.device)
    fit = fit_of(algorithm, start, learner.empty_sums(len(cohort.active)))
    private = party.fresh(party.private)
    guard = DeviceGuard()
    handed_out, rounded = blocks.blocks_of, GridSum.rounded

    def blocks_of(*args, **kwargs):
        for block in handed_out(*args, **kwargs):
            guard.mark()
            yield block

    def rounding(self, values):
        guard.mark()
        return rounded(self, values)

    monkeypatch.setattr(trainer, "blocks_of", blocks_of)
    monkeypatch.setattr(GridSum, "rounded", rounding)
    for chunk in learner.chunks(cohort):
        own = {
            name: torch.from_numpy(values)[chunk.user_index]
            for name, values in private.tensors.items()
        }
        with guard.watching():
            fit(chunk, own)
        yield guard
        guard = DeviceGuard()


SETTING_UP = ["torch.cpu", "torch.numpy", "torch.from_numpy"]
"""How many rows and samples users have is read once, and their order is handed over."""


@pytest.mark.parametrize(("name", "update"), CHOICES, ids=IDS)
def test_training_waits_for_nothing(name, update, users, monkeypatch):
    guards = list(
        watched_fits(plan_of(name, update["structure"], update=update), users, monkeypatch)
    )
    assert guards
    for guard in guards:
        assert len(guard.found) > 2, "no loop was seen"
        assert guard.inside == []
        assert guard.outside in ([], SETTING_UP)


def values():
    return torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("own", [{"optimiser": "adam"}, {"weight_decay": 1e-4}], ids=str)
def test_optimisers_wait_for_nothing(own, users, monkeypatch):
    plan = plan_of("fedncf", "dense", algorithm=own)
    for guard in watched_fits(plan, users, monkeypatch):
        assert len(guard.found) > 2
        assert guard.inside == []


def on_meta(record):
    """Return a dataclass whose tensors have shapes, but no values that could be read."""
    tensors = {
        field.name: value.to(META)
        for field in fields(record)
        if isinstance(value := getattr(record, field.name), torch.Tensor)
    }
    return replace(record, **tensors)


@pytest.mark.parametrize(
    ("name", "update", "own"),
    TRAINED,
    ids=["-".join([name, *update.values(), *own]) for name, update, own in TRAINED],
)
def test_training_runs_without_values(name, update, own, users, monkeypatch):
    """On torch's meta device, where whoever reads a value fails; only sampling has run before."""
    party = Party.of(plan_of(name, update["structure"], update=update, algorithm=own), users)
    learner, algorithm = party.learner, party.algorithm
    cohort = learner.cohort(party.shared, users)
    start = on_meta(algorithm.start(party.shared, cohort.active, 5, learner.device))
    start = replace(start, shared={key: value.to(META) for key, value in start.shared.items()})
    sums = RoundSums(
        {
            tensor.name: GridSum(tensor, len(cohort.active), maximum_users=64, device=META)
            for tensor in learner.layout.tensors
        },
        len(cohort.active),
        device=META,
        counts_rows=algorithm.counts_rows,
    )
    drawn, handed_out, n_blocks = samplers.draw_samples, blocks.blocks_of, []
    real = {}

    def draw(chunk, **kwargs):
        return drawn(real["chunk"], **kwargs)

    def blocks_of(chunk, samples, **kwargs):
        for block in handed_out(real["chunk"], samples, **kwargs):
            n_blocks.append(len(block.share))
            yield on_meta(block)

    monkeypatch.setattr(trainer, "draw_samples", draw)
    monkeypatch.setattr(trainer, "blocks_of", blocks_of)
    training = trainer.Trainer(algorithm, start)
    for chunk in learner.chunks(cohort):
        real["chunk"] = chunk
        private = {
            key: torch.empty((chunk.n_users, *values.shape[1:]), device=META)
            for key, values in party.private.tensors.items()
        }
        result = training.train(on_meta(chunk), private, sums)
        assert set(result.private) == set(private)
        for values in (result.loss, result.clipped, *result.private.values()):
            assert values.device == META
    assert len(set(n_blocks)) > 1, "minibatches of one size only"


OFFENDERS = {
    "item": lambda: values().sum().item(),
    "float": lambda: float(values().sum()),
    "bool": lambda: bool((values() > 3).any()),
    "as a position": lambda: [1, 2, 3][torch.tensor(1)],
    "list": lambda: values().tolist(),
    "numpy": lambda: values().numpy(),
    "as an array": lambda: np.asarray(values()),
    "to the processor": lambda: values().cpu(),
    "copy to a device": lambda: values().to(device="meta"),
    "from numpy": lambda: torch.from_numpy(np.ones(3)),
    "nonzero": lambda: values().nonzero(),
    "one-sided where": lambda: torch.where(values() > 3),
    "masked select": lambda: torch.masked_select(values(), values() > 3),
    "index by mask": lambda: values()[values() > 3],
    "rows by mask": lambda: values()[torch.ones(3, dtype=torch.bool)],
    "write by mask": lambda: values().index_put_((values() > 3,), torch.zeros(())),
    "unique": lambda: torch.unique(values()),
    "repeats of unknown total": lambda: torch.arange(2).repeat_interleave(torch.arange(2)),
    "checked segments": lambda: torch.segment_reduce(
        torch.ones(4), "sum", lengths=torch.tensor([1, 3])
    ),
    "equal": lambda: torch.equal(values(), values()),
}


@pytest.mark.parametrize("offender", OFFENDERS.values(), ids=list(OFFENDERS))
def test_the_guard_finds_what_waits(offender):
    guard = DeviceGuard()
    with guard.watching():
        guard.mark()
        offender()
        guard.mark()
    assert guard.inside
    assert not guard.outside


def test_the_guard_lets_pass_what_stays_on_the_device():
    guard, table, place = DeviceGuard(), values(), torch.arange(3)
    with guard.watching():
        guard.mark()
        found = table[place].to(torch.float64).masked_fill(table > 3, 0.0).sum()
        place.repeat_interleave(torch.ones_like(place), output_size=3)
        torch.where(table > found, table, 0.0).index_add_(0, place, table)
        guard.mark()
    assert guard.found == [[], [], []]


def test_a_read_in_the_loop_fails_the_test(users, monkeypatch):
    """The tests above are able to fail: one scalar read a minibatch, in one algorithm."""
    score = ALGORITHMS["pfedrec"].score

    def score_and_look(self, v):
        found = score(self, v)
        assert float(found.detach().square().sum()) > 0
        return found

    monkeypatch.setattr(ALGORITHMS["pfedrec"], "score", score_and_look)
    guards = list(watched_fits(plan_of("pfedrec", "dense"), users, monkeypatch))
    for guard in guards:
        assert set(guard.inside) == {"aten._local_scalar_dense.default"}
