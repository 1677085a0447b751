"""Rounds of several steps over the wire, under every protection of the registry that has such."""

import pytest
from world.bench import plan_of
from world.clock import poll
from world.held_steps import Gate, let_it_drop_out, until_others_are_done
from world.parties import check_against_one_process

from fedrec.protection import PROTECTIONS

STEPS = [
    pytest.param(name, step.name, marks=[pytest.mark.long] * (step.name != "vector"))
    for name, kind in PROTECTIONS.items()
    if kind.steps.are_several
    for step in kind.steps.all
]
LATER = [one for one in STEPS if one.values[1] != PROTECTIONS[one.values[0]].steps.first.name]


def held_at(found, protection, step):
    """Return a federation of three clients, and the gate at which the last one's step waits."""
    federation = found(plan_of(protection, 3, mask_step_seconds=60.0))
    gate = Gate(2, step)
    for number in range(3):
        federation.client(number, **({"wrap": gate} if number == 2 else {}))
    return federation, gate


@pytest.mark.parametrize(("protection", "step"), STEPS)
def test_a_coordinator_that_ends_within_a_step_goes_on_with_it(found, protection, step):
    federation, gate = held_at(found, protection, step)
    with gate:
        until_others_are_done(federation, gate, step)
        federation.stop_coordinator()
        federation.start_again()
    assert check_against_one_process(federation) == [frozenset({0, 1, 2})] * 5
    assert not [event for event in federation.journal() if event.kind == "round abandoned"]


@pytest.mark.parametrize(("protection", "step"), LATER)
def test_of_three_clients_one_that_drops_out_ends_the_round(found, protection, step):
    """The next round is every client's again."""
    federation, gate = held_at(found, protection, step)
    with gate:
        let_it_drop_out(federation, gate, step)
        poll(lambda: federation.coordinator.engine.run.state.abandoned)
    counted = check_against_one_process(federation)
    assert all(clients == {0, 1, 2} for clients in counted)
    (abandoned,) = [e for e in federation.journal() if e.kind == "round abandoned"]
    assert abandoned.round == 2
