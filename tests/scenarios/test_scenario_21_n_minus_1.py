"""Scenario 21: a cohort with fewer than `minimum_summands` roster clients never opens.

Forty attackers with keys of their own crowd around one member; the key authority
signed only the members. Whatever the attackers do, no round opens, so that nothing is uploaded,
summed or revealed.

Where the key authority admits attackers (sybils), cells limit what they learn: those that come
later are never in an honest client's core, and of those that come together with honest clients
chance decides. Beyond that only vetting helps, and the threat model says so.
"""

import hashlib

import numpy as np
import pytest
from world.engine import Bench
from world.invariants import smallest_isolated
from world.machine import World, client, rules
from world.serving import serving

from fedrec.errors import NotInRoster
from fedrec.identity.cells import Partition, Standing, check_whole, whole_among
from fedrec.ids import ClientId
from fedrec.wire.messages import Wait
from fedrec_authority.members.cell_placement import place
from fedrec_server.rounds.events import Polled, Tick


@pytest.mark.parametrize("minimum", [3, 5])
def test_scenario_21_attackers_do_not_fill_a_cohort(minimum):
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


def test_scenario_21_attackers_are_turned_away_at_the_door(tmp_path):
    """Former members have certificates, and are told that the roster does not have them."""
    with serving(Bench.of(3, veiled=True), tmp_path) as found:
        for number in range(50, 60):
            with pytest.raises(NotInRoster):
                found.task(number)
        assert isinstance(found.task(0), Wait)
        assert found.coordinator.engine.run.state.current is None


def test_scenario_21_too_few_updates_are_never_summed():
    """Members that go away after the opening leave a round that is abandoned, not revealed."""
    world = World.new(rules(), 4)
    world.tick(0, 1, 2, 3)
    world.upload(0)
    world.upload(1)
    world.tick(0, 1, seconds=100_000.0)
    assert world.state.current is None
    assert world.state.abandoned == 1
    assert not world.published


def standings(kind, count, *, guests=0):
    """Return members that join, the last of them as guests."""
    return [
        Standing(
            client_id=ClientId(hashlib.sha256(f"{kind} {number}".encode()).hexdigest()),
            consent=b"word" * 16 if number >= count - guests else b"",
        )
        for number in range(count)
    ]


def sums_of(partition, members, honest, draws):
    """Return what attackers see of a roster's sums: they choose who is there, and know their own.

    Every honest client is missing now and then, too.
    """
    found = []
    for _ in range(60):
        here = {one.client_id for one in members if draws.random() < 0.8}
        counted = whole_among(partition, here)
        if counted:
            check_whole(partition, counted, least=3, what="the sum")
            found.append(set(counted) & honest)
    return found


@pytest.mark.parametrize("cell_size", [3, 4])
def test_sybils_beside_a_victim(cell_size):
    """Forty sybils that join later, as core members and as guests, never single any client out."""
    people = standings("honest", 5)
    honest, draws = {one.client_id for one in people}, np.random.default_rng(cell_size)
    members, partition = people, place(Partition(cell_size=cell_size), people, 1)
    sums = sums_of(partition, members, honest, draws)
    for epoch in range(2, 12):
        # Some stay for an epoch only: the coordinator has them removed.
        more = standings(f"sybil {epoch}", 4, guests=2)
        kept = draws.random(len(members) - 5) < 0.7
        members = [
            *members[:5],
            *(one for one, stays in zip(members[5:], kept, strict=True) if stays),
            *more,
        ]
        partition = place(partition, members, epoch)
        sums += sums_of(partition, members, honest, draws)
    assert any(total for total in sums)
    assert smallest_isolated(sums, sorted(honest)) == 5


def test_sybils_in_the_batch_of_a_victim_are_what_cells_of_three_do_not_withstand():
    """What `keys roster cells --corrupt-share` sizes cells against, and only vetting prevents."""
    pair = standings("sybil", 2)
    victim = standings("honest", 1)
    partition = place(Partition(cell_size=3), [*pair, *victim], 1)
    sums = sums_of(partition, [*pair, *victim], {victim[0].client_id}, np.random.default_rng(1))
    assert smallest_isolated(sums, [victim[0].client_id]) == 1
    # With a tenth of a hundred members corrupt, 13 leaves three honest ones in every cell but
    # for one chance in 2^40.
    crowd = [*standings("honest", 90), *standings("sybil", 10)]
    bad = {one.client_id for one in crowd[90:]}
    for _ in range(20):
        cells = place(Partition(cell_size=13), crowd, 1).cells
        assert len(cells) == 7
        assert all(len(set(cell.core) - bad) >= 3 for cell in cells)
