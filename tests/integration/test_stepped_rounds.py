"""Rounds of several steps over the wire, under every protection of the registry that has such."""

from __future__ import annotations

import pytest
from integration.conftest import Found
from integration.support.bench import plan_of
from integration.support.checks import check_against_one_process
from integration.support.links import poll
from integration.support.masked import Gate, let_it_drop_out, until_others_are_done
from integration.support.parties import Federation

from fedrec.protection import PROTECTIONS

STEPS = [
    (name, step.name)
    for name, kind in PROTECTIONS.items()
    if kind.steps.are_several
    for step in kind.steps.all
]
LATER = [(name, step) for name, step in STEPS if step != PROTECTIONS[name].steps.first.name]


def held_at(found: Found, protection: str, step: str) -> tuple[Federation, Gate]:
    """Return a federation of three clients, and the gate at which the last one's step waits."""
    federation = found(plan_of(protection, 3, mask_step_seconds=60.0))
    gate = Gate(step, 2)
    for number in range(3):
        federation.client(number, **({"wrap": gate} if number == 2 else {}))
    return federation, gate


@pytest.mark.parametrize(("protection", "step"), STEPS)
def test_a_coordinator_that_ends_within_a_step_goes_on_with_it(found, protection, step):
    federation, gate = held_at(found, protection, step)
    try:
        until_others_are_done(federation, gate, step)
        federation.stop_coordinator()
        federation.start_again()
    finally:
        gate.opened.set()
    assert check_against_one_process(federation) == [frozenset({0, 1, 2})] * 5
    assert not [event for event in federation.journal() if event.kind == "round abandoned"]


@pytest.mark.parametrize(("protection", "step"), LATER)
def test_of_three_clients_one_that_drops_out_ends_the_round(found, protection, step):
    """The next round is everybody's again."""
    federation, gate = held_at(found, protection, step)
    try:
        let_it_drop_out(federation, gate, step)
        poll(lambda: federation.coordinator.engine.run.state.abandoned)
    finally:
        gate.opened.set()
    counted = check_against_one_process(federation)
    assert all(clients == {0, 1, 2} for clients in counted)
    (abandoned,) = [e for e in federation.journal() if e.kind == "round abandoned"]
    assert abandoned.round == 2
