"""Scenario 20: the privacy ledger never says less than what was released.

A run ends before its budget is exceeded, restarts included; what is charged is what an independent
accountant finds; nothing is claimed for sampling. That a coordinator killed at every point of two
rounds has charged whatever it released is in `test_scenario_04_killed_at_every_failpoint.py`.
Rounds under masks are in `tests/server/stepped_rounds/test_mask_ledger.py` and
`tests/client/round/test_masked.py`, the audit and the noise on untouched rows in
`tests/lab/audit/test_dp.py` and `tests/lab/simulation/test_simulated_privacy.py`.
"""

from dataclasses import replace

import pytest
from reference.dp_epsilon import by_loss_distributions
from world.engine import Bench
from world.machine import AUTHORITY, World, budget_for, client, rules
from world.plans import plan_of

from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import PrivacySettings
from fedrec.privacy import BUDGET_SPENT
from fedrec_server.rounds.changes import RoundPublished, SumKept
from fedrec_server.rounds.events import Failed

DELTA = 1e-5


def budgeted(kind, most, *, needs_reveal=False):
    found = replace(
        rules(needs_reveal=needs_reveal, total=50),
        mechanism=budget_for(most),
        charges_updates=kind == "laplace",
    )
    return World.new(found, 3)


def hold_round(world):
    """Open a round and bring it to its sum."""
    world.tick(0, 1, 2)
    for number in range(3):
        world.upload(number)
    world.sum()


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_scenario_20_the_run_ends_at_its_budget(kind):
    world = budgeted(kind, 4)
    for _ in range(5):
        hold_round(world)
    assert world.state.trained == world.state.charged == 4
    assert world.state.ending is None
    world.tick(0, 1, 2)
    assert world.state.ending is not None and world.state.ending.failed
    assert world.state.ending.reason.startswith(BUDGET_SPENT)


def test_scenario_20_a_sum_is_charged_before_it_can_be_opened():
    """Whoever reveals may have seen it, also where the round is then abandoned."""
    world = budgeted("gaussian", 1, needs_reveal=True)
    alone = replace(world.state.rules, revealer=client(AUTHORITY))
    world.state = replace(world.state, counted=True, rules=alone)
    world.tick(0, 1, 2)
    for number in range(3):
        world.upload(number)
    assert world.state.charged == 0
    (kept,) = world.sum()
    assert isinstance(kept, SumKept) and kept.charged
    assert world.state.charged == 1 and not world.published
    assert world.state.current is not None and world.state.current.phase == "revealing"
    world.apply(Failed(now=world.now, round=world.state.current.number, reason="lost"))
    assert world.state.charged == 1
    world.tick(0, 1, 2)
    assert world.state.ending.reason.startswith(BUDGET_SPENT)


def test_scenario_20_parts_of_one_release_never_exceed_its_budget():
    """A sum being opened is a part of its own, as is the last one before the run ends."""
    found = replace(
        rules(needs_reveal=True, total=9),
        mechanism=budget_for(1, in_parts=True),
        revealer=client(AUTHORITY),
    )
    world = World.new(found, 3)
    for _ in range(3):
        hold_round(world)
        assert world.state.epsilon <= found.mechanism.epsilon
        world.speak()
    hold_round(world)
    assert (world.state.charged, world.state.trained, world.state.releases) == (3, 2, 1)
    world.apply(Failed(now=world.now, round=world.state.current.number, reason="lost"))
    world.tick(0, 1, 2)
    assert world.state.ending.reason.startswith(BUDGET_SPENT)
    assert world.state.epsilon == found.mechanism.epsilon_after(1)


def test_scenario_20_a_sum_that_clients_decrypt_is_charged_with_its_publication():
    world = budgeted("gaussian", 1, needs_reveal=True)
    world.state = replace(world.state, counted=True)
    world.tick(0, 1, 2)
    for number in range(3):
        world.upload(number)
    kept, published = world.sum()
    assert isinstance(kept, SumKept) and kept.charged and isinstance(published, RoundPublished)
    assert world.state.charged == 1


def test_scenario_20_an_abandoned_round_that_was_seen_is_paid_for():
    """Laplace noise lies on each update: the coordinator has read those that it abandoned."""
    world = budgeted("laplace", 1)
    hold_round(world)
    assert world.state.counted and world.state.charged == 0
    world.tick(0, 1, 2)
    world.upload(0)
    assert world.state.charged == 1
    world.tick(0, 1, 2, seconds=100_000.0)
    assert world.state.abandoned == 1 and world.state.charged == 1
    world.tick(0, 1, 2)
    assert world.state.ending.reason.startswith(BUDGET_SPENT)


def test_scenario_20_the_ledger_is_in_the_database(tmp_path):
    """Two coordinators one after the other on one folder: the second knows what the first spent."""
    privacy = PrivacySettings(mechanism="laplace", noise_multiplier=4.0)
    bench = Bench.of(3, privacy=privacy)
    store = bench.store(tmp_path)
    with store._transaction() as rows:
        rows.execute("INSERT INTO ledger (round, at) VALUES (2, 0.0), (5, 1.0)")
    store.close()
    again = bench.store(tmp_path)
    state = again.load(bench.federation.rules(again.run), frozenset())
    assert state.charged == 2
    again.close()


@pytest.mark.parametrize(("epsilon", "rounds"), [(1.0, 5), (8.0, 10), (3.0, 100)])
def test_scenario_20_epsilon_is_what_another_accountant_finds(epsilon, rounds):
    """The noise follows from the budget; dp-accounting, given that noise, finds the budget."""
    plan = plan_of(
        privacy={"mechanism": "gaussian", "epsilon": epsilon, "rounds_per_user": rounds},
        rounds={"total": 100},
    )
    mechanism = mechanism_of(plan)
    noise = mechanism.deviation / mechanism.bound
    assert by_loss_distributions(noise, rounds, DELTA) == pytest.approx(epsilon, rel=0.01)
    assert mechanism.epsilon_after(100) == pytest.approx(epsilon, rel=1e-4)
    assert mechanism.epsilon_after(100) <= epsilon


def test_scenario_20_nothing_is_claimed_for_sampling():
    """Whatever share of users takes part, a round costs the same."""
    costs = set()
    for fraction in (0.01, 0.5, 1.0):
        plan = plan_of(
            privacy={"mechanism": "gaussian", "noise_multiplier": 2.0, "epsilon": 100},
            rounds={"user_fraction": fraction, "clients_per_round": 3},
        )
        mechanism = mechanism_of(plan)
        costs.add(mechanism.cost)
    assert len(costs) == 1
