"""Who is asked before clients are exposed."""

from __future__ import annotations

import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.config.exposure import check_exposure, check_sampling, check_users, exposure_of
from fedrec.config.schema import Plan
from fedrec.errors import RefusedError


def plan_of(algorithm: str, protection: str) -> Plan:
    return Plan.model_validate(
        {"algorithm": {"name": algorithm}, "protection": {"name": protection}}
    )


def test_what_shows_histories_without_encryption_needs_a_word() -> None:
    exposing = [
        (name, protection)
        for name in ALGORITHMS
        for protection in ("none", "bfv", "ckks", "paillier", "masks")
        if exposure_of(plan_of(name, protection))
    ]
    assert exposing == [("ease", "none"), ("sketch", "none")]


def test_indices_in_the_clear_need_a_word_whatever_is_encrypted() -> None:
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


def test_a_client_of_several_users_has_no_place_among_clear_indices() -> None:
    clear = Plan.model_validate({"update": {"structure": "topk", "indices": "clear"}})
    check_users(clear, 1)
    check_users(Plan(), 500)
    with pytest.raises(RefusedError, match="This client has 2 users"):
        check_users(clear, 2)


def test_the_refusal_says_what_is_exposed_and_names_the_flag() -> None:
    plan = plan_of("ease", "none")
    with pytest.raises(RefusedError, match="pairs of items each client's users hold") as caught:
        check_exposure(plan, accepted=False)
    assert "--accept-exposure" in caught.value.remedy
    assert 'protection.name = "bfv"' in caught.value.remedy
    check_exposure(plan, accepted=True)
    check_exposure(plan_of("ease", "bfv"), accepted=False)


def test_a_fixed_number_of_all_users_is_for_simulations() -> None:
    rounds = {"user_sampling": "count", "user_fraction": 0.6}
    with pytest.raises(RefusedError, match="whom no party of a federation knows") as caught:
        check_sampling(Plan.model_validate({"rounds": rounds}))
    assert "rounds.clients_per_round" in caught.value.remedy
    check_sampling(Plan.model_validate({"rounds": {"user_fraction": 0.6}}))
