"""Updates that come too late, and clients that join when the run is on its way."""

from __future__ import annotations

import threading

import pytest
from integration.support.bench import plan_of
from integration.support.checks import check_against_one_process
from integration.support.links import DEADLINE_SECONDS, Gate, Passing, poll

from fedrec.wire.chunks import Blob
from fedrec.wire.link import Link
from fedrec.wire.messages import Report

MEMBERS = range(3)


class FirstCopyIsWrong:
    """Sends rubbish in place of the first copy of the model, under a true statement."""

    def __init__(self) -> None:
        self.copies: list[bytes] = []

    def __call__(self, link: Link) -> Link:
        copies = self.copies

        class Wrong(Passing):
            def submit_snapshot(self, report: Report, blob: bytes) -> None:
                copies.append(blob)
                super().submit_snapshot(report, blob[::-1] if len(copies) == 1 else blob)

        return Wrong(link)


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_an_update_that_comes_too_late_is_rolled_back(found, protection):
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
    # Who let a round pass is left out of the next one.
    assert counted[3] == {0, 1, 2}
    assert late.wait_for("closed", 3).detail == "closed"


def test_who_is_left_is_counted_again(found):
    """Denominators are those of the clients that train; rows are those of the first count."""
    first, left = frozenset(range(4)), frozenset(range(2))
    federation = found(plan_of("none", len(left), algorithm="fedals"), len(first))
    until_all_are_here, until_they_are_back = Gate(1), Gate(5)
    gates = [Gate(3) for _ in first - left]
    clients = [
        federation.client(0, wrap=lambda link: until_they_are_back(until_all_are_here(link)))
    ]
    federation.until_waiting(0)
    clients += [federation.client(number) for number in sorted(left - {0})]
    for number, gate in zip(sorted(first - left), gates, strict=True):
        clients.append(federation.client(number, wrap=gate))
    try:
        for client in clients[1:]:
            client.wait_for("sent", 1)
        until_all_are_here.opened.set()
        for client in clients[: len(left)]:
            client.wait_for("sent", 3)
        for gate in gates:
            assert gate.reached.wait(DEADLINE_SECONDS)
        federation.clock.jump(federation.bench.plan.rounds.deadline_seconds)
        assert until_they_are_back.reached.wait(DEADLINE_SECONDS)
        for gate in gates:
            gate.opened.set()
        federation.until_waiting(*(first - left))
    finally:
        for gate in (until_all_are_here, until_they_are_back, *gates):
            gate.opened.set()
    counted = check_against_one_process(federation)
    published = federation.published()
    assert [(one.round, one.kind) for one in published] == [
        (1, "count"), (2, "train"), (4, "count"), (5, "train"), (6, "count"), (7, "train"),
        (8, "evaluate"),
    ]  # fmt: skip
    assert counted == [first, first, left, left, first, first, first]


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_late_joiners_take_a_snapshot_and_then_part(found, protection):
    federation = found(plan_of(protection, 3), 5)
    gate = Gate(4)
    makers = [federation.client(number) for number in range(2)]
    federation.client(2, wrap=gate)
    try:
        assert gate.reached.wait(DEADLINE_SECONDS)
        federation.until_waiting(0, 1)
        federation.client(3)
        federation.until_waiting(3)
        poll(lambda: federation.coordinator.engine.run.store.snapshot())
        second = federation.client(4)
        assert second.wait_for("snapshot_taken").round == 3
        federation.until_waiting(4)
    finally:
        gate.opened.set()
    counted = check_against_one_process(federation)
    assert counted[:3] == [{0, 1, 2}, {0, 1, 2}, {0, 1, 2}]
    assert counted[4] == {0, 1, 2, 3, 4}
    assert counted[3] == {0, 1, 2, 3, 4}
    sent = [event for maker in makers for event in maker.events if event.name == "snapshot_sent"]
    assert len(sent) == (2 if protection == "none" else 1)
    assert "published" not in {e.name for e in second.events if (e.round or 0) < 4}


@pytest.mark.long
@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_a_client_that_is_behind_by_fifty_versions(found, protection):
    """It takes each of them, or a copy where their sums are kept no more, and then part."""
    missed = 50
    federation = found(plan_of(protection, 3, total=missed + 4), 4)
    gate, until_it_is_back = Gate(3), Gate(3 + missed)
    away = federation.client(3, wrap=gate)
    members = [federation.client(0, wrap=until_it_is_back)]
    members += [federation.client(number) for number in MEMBERS[1:]]
    try:
        assert gate.reached.wait(DEADLINE_SECONDS)
        for member in members:
            member.wait_for("sent", 3)
        gate.opened.set()
        away.stop()
        federation.clients.remove(away)
        federation.clock.jump(federation.bench.plan.rounds.deadline_seconds)
        assert until_it_is_back.reached.wait(DEADLINE_SECONDS)
        back = federation.client(3)
        federation.until_waiting(3)
    finally:
        gate.opened.set()
        until_it_is_back.opened.set()
    if protection == "none":
        counted = [len(clients) for clients in check_against_one_process(federation)]
        told = [event.round for event in back.events if event.name == "published"]
        assert told == list(range(told[0], missed + 7)) and told[0] <= 3
    else:
        assert {client.result().version for client in federation.clients} == {missed + 6}
        counted = [e.fields["counted"] for e in federation.journal() if e.kind == "round published"]
        assert back.wait_for("snapshot_taken").round == missed + 2
        assert len({federation.bench.model(number) for number in range(4)}) == 1
    # Under encryption its update may have been on its way when it went.
    assert counted[3 : missed + 2] == [3] * (missed - 1)
    assert counted[-3:] == [4, 4, 4]


def test_a_wrong_copy_of_the_model_is_passed_over_and_made_again(found):
    """Nobody but a joiner can tell; it takes the rounds, and others have a better copy made."""
    federation = found(plan_of("bfv", 3), 6)
    store = federation.coordinator.engine.run.store
    gate, makers = Gate(4), FirstCopyIsWrong()
    for number in range(2):
        federation.client(number, wrap=makers)
    federation.client(2, wrap=gate)
    try:
        assert gate.reached.wait(DEADLINE_SECONDS)
        federation.until_waiting(0, 1)
        late = [federation.client(3)]
        wrong = poll(lambda: store.snapshot())
        assert wrong is not None
        federation.until_waiting(3)
        for number in (4, 5):
            late.append(federation.client(number))
            federation.until_waiting(number)
        poll(lambda: store.snapshot() != wrong)
        better = store.snapshot()
        assert better is not None
    finally:
        gate.opened.set()
    counted = check_against_one_process(federation)
    assert counted[:3] == [{0, 1, 2}, {0, 1, 2}, {0, 1, 2}]
    # Whoever made it: all who have the model make the same bytes of it.
    assert better.blob == Blob.of(makers.copies[0])
    told = [event.name for client in late for event in client.events]
    assert "snapshot_refused" in told and "published_round_refused" not in told


def test_a_look_that_failed_does_not_end_all_deadlines(found):
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
