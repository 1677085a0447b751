"""Scenario 24, SIM-FUZZ, the histories: whatever happens to a coordinator, its promises hold.

A history is drawn from its seed: 200 events on the state machine and its real store, in which
messages are lost, repeated, late and out of order, the process ends at any commit, the clock jumps
and the disk is full. A failing one says how it is replayed. The other half of the scenario, parsers
fed with damaged bytes, is in `tests/fuzz`.
"""

import os
from collections import Counter

import pytest
from world.histories import REPLAY, play

SHORT = 60
FULL = 5_000
BLOCKS = 20
KINDS = {
    "lost",
    "twice",
    "late",
    "jump",
    "disk full",
    "crash between events",
    "crashed at rows.begin",
    "crashed at rows.commit",
    "crashed at rows.committed",
    "of another epoch",
}


def played(seeds):
    """Play histories; return what came about in them."""
    found: Counter[str] = Counter()
    for seed in seeds:
        history = play(seed)
        found.update(history.happened)
        found["published"] += len(history.world.published)
        found["abandoned"] += history.world.state.abandoned
        found["unended"] += history.world.state.ending is None
    return found


def test_scenario_24_histories():
    found = played(range(SHORT))
    # Where nothing happens, nothing is tested.
    assert {kind for kind in KINDS if not found[kind]} == set(), found
    assert found["published"] > 4 * SHORT and found["abandoned"] > SHORT / 4, found
    assert not found["unended"]


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_scenario_24_five_thousand_histories(block):
    found = played(range(block, FULL, BLOCKS))
    assert {kind for kind in KINDS if found[kind] < 20} == set(), found
    assert not found["unended"]


def test_scenario_24_a_history_is_replayed_from_its_seed():
    seed = int(os.environ.get(REPLAY, "7"))
    first, second = play(seed), play(seed)
    assert first.trace.digest() == second.trace.digest()
    assert first.happened == second.happened
    assert play(seed + 1).trace.digest() != first.trace.digest()
