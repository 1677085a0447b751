"""Scenario 21: a cohort with fewer than `minimum_summands` roster clients never opens.

Forty attackers with keys of their own crowd around one member; the key authority
signed only the members. Whatever the attackers do, no round opens, so that nothing is uploaded,
summed or revealed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from server.support.federations import Bench
from server.support.serving import serving
from server.support.world import World, client, rules

from fedrec.errors import NotInRoster
from fedrec.ids import ClientId
from fedrec.wire.messages import Wait
from fedrec_server.rounds.events import Polled, Tick


@pytest.mark.parametrize("minimum", [3, 5])
def test_scenario_21_attackers_do_not_fill_a_cohort(minimum: int) -> None:
    world = World.new(rules(minimum_summands=minimum), minimum)
    members = [client(number) for number in range(minimum)]
    attackers = [
        ClientId(hashlib.sha256(f"attacker {number}".encode()).hexdigest()) for number in range(40)
    ]
    for _ in range(100):
        world.now += 1000.0
        world.apply(Tick(now=world.now, live=frozenset([members[0], *attackers])))
        for attacker in attackers[:3]:
            world.apply(Polled(now=world.now, client_id=attacker))
        assert world.state.current is None
    for present in range(minimum + 1):
        world.apply(Tick(now=world.now, live=frozenset([*members[:present], *attackers])))
        assert (world.state.current is not None) == (present == minimum)
    round_ = world.state.current
    assert round_ is not None and round_.asked == frozenset(members)


def test_scenario_21_attackers_are_turned_away_at_the_door(tmp_path: Path) -> None:
    """Former members have certificates, and are told that the roster does not have them."""
    with serving(Bench.of(3, veiled=True), tmp_path) as found:
        for number in range(50, 60):
            with pytest.raises(NotInRoster):
                found.task(number)
        assert isinstance(found.task(0), Wait)
        assert found.coordinator.engine.state.current is None


def test_scenario_21_too_few_updates_are_never_summed() -> None:
    """Members that go away after the opening leave a round that is abandoned, not revealed."""
    world = World.new(rules(), 4)
    world.tick(0, 1, 2, 3)
    world.upload(0)
    world.upload(1)
    world.tick(0, 1, seconds=100_000.0)
    assert world.state.current is None
    assert world.state.abandoned == 1
    assert not world.published
