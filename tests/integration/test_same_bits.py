"""The published model is the same bits, whatever protects it and however the users are dealt."""

import numpy as np
import pytest
from world.bench import APART, KINDS, N_ALONE, Alone, apart_plan, data, federal, merged, plan_of
from world.links import InTurn
from world.parties import check_against_one_process
from world.plans import params

from fedrec.data import leave_one_out
from fedrec.ids import RoundId
from fedrec.plan.combinations import COMBINATIONS
from fedrec.plan.schema import Plan

ALWAYS = [
    ("none", 3, "fedmf"),
    ("none", 7, "fedmf"),
    ("bfv", 3, "fedmf"),
    ("bfv", 7, "fedmf"),
    ("ckks", 3, "fedmf"),
    ("paillier", 3, "fedmf"),
    ("masks", 3, "fedmf"),
    ("masks", 5, "fedmf"),
    ("masks", 12, "fedmf"),
    ("none", 7, "fedals"),
    ("masks", 3, "fedals"),
    ("bfv", 3, "fedals"),
    ("none", 7, "pfedrec"),
    ("bfv", 3, "pfedrec"),
    ("none", 7, "fedncf"),
    ("bfv", 3, "fedncf"),
    ("none", 7, "fedrecgel"),
    ("bfv", 3, "fedrecgel"),
    ("ckks", 3, "fedrecgel"),
    ("masks", 3, "fedrecgel"),
    ("none", 7, "ease"),
    ("bfv", 3, "ease"),
    ("ckks", 3, "ease"),
    ("none", 7, "plgc"),
    ("bfv", 3, "plgc"),
    ("masks", 3, "plgc"),
    ("none", 7, "fedrap"),
    ("bfv", 3, "fedrap"),
    ("ckks", 3, "fedrap"),
    ("masks", 3, "fedrap"),
    ("none", 7, "pfedclr"),
    ("bfv", 3, "pfedclr"),
    ("none", 7, "sketch"),
    ("bfv", 3, "sketch"),
    ("masks", 3, "sketch"),
]
OTHERS = [
    pytest.param(protection, 3, row.algorithm, marks=pytest.mark.long)
    for row in COMBINATIONS
    # Where a server makes a model for each user, a client is one user: see test_own_models.py.
    if row.protections != ("none",)
    for protection in row.protections
    if protection not in {always[0] for always in ALWAYS if always[2] == row.algorithm}
]
"""Every protection of every algorithm that is not among the former."""


@pytest.mark.parametrize(("protection", "n_clients", "algorithm"), [*ALWAYS, *OTHERS])
def test_equal_to_one_process(found, protection, n_clients, algorithm):
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


@pytest.mark.parametrize("algorithm", APART)
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


@pytest.mark.parametrize(
    ("protection", "update"),
    [
        pytest.param(
            "paillier",
            {"structure": "topk", "ratio": 0.25, "compress": "client"},
            marks=pytest.mark.long,
        ),
        ("bfv", {"structure": "scolr", "rank": 4}),
        ("bfv", {"structure": "scolr", "rank": 4, "normaliser": "entry"}),
        ("ckks", {"structure": "scolr", "rank": 2}),
        ("bfv", {"structure": "svd", "rank": 2}),
        ("bfv", {"structure": "svd", "rank": 2, "compress": "client"}),
        ("bfv", {"structure": "topk", "ratio": 0.25}),
        ("paillier/packed-2048", {"structure": "topk", "ratio": 0.25}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_every_update_structure_under_encryption(found, protection, update):
    """Key holders recompress what clients compressed, as one process with the same clients does."""
    plan = plan_of(protection).model_dump()
    federation = found(Plan.model_validate({**plan, "update": update}))
    federation.start_all()
    check_against_one_process(federation)


@pytest.mark.parametrize(
    ("protection", "algorithm", "settings"),
    [("bfv", "fedrap", {"tables": "shared"}), ("none", "pfedrec", {})],
)
def test_low_rank_rows_of_other_algorithms(found, protection, algorithm, settings):
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
