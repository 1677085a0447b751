"""A party's contribution: independent of chunks and threads, clipped in the open, finite."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conformance.histories import counted
from world.plans import plans, users_of

from fedrec.algorithms import FedMF, UpdateTensor
from fedrec.errors import InternalError, SettingsError, TrainingError
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources

plan_of = plans(
    federation={"maximum_users": 256, "minimum_item_users": 4, "seed": 5},
    algorithm={"dim": 8, "batch_size": 32},
    update={"rank": 3, "clip": 1.0},
    rounds={"total": 2},
)


@pytest.fixture(scope="module")
def users():
    return users_of(90, 200, clusters=4, each=20, seed=1, thin=0.25)


def test_the_count_round_sums_holders_and_nothing_else(users):
    learner = Learner(plan_of(), 200, device="cpu")
    shared, private = counted(learner, users)
    assert np.array_equal(shared.holders, np.bincount(users.train_items, minlength=200))
    part = learner.contribute("count", 1, learner.server.initial_shared(), users, private)
    # A count for each item, and 45 metric sums.
    assert part.vector.shape == (245,)
    assert np.array_equal(part.vector[:200], shared.holders)
    assert not part.vector[200:].any()


def test_rows_of_rare_items_are_never_touched_nor_recommended(users):
    learner = Learner(plan_of(federation={"minimum_item_users": 8}), 200, device="cpu")
    shared, private = counted(learner, users)
    rare = np.nonzero(shared.holders < 8)[0]
    assert 0 < len(rare) < 200
    part = learner.contribute("train", 2, shared, users, private)
    sums = learner.server.travelling.unpack("train", shared, part.vector)
    assert not sums.changes["item_embedding"][rare].any()
    assert not sums.counts[rare].any()
    items, scores = learner.local.recommend(shared, users, part.private, 0, 200)
    assert not np.isin(rare, items).any()
    assert not np.isin(users.train_of(0), items).any()
    assert (np.diff(scores) <= 0).all()


CHANGING_THREADS = """
import torch
from conformance.party import N_ITEMS, plan_of
from fedrec.data import generate, leave_one_out
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources

sums = torch.nn.functional.embedding_bag

def alone(*given, **named):
    assert torch.get_num_threads() == 1
    return sums(*given, **named)

torch.nn.functional.embedding_bag = alone
data = generate(n_users=37, n_items=N_ITEMS, n_clusters=3, interactions_per_user=12)
users, before = leave_one_out(data.interactions, data.catalogue), torch.get_num_threads()
for turn in range(12):
    name, threads = ("ease", "sketch")[turn % 2], (0, 7, 1, 3)[turn // 2 % 4]
    taken = Resources(threads=threads)
    learner = Learner(plan_of(name, "dense"), N_ITEMS, device="cpu", resources=taken)
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    for number, kind in enumerate(("count", "train", "evaluate"), start=1):
        part = learner.contribute(kind, number, shared, users, private)
        shared, private = learner.server.apply(kind, number, shared, part.vector), part.private
    learner.local.recommend(shared, users, private, 0, 5)
    assert torch.get_num_threads() == before, (turn, torch.get_num_threads())
print("came through")
"""


@pytest.mark.slow
def test_learners_of_one_process_have_threads_of_their_own():
    """In a process of its own: a change of their number once ended one."""
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", CHANGING_THREADS],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("came through\n", 0), done.stderr


def test_only_participating_users_train_but_all_are_measured(users):
    learner = Learner(plan_of(), 200, device="cpu")
    shared, private = counted(learner, users)
    some = np.arange(len(users)) % 3 == 0
    part = learner.contribute("train", 2, shared, users, private, some)
    sums = learner.server.metrics(part.vector)
    assert sums.participants == some.sum()
    assert sums.rates("model", "test").users == (users.test_items >= 0).sum()
    vectors = part.private.tensors["user_embedding"]
    assert np.array_equal(vectors[~some], private.tensors["user_embedding"][~some])
    assert (vectors[some] != private.tensors["user_embedding"][some]).any(1).all()
    untrained = learner.contribute("train", 2, shared, users, private, np.zeros(len(users), bool))
    sums = learner.server.travelling.unpack("train", shared, untrained.vector)
    assert not sums.changes["item_embedding"].any()


def test_a_loss_that_explodes_stops_before_values_do(users):
    learner = Learner(plan_of(), 200, device="cpu")
    shared, private = counted(learner, users)
    # Scores of about 1e4: the vectors are finite, and clipping would keep the sums so.
    far = PrivateState({"user_embedding": private.tensors["user_embedding"] * np.float32(1e5)})
    with pytest.raises(TrainingError, match=r"round 1 with 90 users: every user's loss") as caught:
        learner.contribute("train", 2, shared, users, far)
    assert "algorithm.learning_rate" in caught.value.remedy


def test_a_private_parameter_cannot_be_sent(users):
    layout = Learner(plan_of(), 200, device="cpu").server.layout
    counts = np.zeros(200, dtype=np.int64)
    metrics = np.zeros(layout.metrics_slice.stop - layout.metrics_slice.start, dtype=np.int64)
    vectors = np.ones((90, 8), dtype=np.int64)
    with pytest.raises(InternalError, match="user_embedding"):
        layout.pack({"user_embedding": vectors}, counts, metrics)
    with pytest.raises(InternalError, match="other"):
        layout.pack({"other": vectors}, counts, metrics)


def test_an_algorithm_whose_update_has_a_private_name_is_refused(monkeypatch):
    name = "user_embedding"
    tensor = UpdateTensor(name=name, shape=(8,), limit=1.0, fraction_bits=4)
    monkeypatch.setattr(FedMF, "tensors", (tensor,))
    with pytest.raises(InternalError, match="user_embedding"):
        Learner(plan_of(), 200, device="cpu")


@pytest.mark.parametrize("table_bytes", [0, 1])
def test_a_singular_user_system_is_named(users, table_bytes):
    """Items of 1e30 overflow in their squares; no regularisation helps there."""
    plan = Plan.model_validate(
        {"algorithm": {"name": "fedals", "dim": 8}, "update": {"structure": "dense"}}
    )
    learner = Learner(plan, 200, device="cpu", resources=Resources(table_bytes=table_bytes))
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    table = shared.tensors["item_embedding"] * 1e30
    broken = shared.with_tensors(item_embedding=table)
    with pytest.raises(TrainingError, match="90 users cannot be solved") as caught:
        learner.contribute("train", 2, broken, users, private)
    assert "algorithm.regularisation" in caught.value.remedy


def test_more_users_than_the_bound_was_proven_for_are_refused(users):
    learner = Learner(plan_of(federation={"maximum_users": 50}), 200, device="cpu")
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    with pytest.raises(SettingsError, match=r"federation\.maximum_users is 50"):
        learner.contribute("count", 1, shared, users, private)


def test_states_survive_bytes_and_private_ones_are_no_shared_ones(users):
    learner = Learner(plan_of(), 200, device="cpu")
    shared, private = counted(learner, users)
    again = SharedState.from_bytes(shared.to_bytes())
    assert again.canonical_bytes() == shared.canonical_bytes()
    kept = PrivateState.from_bytes(private.to_bytes())
    assert np.array_equal(kept.tensors["user_embedding"], private.tensors["user_embedding"])
    assert not hasattr(private, "canonical_bytes")
    for raw, reader in ((private.to_bytes(), SharedState), (shared.to_bytes(), PrivateState)):
        with pytest.raises(Exception, match="not a stored"):
            reader.from_bytes(raw)
    with pytest.raises(Exception, match="not a stored"):
        SharedState.from_bytes(b"garbage")
