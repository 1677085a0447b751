"""Rounds under masks over the wire, in which a test holds one client at one of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from world.bench import plan_of
from world.clock import DEADLINE_SECONDS, poll
from world.links import Gate, Passing, Wrap
from world.parties import Federation

from fedrec.identity.identity import Identity
from fedrec.plan.schema import Plan
from fedrec.protection import PROTECTIONS

Found = Callable[..., Federation]

N_CLIENTS = 9


def phase_in(federation: Federation, step: str) -> str:
    """Return the phase in which a step is taken."""
    return PROTECTIONS[federation.bench.plan.protection.name].steps.named(step).phase


def phase_of(federation: Federation) -> str:
    """Return the phase of the round in progress, or nothing."""
    round_ = federation.coordinator.engine.run.state.current
    return "" if round_ is None else round_.phase


def keys_of(federation: Federation, round_id: int) -> int:
    """Return how many keys a round has."""
    round_ = federation.coordinator.engine.run.state.current
    return len(round_.sent("keys")) if round_ and round_.number == round_id else 0


def whole_federation(
    found: Found, held: Mapping[int, Wrap], round_id: int, plan: Plan | None = None
) -> Federation:
    """Start nine clients, three cells, and have all of them in one round.

    Args:
        held: by number, what a client of 1 to 8 is held at.
        plan: of rounds of three or more under masks whose steps take 60 seconds.
    """
    # One more round follows the one that a test disturbs, the second or the third.
    usual = plan_of("masks", 3, mask_step_seconds=60.0, total=2)
    federation = found(plan or usual, N_CLIENTS)
    first = Gate(round_id, "keys")
    federation.client(0, wrap=first)
    for number in range(1, N_CLIENTS):
        federation.client(number, wrap=held.get(number, Passing))
    with first:
        poll(lambda: keys_of(federation, round_id) == N_CLIENTS - 1)
    return federation


def without_cell_of(federation: Federation, number: int) -> set[int]:
    """Return the clients that are summed when one drops out: those of the other cells."""
    bench = federation.bench
    ids = [Identity.load(bench.state(each)).client_id for each in range(bench.n_clients)]
    cell = federation.coordinator.engine.run.state.rules.partition.cell_of(ids[number])
    assert cell is not None and len(cell.core) == 3
    return {each for each, client_id in enumerate(ids) if client_id not in cell.core}


def let_it_drop_out(federation: Federation, gate: Gate, step: str) -> None:
    """Wait until all but the client at the gate have done a step, and let its time pass."""
    until_others_are_done(federation, gate, step)
    federation.clock.jump(61)


def until_others_are_done(federation: Federation, gate: Gate, step: str) -> None:
    """Wait until all but the client at the gate have done a step."""
    assert gate.reached.wait(DEADLINE_SECONDS)
    engine = federation.coordinator.engine

    def others_are_done() -> bool:
        round_ = engine.run.state.current
        if round_ is None or round_.phase != phase_in(federation, step):
            return False
        here = round_.accepted if step == "vector" else round_.sent(step)
        return len(here) == federation.bench.n_clients - 1

    poll(others_are_done)
