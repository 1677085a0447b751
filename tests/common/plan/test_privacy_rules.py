"""What `[privacy]` goes with, and what a client takes from a coordinator."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError
from reference.dp_epsilon import by_loss_distributions
from world.plans import check_plan, plan_of

from fedrec.plan.agreement import plan_differences
from fedrec.plan.combinations import find_conflicts
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import Plan

GAUSSIAN = {"mechanism": "gaussian"}


def conflicts(**sections: dict[str, object]) -> list[str]:
    plan = plan_of({"privacy": GAUSSIAN}, **sections)
    return [conflict.keys[0] for conflict in find_conflicts(plan)]


def test_the_default_plan_with_noise_can_run():
    assert conflicts() == []
    assert conflicts(privacy={"mechanism": "laplace"}, protection={"name": "none"}) == []
    assert conflicts(protection={"name": "paillier"}) == []
    assert conflicts(algorithm={"name": "ease"}, update={"structure": "dense"}) == []
    for mechanism in ("gaussian", "laplace"):
        found = conflicts(privacy={"mechanism": mechanism}, protection={"name": "masks"})
        assert found == []


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"protection": {"name": "none"}}, "protection.name"),
        ({"algorithm": {"name": "fedals"}, "update": {"structure": "dense"}}, "algorithm.name"),
        (
            {"update": {"structure": "svd", "compress": "client", "rank": 4}},
            "update.compress",
        ),
        (
            {"update": {"structure": "scolr", "normaliser": "entry", "rank": 4}},
            "privacy.mechanism",
        ),
        ({"privacy": GAUSSIAN | {"clip": 1e-5}}, "update.fraction_bits"),
        ({"privacy": GAUSSIAN | {"clip": 1e-9}}, "privacy.clip"),
        ({"privacy": {"mechanism": "laplace", "clip": 1e-9}}, "privacy.clip"),
        (
            {"privacy": GAUSSIAN | {"noise_multiplier": 0.5, "epsilon": 1.0}},
            "privacy.noise_multiplier",
        ),
        ({"privacy": {"mechanism": "none", "epsilon": 1.0}}, "privacy.epsilon"),
        (
            {"privacy": GAUSSIAN | {"colluding_share": 0.2}, "protection": {"name": "masks"}},
            "privacy.colluding_share",
        ),
    ],
)
def test_what_breaks_the_promise_is_refused(sections, key):
    assert key in conflicts(**sections)


def test_masks_that_withstand_as_many_as_the_noise_are_accepted():
    found = conflicts(
        privacy=GAUSSIAN | {"colluding_share": 0.2},
        protection={"name": "masks", "corrupt_share": 0.2},
    )
    assert found == []


@pytest.mark.parametrize("clip", [1e-300, 1e-12, 1e-9, 9.5e-7, 9.6e-7, 2e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_small_clips_are_problems_and_never_defects(kind, clip):
    """A grid step is 2^-20 = 9.54e-7; what is near it is either refused or priced."""
    plan = plan_of(privacy={"mechanism": kind, "clip": clip})
    sentences = [c.sentence for c in find_conflicts(plan) if "privacy.clip" in c.keys]
    assert all("Raise" in sentence for sentence in sentences) and len(sentences) < 2
    if not sentences:
        mechanism = mechanism_of(plan)
        assert mechanism is not None and 0 < mechanism.epsilon_after(1) < plan.privacy.epsilon
    assert any("less than one step" in sentence for sentence in sentences) == (clip < 2.0**-20)


def test_every_refusal_says_what_works():
    (sentence,) = check_plan(plan_of(privacy=GAUSSIAN, protection={"name": "none"}))
    assert 'protection.name = "bfv"' in sentence and 'privacy.mechanism = "laplace"' in sentence


def test_shares_make_up_for_those_who_collude():
    """Ten clients, of whom three take their noise off: the variance of seven must be enough."""
    plan = {"rounds": {"minimum_clients": 10}, "privacy": GAUSSIAN | {"noise_multiplier": 2.0}}
    one = mechanism_of(Plan.model_validate(plan))
    plan["privacy"] = {**plan["privacy"], "colluding_share": 0.3}
    some = mechanism_of(Plan.model_validate(plan))
    assert one is not None and some is not None
    assert (one.noisy, some.noisy) == (9, 7)
    assert some.share / one.share == pytest.approx((9 / 7) ** 0.5, rel=1e-5)
    for mechanism in (one, some):
        assert mechanism.deviation / mechanism.bound == pytest.approx(2.0, rel=1e-5)
        assert mechanism.deviation >= 2.0 * mechanism.bound


@pytest.mark.parametrize("share", [1e-300, 1e-10, 1e-9, 0.1, 1 / 3])
def test_one_of_three_clients_is_always_taken_to_collude(share):
    plan = {"rounds": {"minimum_clients": 3}, "privacy": GAUSSIAN | {"colluding_share": share}}
    found = mechanism_of(Plan.model_validate(plan))
    assert found is not None and found.noisy == 2


def test_clients_are_not_taken_to_be_honest_without_exception():
    with pytest.raises(ValidationError, match=r"privacy\.colluding_share\n.*greater than 0"):
        plan_of(privacy=GAUSSIAN | {"colluding_share": 0.0})


@pytest.mark.parametrize("minimum", [3, 10])
@pytest.mark.slow
def test_both_epsilons_are_those_of_the_noise_that_is_left(minimum):
    """Shares of variance (2 C)^2 / (n - 1): n of them deviate by 2 C sqrt(n / (n - 1))."""
    sections = {"rounds": {"minimum_clients": minimum}}
    plan = {**sections, "privacy": GAUSSIAN | {"noise_multiplier": 2.0, "rounds_per_user": 5}}
    found = mechanism_of(Plan.model_validate(plan))
    assert found is not None
    for n_colluding, noise in ((0, 2.0 * math.sqrt(minimum / (minimum - 1))), (1, 2.0)):
        expected = by_loss_distributions(noise, 5, 1e-5)
        unknown = minimum - n_colluding
        assert found.epsilon_under(unknown, 5) == pytest.approx(expected, rel=0.01)
        assert found.epsilon_under(unknown, 99) == pytest.approx(expected, rel=0.01)
    assert found.epsilon_under(minimum - 1, 5) == pytest.approx(found.epsilon_after(5), rel=1e-9)


def test_a_clients_own_laplace_noise_needs_no_other_client():
    plan = plan_of(privacy={"mechanism": "laplace", "colluding_share": 0.5})
    found = mechanism_of(plan)
    assert found is not None
    assert found.epsilon_under(1, 3) == found.epsilon_under(9, 3) == found.epsilon_after(3)


@pytest.mark.parametrize(
    ("ours", "theirs", "refused"),
    [
        ({}, GAUSSIAN | {"epsilon": 500}, []),
        (GAUSSIAN, {}, ["privacy.mechanism"]),
        (GAUSSIAN, {"mechanism": "laplace"}, ["privacy.mechanism"]),
        (GAUSSIAN, GAUSSIAN | {"epsilon": 7, "delta": 1e-6, "rounds_per_user": 5}, []),
        (GAUSSIAN, GAUSSIAN | {"epsilon": 9}, ["privacy.epsilon"]),
        (GAUSSIAN, GAUSSIAN | {"delta": 1e-4}, ["privacy.delta"]),
        (GAUSSIAN, GAUSSIAN | {"rounds_per_user": 11}, ["privacy.rounds_per_user"]),
        (GAUSSIAN, GAUSSIAN | {"rounds_per_user": 0}, ["privacy.rounds_per_user"]),
        (
            GAUSSIAN | {"colluding_share": 0.2},
            GAUSSIAN | {"colluding_share": 0.1},
            ["privacy.colluding_share"],
        ),
        (
            GAUSSIAN | {"noise_multiplier": 4.0},
            GAUSSIAN | {"noise_multiplier": 3.0},
            ["privacy.noise_multiplier"],
        ),
        (GAUSSIAN, GAUSSIAN | {"clip": 9.0, "expected_users": 5.0}, []),
    ],
)
def test_a_client_takes_no_weaker_promise(ours, theirs, refused):
    mine = Plan.model_validate({"privacy": ours} if ours else {})
    found = plan_differences(mine, plan_of(privacy=theirs))
    assert [difference.key for difference in found] == refused
