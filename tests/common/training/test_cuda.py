"""Every algorithm on a CUDA device, against itself and against the processor.

Run by `pytest -m cuda`; with FEDREC_DEVICE=cpu the processor takes the device's place, with a
device's blocks and tables. Integer sums are exact wherever they are added up, but a device's matrix
products and sums choose their order by shape: repeated and regrouped sums agree within 1e-4 of
their norm, and with a processor's within 1e-3 where steps feed back on each other, as Adam's do.
"""

import os

import numpy as np
import pytest
import torch
from conformance.party import N_ITEMS, Party, plan_of
from world.plans import users_of

from fedrec.algorithms import ALGORITHMS
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.model.state import PrivateState
from fedrec.training import blocks
from fedrec.training.device import DeviceTables
from fedrec.training.learner import Learner, OneStep
from fedrec.training.user_half import Resources

pytestmark = pytest.mark.cuda

DEVICE = os.environ.get("FEDREC_DEVICE", "cuda")
SMALL = {"batch_size": 4}
"""Users then have from one to a dozen steps, of which a device's blocks skip those they lack."""
VISIT = {"dim": 5, "local_epochs": 2, **SMALL}
OWN = {
    "pfedclr": [{"variant": "af", "gradient_clip": 0.1}],
    "plgc": [
        {"base": {"name": "fedrap", **VISIT, "item_rate": 4.0}, "weight": 0.1},
        {"base": {"name": "fedncf", **VISIT}, "upload": "table"},
        {"regulariser": "duorec"},
    ],
    "fedncf": [{"optimiser": "adam", "learning_rate": 0.001}, {"weight_decay": 1e-6}],
    "fedrap": [{"tables": "private"}, {"schedule": "square", "sparsity": "l2"}],
}
CHOICES = [
    *(
        (name, kind, {})
        for name in sorted(ALGORITHMS)
        for kind in ALGORITHMS[name].about.supports.updates
    ),
    *((name, "dense", own) for name in sorted(OWN) for own in OWN[name]),
]
IDS = ["-".join([name, update, *own]) for name, update, own in CHOICES]
AGAIN, PROCESSOR, STEPWISE = 1e-4, 1e-4, 1e-3
FEEDING_BACK = {"pfedclr", "plgc"}
"""Adam's steps, and the batch norm before eRR."""


@pytest.fixture(scope="module")
def users():
    return users_of(37, N_ITEMS, thin=0.3)


@pytest.fixture(scope="module", params=CHOICES, ids=IDS)
def case(request, users):
    """A party after the counting round, its plan without compiled code, and how near it comes."""
    name, update, own = request.param
    if "batch_size" in ALGORITHMS[name].settings_type.model_fields and name != "plgc":
        own = SMALL | own
    plan = plan_of(name, update, algorithm=own, training={"accelerated": False})
    feeds_back = name in FEEDING_BACK or own.get("optimiser") == "adam"
    near = STEPWISE if feeds_back else PROCESSOR
    return Party.of(plan, users), plan, near


def there(plan, memory_mib=512):
    learner = Learner(
        plan, N_ITEMS, device=DEVICE, resources=Resources(device_memory_mib=memory_mib)
    )
    if DEVICE == "cpu":
        # What a device changes: blocks of any size, few shapes, and tables that stay there.
        local = learner.local
        local.accelerator, local.device_bytes = None, memory_mib << 20
        local.on_device = DeviceTables(local.device, local.device_bytes // 8)
    return learner


def trained(learner, party, users=None, private=None):
    users = party.users if users is None else users
    private = learner.local.initial_private(users) if private is None else private
    return learner.contribute("train", 5, party.shared, users, private)


def layout_of(learner, party):
    """Return the layout of a training round, whose rows are the active ones."""
    return learner.server.travelling.layout("train", party.shared)


def assert_near(layout, found, expected, near):
    """Compare the sums tensor by tensor, each by its own norm; counts are exact."""
    assert np.array_equal(found[layout.count_slice], expected[layout.count_slice])
    one, other = layout.changes_of(found), layout.changes_of(expected)
    for name, values in other.items():
        away = np.linalg.norm((one[name] - values).astype(np.float64))
        # Rounding to the grid alone moves values by one step.
        assert away <= near * np.linalg.norm(values.astype(np.float64)) + values.size**0.5, name


def test_repeated_and_regrouped_sums_agree(case):
    party, plan, _ = case
    learner = there(plan)
    once, layout = trained(learner, party), layout_of(learner, party)
    assert_near(layout, trained(learner, party).vector, once.vector, AGAIN)
    alone = np.zeros_like(once.vector)
    # Structures by client are about who is together, and are no matter of the device.
    for rows in np.array_split(np.random.default_rng(1).permutation(len(party.users)), 3):
        alone += trained(learner, party, party.users.select(np.sort(rows))).vector
    assert_near(layout, alone, once.vector, AGAIN)


def test_fewer_users_at_once_change_nothing_but_the_last_bits(case):
    """With one MiB blocks have eight users, and private tables stay on the processor."""
    party, plan, _ = case
    large, small = there(plan), there(plan, memory_mib=1)
    one, other = trained(large, party), trained(small, party)
    assert_near(layout_of(large, party), other.vector, one.vector, AGAIN)
    for name, values in one.private.tensors.items():
        np.testing.assert_allclose(other.private.tensors[name], values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n_few", [1 << 24, 0], ids=["one size", "some sizes"])
def test_the_processor_comes_to_the_same(case, n_few, monkeypatch):
    monkeypatch.setattr(blocks, "_FEW_SAMPLES", n_few)
    party, plan, near = case
    learner = there(plan)
    here = party.learner.contribute("train", 5, party.shared, party.users, party.private)
    found = trained(learner, party)
    assert_near(layout_of(learner, party), found.vector, here.vector, near)
    for name, values in here.private.tensors.items():
        np.testing.assert_allclose(found.private.tensors[name], values, rtol=1e-2, atol=10 * near)
    one, other = learner.server.metrics(found.vector), learner.server.metrics(here.vector)
    assert one.participants == other.participants
    if other.loss:
        assert one.loss == pytest.approx(other.loss, rel=near)


def test_measuring_comes_to_the_same(case):
    party, plan, near = case
    learner, (shared, private) = there(plan), (party.shared, party.private)
    for round_id in (2, 3):
        part = party.learner.contribute("train", round_id, shared, party.users, private)
        shared = party.learner.server.apply("train", round_id, shared, part.vector)
        private = part.private
    scores = [
        torch.cat(
            [block.cpu() for _, block in each.local.score_blocks(shared, party.users, private)]
        ).numpy()
        for each in (learner, party.learner)
    ]
    finite = np.isfinite(scores[1])
    assert np.array_equal(np.isfinite(scores[0]), finite)
    away = np.linalg.norm(scores[0][finite] - scores[1][finite])
    assert away <= near * np.linalg.norm(scores[1][finite])
    sums = [
        each.server.metrics(each.contribute("evaluate", 4, shared, party.users, private).vector)
        for each in (learner, party.learner)
    ]
    for name in METRIC_NAMES:
        if name.endswith(".users"):
            assert sums[0].sum_of(name) == sums[1].sum_of(name), name
    rates = [each.rates("model", "test") for each in sums]
    # A rank or two may turn where two scores nearly tie.
    assert rates[0].ndcg == pytest.approx(rates[1].ndcg, abs=0.05)


def test_private_tables_go_on_from_where_they_lie(case):
    """A second round starts from the tables on the device; a state that was read, from its own."""
    party, plan, _ = case
    learner = there(plan)
    first = trained(learner, party)
    second = trained(learner, party, private=first.private)
    read = PrivateState.from_bytes(first.private.to_bytes())
    assert_near(
        layout_of(learner, party),
        trained(learner, party, private=read).vector,
        second.vector,
        AGAIN,
    )


def test_noise_limits_each_user_on_the_device(users):
    """The whole change of each user is at most `privacy.clip` long, wherever it is shortened."""
    name = "fedmf"
    plan = plan_of(
        name,
        "dense",
        privacy={"mechanism": "gaussian", "clip": 0.5, "noise_multiplier": 1.0},
        training={"accelerated": False},
    )
    party = Party.of(plan, users)
    here = party.learner.contribute("train", 5, party.shared, users, party.private)
    found = there(plan).contribute("train", 5, party.shared, users, party.private)
    assert_near(layout_of(party.learner, party), found.vector, here.vector, PROCESSOR)


def test_doctor_trains_a_step():
    step = OneStep(DEVICE)
    step.train()
    assert step.device_name.startswith("cpu" if DEVICE == "cpu" else "cuda:0 (")
