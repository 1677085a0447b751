"""Who is asked before clients are exposed."""

from __future__ import annotations

import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.config.exposure import check_exposure, check_sampling, exposure_of
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
