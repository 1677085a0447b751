"""Scenario 22, SPLIT-BRAIN: of two coordinators on one folder one works, and the other ends.

The first one is stopped by SIGSTOP, as on a machine that hangs. While it holds the folder's lock a
second one does not start. Where the lock means nothing, as on some network file systems, the second
one takes the folder over, and the first ends at its next write.
"""

import os
import signal
from pathlib import Path

import pytest
from world.bench import KINDS, Bench, merged, plan_of
from world.children import (
    ClientProcess,
    CoordinatorProcess,
    DidNotStart,
    KillClient,
    close_all,
)
from world.clock import poll
from world.parties import operators_link, published_rounds

pytestmark = pytest.mark.slow

DEADLINE_SECONDS = 20.0


def arrived(bench, address):
    """Return the round in progress and how many updates it has; zeros between rounds."""
    link = operators_link(bench, address)
    try:
        current = link.status().current
    finally:
        link.close()
    return (0, 0) if current is None else (current.round, current.arrived)


def paused(coordinator):
    """Stop a coordinator in whatever it does, as a machine that hangs; return its process."""
    pid = coordinator.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def complete(bench, address):
    """Check that each round was published once, and the model is the undisturbed run's."""
    published = published_rounds(bench, address)
    assert [found.kind for found in published] == list(KINDS)
    assert {bench.model(number) for number in range(bench.n_clients)} == {merged().model}


def test_scenario_22_a_second_coordinator_does_not_start(tmp_path):
    bench = Bench.make(tmp_path, plan_of("none"))
    first = CoordinatorProcess(bench)
    try:
        pid = paused(first)
        with pytest.raises(DidNotStart, match=f"in use by process {pid} on"):
            CoordinatorProcess(bench)
        os.kill(pid, signal.SIGCONT)
        assert arrived(bench, first.address) == (0, 0), "the first one goes on"
    finally:
        first.close()


def test_scenario_22_the_stale_one_ends_and_publishes_nothing(tmp_path):
    bench = Bench.make(tmp_path, plan_of("none", deadline_seconds=DEADLINE_SECONDS))
    stale = CoordinatorProcess(bench)
    dies = KillClient(place="before the upload", round=2)
    before = [ClientProcess(bench, number, stale.address) for number in range(2)]
    before.append(ClientProcess(bench, 2, stale.address, dies))
    after: list[ClientProcess] = []
    second = None
    try:
        # Round 2 has two of three updates; its deadline is the next write that is sure to come.
        poll(lambda: arrived(bench, stale.address) == (2, 2))
        pid = paused(stale)
        close_all(before)
        (Path(bench.coordinator_settings().coordinator.state) / "lock").unlink()
        second = CoordinatorProcess(bench)
        after = [ClientProcess(bench, number, second.address) for number in range(3)]
        os.kill(pid, signal.SIGCONT)
        assert stale.ended() != 0
        assert [client.answer() for client in after] == ["all rounds are published"] * 3
        complete(bench, second.address)
    finally:
        close_all([stale, *before, *after, *([] if second is None else [second])])
