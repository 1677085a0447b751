"""SCoLR's subsets: uniform, drawn from public numbers, each user's or each client's."""

from math import comb

import numpy as np
import pytest
import torch
from reference.plain_updates import subset_of
from world.plans import plan_of

from fedrec.model.state import SharedState
from fedrec.training.learner import Learner
from fedrec.updates import UPDATES, SCoLR
from fedrec.updates.update import UpdateSettings


def scolr(rank, dim=8, **settings):
    return SCoLR(UpdateSettings(structure="scolr", rank=rank, **settings), dim)


def keys_of(n_users, seed=0):
    return np.random.default_rng(seed).integers(-(2**63), 2**63, size=n_users, dtype=np.int64)


def members_of(structure, seed, round_id, keys, party_key):
    return structure.members(seed, round_id, torch.from_numpy(keys), party_key).numpy()


def test_subsets_are_those_of_the_plain_twin():
    keys = keys_of(50)
    members = members_of(scolr(5), 7, 3, keys, 0)
    for key, row in zip(keys.tolist(), members, strict=True):
        assert np.nonzero(row)[0].tolist() == subset_of(7, 3, key, 5)


def test_sizes_and_subsets_are_uniform():
    n_users, rank = 60_000, 4
    members = members_of(scolr(rank), 1, 1, keys_of(n_users), 0)
    sizes = members.sum(1)
    for size in range(1, rank + 1):
        of_size = members[sizes == size]
        share = n_users / rank
        assert abs(len(of_size) - share) < 5 * np.sqrt(share)
        patterns, counts = np.unique(of_size, axis=0, return_counts=True)
        assert len(patterns) == comb(rank, size)
        expected = len(of_size) / len(patterns)
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_every_user_draws_anew_in_each_round_whoever_else_is_there():
    keys = keys_of(40)
    whole = members_of(scolr(6), 1, 1, keys, 0)
    assert np.array_equal(members_of(scolr(6), 1, 1, keys[7:9], 5), whole[7:9])
    assert not np.array_equal(members_of(scolr(6), 1, 2, keys, 0), whole)
    assert not np.array_equal(members_of(scolr(6), 2, 1, keys, 0), whole)


def test_a_client_draws_once_for_all_its_users():
    members = members_of(scolr(6, subset="client"), 1, 1, keys_of(40), 99)
    assert (members == members[0]).all()
    alone = members_of(scolr(6), 1, 1, np.array([99]), 0)
    assert np.array_equal(members[:1], alone)


@pytest.mark.parametrize(("normaliser", "expected"), [("item", (0.3, 0.3)), ("entry", (0.3, 0.6))])
def test_the_worked_step(normaliser, expected, monkeypatch):
    """Client a sends .2 for B's first row, client b (.4, .6) for both (specification, 3.8)."""
    monkeypatch.setattr(SCoLR, "basis", lambda self, seed, round_id: np.eye(2))
    plan = plan_of(
        algorithm={"dim": 2}, update={"structure": "scolr", "rank": 2, "normaliser": normaliser}
    )
    learner = Learner(plan, 1, device="cpu")
    layout = learner.server.layout
    metrics = np.zeros(layout.metrics_slice.stop - layout.metrics_slice.start, dtype=np.int64)
    step = layout.tensors[0].step
    total = sum(
        layout.pack(
            {"item_embedding": np.rint(np.array([sent]) / step).astype(np.int64)}
            | ({"entries": np.array([trained])} if normaliser == "entry" else {}),
            np.array([1]),
            metrics,
        )
        for sent, trained in (((0.2, 0.0), (1, 0)), ((0.4, 0.6), (1, 1)))
    )
    shared = SharedState({"item_embedding": np.zeros((1, 2))})
    table = learner.server.apply("train", 1, shared, total).tensors["item_embedding"]
    assert table[0] == pytest.approx(expected, abs=2e-6)


def test_only_a_clients_subset_depends_on_grouping():
    assert SCoLR.warnings(UpdateSettings(structure="scolr")) == []
    (warning,) = SCoLR.warnings(UpdateSettings(structure="scolr", subset="client"))
    assert "grouped" in warning
    assert [UPDATES[name].warnings(UpdateSettings()) for name in ("dense", "colr")] == [[], []]


def test_colr_draws_anew_in_every_round_and_from_the_seed_alone():
    def make():
        return UPDATES["colr"](UpdateSettings(rank=2), 8)

    assert np.array_equal(make().basis(1, 1), make().basis(1, 1))
    assert not np.array_equal(make().basis(1, 1), make().basis(1, 2))
    assert not np.array_equal(make().basis(1, 1), make().basis(2, 1))
