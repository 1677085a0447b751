"""Nothing in the loop over users leaves the device, of algorithms that the trainer does not run."""

import numpy as np
import pytest
import torch
from conformance.device_guard import DeviceGuard
from conformance.party import Party, empty_sums, plan_of
from world.plans import users_of

from fedrec.algorithms import ALGORITHMS
from fedrec.algorithms.grid import GridSum
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.training import blocks, samples, trainer
from fedrec.training.fitting import fit_of
from fedrec.updates.compressed import TopK

SOLVING = [
    name
    for name in sorted(set(ALGORITHMS) - {"ease"})
    if not issubclass(ALGORITHMS[name], TrainedAlgorithm)
]
"""What the trainer runs is looked at in `test_device_loop.py`; `ease` counts pairs in one pass, on
the processor on every device."""
IN_ONE_PASS = {"sketch"}
"""It rounds a chunk's users once and adds their rows; there is no second mark to wait for."""


@pytest.fixture(scope="module")
def users():
    """Of unequal activity, so that chunks have one minibatch, two and four."""
    return users_of(37, 60, thin=0.3)


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch):
    """A processor sorts and selects in numpy; a device does not."""
    monkeypatch.setattr(TopK, "in_numpy", False)
    monkeypatch.setattr(samples, "argsorted", torch.argsort)
    monkeypatch.setattr(blocks, "sorted_rows", lambda keys: torch.sort(keys, dim=-1).values)


def watched_fits(plan, users, monkeypatch):
    """Yield a guard for every chunk, after its users were trained as tensors.

    A mark is set where a block is handed out and where rows are added to the sums.
    """
    party = Party.of(plan, users)
    learner, algorithm = party.learner, party.algorithm
    cohort = learner.local.cohort(party.shared, users)
    start = algorithm.derived.start(party.shared, cohort.active, 5, learner.local.device)
    fit = fit_of(algorithm, start, empty_sums(learner, party.shared), None)
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
    for chunk in learner.local.chunks(cohort):
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


@pytest.mark.parametrize("name", SOLVING)
def test_training_waits_for_nothing(name, users, monkeypatch):
    guards = list(watched_fits(plan_of(name, "dense"), users, monkeypatch))
    assert guards
    for guard in guards:
        assert len(guard.found) > (1 if name in IN_ONE_PASS else 2), "no loop was seen"
        assert guard.inside == []
        assert guard.outside in ([], SETTING_UP)


def values():
    return torch.arange(12.0).reshape(3, 4)


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
