"""Who is asked before clients are exposed."""

from __future__ import annotations

import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.errors import RefusedError
from fedrec.plan.exposure import (
    check_exposure,
    check_member_exposure,
    check_one_process,
    check_own_floor,
    check_users,
    exposed_to_members,
    exposure_of,
)
from fedrec.plan.schema import Plan


def plan_of(algorithm: str, protection: str) -> Plan:
    return Plan.model_validate(
        {"algorithm": {"name": algorithm}, "protection": {"name": protection}}
    )


def test_what_shows_histories_without_encryption_needs_a_word():
    exposing = [
        (name, protection)
        for name in ALGORITHMS
        for protection in ("none", "bfv", "ckks", "paillier", "masks")
        if exposure_of(plan_of(name, protection))
    ]
    apart = [
        name for name in ALGORITHMS if ALGORITHMS[name].about.supports.protections == ("none",)
    ]
    assert "gpfedrec" in apart
    assert exposing == [(name, "none") for name in ("ease", "sketch", *apart)]


def test_indices_in_the_clear_need_a_word_whatever_is_encrypted():
    plan = Plan.model_validate(
        {
            "update": {"structure": "topk", "indices": "clear"},
            "protection": {"name": "paillier", "preset": "single-3072"},
        }
    )
    with pytest.raises(RefusedError, match="would read the index of every kept value") as caught:
        check_exposure(plan, accepted=False)
    assert 'update.indices = "hidden"' in caught.value.remedy
    assert "--accept-exposure" in caught.value.remedy
    check_exposure(plan, accepted=True)


def test_a_client_of_several_users_has_no_place_among_clear_indices():
    clear = Plan.model_validate({"update": {"structure": "topk", "indices": "clear"}})
    check_users(clear, 1)
    check_users(Plan(), 500)
    with pytest.raises(RefusedError, match="This client has 2 users"):
        check_users(clear, 2)


def test_the_refusal_says_what_is_exposed_and_names_the_flag():
    plan = plan_of("ease", "none")
    with pytest.raises(RefusedError, match="pairs of items each client's users hold") as caught:
        check_exposure(plan, accepted=False)
    assert "--accept-exposure" in caught.value.remedy
    assert 'protection.name = "bfv"' in caught.value.remedy
    check_exposure(plan, accepted=True)
    check_exposure(plan_of("ease", "bfv"), accepted=False)


def test_a_server_that_reads_each_update_needs_a_word_and_one_user_a_client():
    plan = plan_of("gpfedrec", "none")
    with pytest.raises(RefusedError, match="own item table in every round") as caught:
        check_exposure(plan, accepted=False)
    assert "only summed" in caught.value.remedy
    check_exposure(plan, accepted=True)
    check_one_process(plan)
    check_users(plan, 1)
    with pytest.raises(RefusedError, match="a client is one user") as caught:
        check_users(plan, 2)
    assert "Start a client for each user" in caught.value.remedy


def test_a_fixed_number_of_all_users_is_for_simulations():
    rounds = {"user_sampling": "count", "user_fraction": 0.6}
    with pytest.raises(RefusedError, match="which no party of a federation knows") as caught:
        check_one_process(Plan.model_validate({"rounds": rounds}))
    assert "rounds.clients_per_round" in caught.value.remedy
    check_one_process(Plan.model_validate({"rounds": {"user_fraction": 0.6}}))


def test_what_one_member_reads_needs_a_word_unless_cells_or_a_floor_help():
    exposing = {name for name in ALGORITHMS if exposed_to_members(plan_of(name, "bfv"), 1)}
    assert exposing == {"ease", "fedals", "sketch"}
    for protection in ("bfv", "masks", "none"):
        plan = plan_of("ease", protection)
        with pytest.raises(RefusedError, match="complete history") as caught:
            check_member_exposure(plan, n_cells=1, floor=2, accepted=False)
        assert "client.minimum_own_item_users = 3" in caught.value.remedy
        check_member_exposure(plan, n_cells=1, floor=3, accepted=False)
        check_member_exposure(plan, n_cells=1, floor=1, accepted=True)
    check_member_exposure(plan_of("ease", "bfv"), n_cells=2, floor=1, accepted=False)
    with pytest.raises(RefusedError, match="masks"):
        check_member_exposure(plan_of("ease", "masks"), n_cells=2, floor=1, accepted=False)


def test_a_floor_above_the_number_of_users_is_refused():
    check_own_floor(1, 1)
    check_own_floor(3, 3)
    with pytest.raises(RefusedError, match="one user"):
        check_own_floor(2, 1)
    with pytest.raises(RefusedError, match="2 users"):
        check_own_floor(3, 2)
