"""The published model is the same bits, whatever protects it and however the users are dealt."""

import numpy as np
import pytest
from world.bench import KINDS, N_ALONE, Alone, apart_plan, data, federal, merged, plan_of
from world.links import InTurn
from world.parties import check_against_one_process
from world.plans import params

from fedrec.data import leave_one_out
from fedrec.ids import RoundId
from fedrec.plan.combinations import COMBINATIONS
from fedrec.plan.schema import Plan

ALWAYS = [
    ("none", 7, "fedmf"),
    ("bfv", 3, "fedmf"),
    ("ckks", 3, "fedmf"),
    ("paillier", 3, "fedmf"),
    ("masks", 5, "fedmf"),
    ("masks", 3, "fedals"),
    ("none", 7, "pfedrec"),
    ("bfv", 3, "fedncf"),
    ("none", 7, "fedrecgel"),
    ("bfv", 3, "ease"),
    ("none", 7, "plgc"),
    ("masks", 3, "fedrap"),
    ("bfv", 3, "pfedclr"),
    ("masks", 3, "sketch"),
]
"""Every protection once, and every algorithm under one of them.

That each algorithm's sums come out of every protection is in test_every_combination.py.
"""
OTHERS = [
    ("bfv", 7, "fedmf"),
    ("masks", 12, "fedmf"),
    *(
        (protection, 7 if protection == "none" else 3, row.algorithm)
        for row in COMBINATIONS
        # Where a server makes a model for each user, a client is one user: test_own_models.py.
        if row.protections != ("none",)
        for protection in row.protections
        if protection not in {always[0] for always in ALWAYS if always[2] == row.algorithm}
    ),
]


@pytest.mark.parametrize(
    "case", params(*ALWAYS, long=OTHERS), ids=lambda case: "-".join(map(str, case))
)
def test_equal_to_one_process(found, case):
    protection, n_clients, algorithm = case
    turns = InTurn(lambda round_id: np.random.default_rng([round_id]).permutation(n_clients))
    federation = found(plan_of(protection, n_clients, algorithm), n_clients)
    for number in range(n_clients):
        federation.client(number, wrap=turns.link_of(number))
    outcomes = [client.result() for client in federation.clients]
    assert {outcome.reason for outcome in outcomes} == {"all rounds are published"}
    assert {outcome.version for outcome in outcomes} == {len(KINDS)}
    assert federal(federation.metrics()) == federal(merged(algorithm).metrics)
    bench = federation.bench
    assert {bench.model(number) for number in range(n_clients)} == {merged(algorithm).model}
    check_private(bench, algorithm)
    first = [number for round_id, number in turns.arrived if round_id == RoundId(2)]
    second = [number for round_id, number in turns.arrived if round_id == RoundId(3)]
    assert sorted(first) == sorted(second) == list(range(n_clients))
    assert first != second


@pytest.mark.parametrize(
    "algorithm", params("cofedrec", "perfedrec", long=["gpfedrec", "pfedgraph"])
)
def test_a_model_for_each_client_is_that_of_one_process(found, algorithm):
    federation = found(apart_plan(algorithm), N_ALONE, bench=Alone)
    federation.start_all()
    counted = check_against_one_process(federation)
    assert counted == [frozenset(range(N_ALONE))] * len(KINDS)
    private = [federation.bench.private(number).tensors for number in range(N_ALONE)]
    for name in federation.coordinator.engine.own_models.received:
        assert len({own[name].tobytes() for own in private}) > 1, name


def check_private(bench, algorithm):
    """Every user's parameters are those that it would have in a single process."""
    all_users = leave_one_out(data().interactions, data().catalogue).user_ids
    wanted = merged(algorithm).private[0].tensors
    for number, users in enumerate(bench.users()):
        found = bench.private(number).tensors
        rows = [all_users.index(user) for user in users.user_ids]
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[name], wanted[name][rows]) for name in wanted)


CLIENT = {"compress": "client"}


@pytest.mark.parametrize(
    "case",
    params(
        ("bfv", {"structure": "scolr", "rank": 4, "normaliser": "entry"}),
        ("bfv", {"structure": "svd", "rank": 2, **CLIENT}),
        ("paillier/packed-2048", {"structure": "topk", "ratio": 0.25}),
        long=[
            ("paillier", {"structure": "topk", "ratio": 0.25, **CLIENT}),
            ("bfv", {"structure": "scolr", "rank": 4}),
            ("ckks", {"structure": "scolr", "rank": 2}),
            ("bfv", {"structure": "svd", "rank": 2}),
            ("bfv", {"structure": "topk", "ratio": 0.25}),
        ],
    ),
    ids=lambda case: "-".join(map(str, [case[0], *case[1].values()])),
)
def test_every_update_structure_under_encryption(found, case):
    """Key holders recompress what clients compressed, as one process with the same clients does."""
    protection, update = case
    plan = plan_of(protection).model_dump()
    federation = found(Plan.model_validate({**plan, "update": update}))
    federation.start_all()
    check_against_one_process(federation)


@pytest.mark.parametrize(
    "case", params(("bfv", "fedrap", {"tables": "shared"}), long=[("none", "pfedrec", {})])
)
def test_low_rank_rows_of_other_algorithms(found, case):
    protection, algorithm, settings = case
    plan = plan_of(protection, algorithm=algorithm).model_dump()
    update = {**plan["update"], "structure": "colr", "rank": 2}
    own = {**plan["algorithm"], **settings}
    federation = found(Plan.model_validate({**plan, "algorithm": own, "update": update}))
    federation.start_all()
    check_against_one_process(federation)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", params("ease", long=["fedmf"]))
def test_with_a_floor_of_the_clients_own(found, algorithm):
    """Three holders among a client's own users are asked of every row, from the count on."""
    federation = found(plan_of("bfv", algorithm=algorithm))
    federation.start_all(client__minimum_own_item_users=3)
    check_against_one_process(federation, floor=3)
    assert federation.bench.model(0) != merged(algorithm).model
