"""Hundreds of random runs; a failing seed replays by itself."""

from __future__ import annotations

import pytest
from server.support.world import Chaos, World, random_rules

SEEDS = 600
EVENTS = 250


@pytest.mark.parametrize("block", range(6))
def test_invariants_hold_under_random_events(block: int) -> None:
    finished = 0
    for seed in range(block, SEEDS, 6):
        rules, n_clients = random_rules(seed)
        world = World.new(rules, n_clients)
        chaos = Chaos(world, seed)
        try:
            for _ in range(EVENTS):
                chaos.act()
            world.check_end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finished += bool(world.finished)
    assert finished > SEEDS / 6 / 3, "the simulation hardly ever reaches the end of a run"
