"""The key authority is away for a while: rounds wait, nobody ends, and all goes on by itself."""

from __future__ import annotations

import os
import threading
from contextlib import closing

import pytest
from integration.support.authority import AuthorityProcess
from integration.support.bench import Bench, merged, plan_of
from integration.support.checks import check_against_one_process
from integration.support.children import ClientProcess, CoordinatorProcess, close_all
from integration.support.links import poll
from integration.support.parties import operators_link

from fedrec.ids import RoundId

AWAY_SECONDS = float(os.environ.get("FEDREC_TEST_AWAY_SECONDS", "60"))
"""How long the long form really is without an authority; ten minutes are 600."""
ROUND_DEADLINE = 5.0


def test_ten_minutes_of_the_coordinators_clock(found):
    plan = plan_of("bfv", key_holder="authority", deadline_seconds=120.0)
    federation = found(plan)
    authority = AuthorityProcess(federation.bench, federation.address)
    try:
        clients = federation.start_all()
        authority.wait_for("sum revealed", 1)
        authority.kill()
        engine = federation.coordinator.engine

        def waiting() -> RoundId:
            round_ = engine.run.state.current
            return RoundId(0 if round_ is None or round_.phase != "revealing" else round_.number)

        number = poll(waiting)
        for _ in range(10):
            federation.clock.jump(60.0)
            federation.tick()
        assert waiting() == number and engine.run.state.abandoned == 0
        ended = {"finished", "abandoned"}
        assert not [e for c in clients for e in c.events if e.name in ended]
    finally:
        authority.close()
    authority = AuthorityProcess(federation.bench, federation.address)
    try:
        check_against_one_process(federation)
    finally:
        authority.close()
    assert federation.bench.model(0) == merged().model


@pytest.mark.long
@pytest.mark.timeout(AWAY_SECONDS + 600)
def test_really_away(tmp_path):
    """Every party is a process, and time passes as it does."""
    plan = plan_of("bfv", key_holder="authority", deadline_seconds=ROUND_DEADLINE)
    bench = Bench.make(tmp_path, plan)
    coordinator = CoordinatorProcess(bench)
    children = [coordinator]
    authority = AuthorityProcess(bench, coordinator.address)
    try:
        clients = [ClientProcess(bench, number, coordinator.address) for number in range(3)]
        children += clients  # type: ignore[arg-type]
        authority.wait_for("sum revealed", 1)
        authority.kill()
        threading.Event().wait(AWAY_SECONDS)
        assert all(child.process.is_alive() for child in children)
        with closing(operators_link(bench, coordinator.address)) as link:
            status = link.status()
            abandoned = [e for e in link.events(follow=False) if e.kind == "round abandoned"]
        assert not status.finished and not abandoned
        authority.close()
        authority = AuthorityProcess(bench, coordinator.address)
        for client in clients:
            assert client.told() == "all rounds are published"
    finally:
        authority.close()
        close_all(children)
    assert {bench.model(number) for number in range(3)} == {merged().model}
