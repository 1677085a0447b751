"""Clients that share the key: the ciphertext sum is published, and each tells what is in it."""

import pytest
from world.bench import federal, merged, plan_of
from world.clock import DEADLINE_SECONDS, poll
from world.links import Gate, Misreporting, Passing
from world.parties import check_against_one_process

from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.plan.layout import protection_of
from fedrec.wire.messages import Report
from fedrec_server import engine
from fedrec_server.run.presence import LIVE_SECONDS

EVERY = range(1, 100)


def check_finished(federation):
    """All clients ended with the model of an undisturbed run."""
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    assert not [event for event in federation.journal() if event.kind == "round abandoned"]
    bench = federation.bench
    assert {bench.model(number) for number in range(bench.n_clients)} == {merged().model}


def lying(federation, number, *, silent):
    who = Identity.load(federation.bench.state(number))
    return lambda link: Misreporting(link, who, EVERY, bit=1 << number, silent=silent)


class Reports(Passing):
    """Keeps what a client reports."""

    def __init__(self, link, kept):
        super().__init__(link)
        self._kept = kept

    def submit_report(self, report):
        self._kept.append(report)
        self.link.submit_report(report)


def test_each_client_sends_one_report_a_round(found):
    federation = found(plan_of("bfv"))
    kept: list[Report] = []
    federation.start_all(wrap=lambda link: Reports(link, kept))
    check_finished(federation)
    assert federal(federation.metrics()) == federal(merged().metrics)
    of = [(report.round, report.client_id) for report in kept]
    assert len(set(of)) == len(of) == 3 * 5
    assert all(published.statement is None for published in federation.published())
    seen = [event for client in federation.clients for event in client.events]
    assert len([event for event in seen if event.name == "revealed"]) == 3 * 5


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "lying"])
def test_two_that_say_the_same_are_enough(found, silent):
    """Whatever the third says about any round, the metrics shown are the others'."""
    federation = found(plan_of("bfv"))
    federation.client(0, wrap=lying(federation, 0, silent=silent))
    federation.client(1)
    federation.client(2)
    check_finished(federation)
    assert federal(federation.metrics()) == federal(merged().metrics)


@pytest.mark.parametrize("version", [0, 2])
def test_who_is_too_far_behind_takes_a_copy_that_two_reports_name(found, monkeypatch, version):
    monkeypatch.setattr(engine, "KEPT_SUMS", 2)
    federation = found(plan_of("bfv", 3, total=7), 4)
    gate, last = Gate(3), 7
    gates = [gate, Gate(last)]

    def gated(link):
        return gates[0](gates[1](link))

    try:
        members = [federation.client(0, wrap=gated), federation.client(1), federation.client(2)]
        if version:
            away = federation.client(3)
            away.wait_for("published", version)
            away.stop()
            # It counts as present for a while, and a round would wait for it.
            federation.clock.jump(LIVE_SECONDS + 1)
            federation.until_waiting(1, 2)
        gates[0].opened.set()
        poll(lambda: _away(federation, last))
        assert gates[1].reached.wait(DEADLINE_SECONDS)
        federation.until_waiting(1, 2)
        back = federation.client(3)
        assert back.wait_for("snapshot_taken").round == last - 1
        assert "published" not in {event.name for event in back.events}
    finally:
        for gate in gates:
            gate.opened.set()
    for client in (*members, back):
        assert client.result().reason == "all rounds are published"
    bench = federation.bench
    assert len({bench.model(number) for number in range(4)}) == 1
    # A client that has to fetch what is gone is given nothing.
    assert federation.published() == []
    store = federation.coordinator.engine.run.store
    assert [bool(store.published(RoundId(n)).name) for n in range(1, 10)] == (  # type: ignore[union-attr]
        [False] * 7 + [True] * 2
    )


def _away(federation, last):
    """Let time pass until the last round has begun: a missing client may be waited for."""
    state = federation.coordinator.engine.run.state
    if state.current is not None and len(state.current.accepted) >= 3:
        federation.clock.jump(federation.bench.plan.rounds.deadline_seconds)
    return state.published >= last - 1


def test_more_clients_than_an_authority_would_add_up(found):
    """No party adds updates up but the coordinator, and sums carry no tags."""
    plan = plan_of("bfv", 5, recompute_limit=3, clients_per_round=5)
    federation = found(plan, 5)
    assert protection_of(plan, 24).chosen.n_tags == 0
    federation.start_all()
    check_against_one_process(federation)
