"""Updates that come too late, and clients that join when the run is on its way."""

from __future__ import annotations

import threading

import pytest
from integration.conftest import Found
from integration.support.bench import plan_of
from integration.support.checks import check_against_one_process
from integration.support.links import DEADLINE_SECONDS, Passing, poll

from fedrec.wire.link import Link
from fedrec.wire.messages import UploadHeader

MEMBERS = range(3)


class Gate:
    """Holds one client's update of one round until it is opened."""

    def __init__(self, round_id: int) -> None:
        self._round = round_id
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, link: Link) -> Link:
        gate = self

        class Held(Passing):
            def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
                if header.round == gate._round:
                    gate.reached.set()
                    assert gate.opened.wait(DEADLINE_SECONDS)
                return super().submit_update(header, payload)

        return Held(link)


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_an_update_that_comes_too_late_is_rolled_back(found: Found, protection: str) -> None:
    federation = found(plan_of(protection, 3), 4)
    gate, until_it_is_back = Gate(3), Gate(4)
    late = federation.client(3, wrap=gate)
    federation.until_waiting(3)
    members = [federation.client(0, wrap=until_it_is_back)]
    members += [federation.client(number) for number in MEMBERS[1:]]
    try:
        for member in members:
            member.wait_for("sent", 3)
        assert gate.reached.wait(DEADLINE_SECONDS)
        federation.clock.jump(federation.bench.plan.rounds.deadline_seconds)
        members[0].wait_for("published", 3)
        gate.opened.set()
        federation.until_waiting(3)
    finally:
        gate.opened.set()
        until_it_is_back.opened.set()
    counted = check_against_one_process(federation)
    assert counted[1] == counted[4] == {0, 1, 2, 3}
    assert counted[2] == {0, 1, 2}
    # Under encryption it waits for the round after, where it ranks before this one's committee.
    assert counted[3] - {3} == {0, 1, 2} and (3 in counted[3] or protection == "bfv")
    assert late.wait_for("closed", 3).detail == "closed"


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_late_joiners_take_a_snapshot_and_then_part(found: Found, protection: str) -> None:
    federation = found(plan_of(protection, 3), 5)
    gate = Gate(4)
    makers = [federation.client(number) for number in range(2)]
    federation.client(2, wrap=gate)
    try:
        assert gate.reached.wait(DEADLINE_SECONDS)
        federation.until_waiting(0, 1)
        federation.client(3)
        federation.until_waiting(3)
        poll(lambda: federation.coordinator.engine.store.snapshot())
        second = federation.client(4)
        assert second.wait_for("snapshot_taken").round == 3
        federation.until_waiting(4)
    finally:
        gate.opened.set()
    counted = check_against_one_process(federation)
    assert counted[:3] == [{0, 1, 2}, {0, 1, 2}, {0, 1, 2}]
    assert counted[4] == {0, 1, 2, 3, 4}
    # Under encryption who ranks before the round's committee waits for the one after.
    assert counted[3] == {0, 1, 2, 3, 4} or (protection == "bfv" and counted[3] >= {0, 1, 2})
    sent = [event for maker in makers for event in maker.events if event.name == "snapshot_sent"]
    assert len(sent) == (2 if protection == "none" else 1)
    assert "published" not in {e.name for e in second.events if (e.round or 0) < 4}


def test_a_look_that_failed_does_not_end_all_deadlines(found: Found) -> None:
    federation = found(plan_of("none", 3, total=1), 4)
    engine = federation.coordinator.engine
    failed = threading.Event()
    advance = engine.advance

    async def fail_once() -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("the disk of the log is full")
        await advance()

    gate = Gate(2)
    federation.client(3, wrap=gate)
    federation.until_waiting(3)
    members = [federation.client(number) for number in MEMBERS]
    try:
        for member in members:
            member.wait_for("sent", 2)
        engine.advance = fail_once  # type: ignore[method-assign]
        assert failed.wait(DEADLINE_SECONDS)
        federation.clock.jump(federation.bench.plan.rounds.deadline_seconds)
        members[0].wait_for("published", 2)
    finally:
        gate.opened.set()
    check_against_one_process(federation)
