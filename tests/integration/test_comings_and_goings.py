"""Clients that come late, go, and say goodbye."""

import re
import signal
import threading
import time
from contextlib import closing, contextmanager

import pytest
from world.bench import plan_of
from world.clock import DEADLINE_SECONDS, poll
from world.kits import Kits, commands, fedrec
from world.links import Gate
from world.parties import check_against_one_process
from world.plans import params

from fedrec.identity.certificates import Credentials
from fedrec.wire.admin_link import AdminLink

MEMBERS = range(3)


@pytest.mark.parametrize("protection", params("bfv", long=["none"]))
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


@pytest.mark.parametrize("protection", params("bfv", long=["none"]))
def test_late_joiners_take_a_snapshot_and_then_part(found, protection):
    federation = found(plan_of(protection, 3), 5)
    gate = Gate(4)
    makers = [federation.client(number) for number in range(2)]
    federation.client(2, wrap=gate)
    with gate:
        assert gate.reached.wait(DEADLINE_SECONDS)
        federation.until_waiting(0, 1)
        federation.client(3)
        federation.until_waiting(3)
        poll(lambda: federation.coordinator.engine.run.store.snapshot())
        second = federation.client(4)
        assert second.wait_for("snapshot_taken").round == 3
        federation.until_waiting(4)
    counted = check_against_one_process(federation)
    assert counted[:3] == [{0, 1, 2}, {0, 1, 2}, {0, 1, 2}]
    assert counted[4] == {0, 1, 2, 3, 4}
    assert counted[3] == {0, 1, 2, 3, 4}
    sent = [event for maker in makers for event in maker.events if event.name == "snapshot_sent"]
    assert len(sent) == (2 if protection == "none" else 1)
    assert "published" not in {e.name for e in second.events if (e.round or 0) < 4}


def test_a_look_that_failed_does_not_end_all_deadlines(found):
    federation = found(plan_of("none", 3, total=1), 4)
    engine = federation.coordinator.engine
    failed = threading.Event()
    advance = engine.advance

    async def fail_once():
        if not failed.is_set():
            failed.set()
            raise OSError("the disk of the log is full")
        await advance()

    gate = Gate(2)
    federation.client(3, wrap=gate)
    federation.until_waiting(3)
    members = [federation.client(number) for number in MEMBERS]
    with gate:
        for member in members:
            member.wait_for("sent", 2)
        engine.advance = fail_once  # type: ignore[method-assign]
        assert failed.wait(DEADLINE_SECONDS)
        federation.clock.jump(federation.bench.plan.rounds.deadline_seconds)
        members[0].wait_for("published", 2)
    check_against_one_process(federation)


GUEST = "e"
STOPPED = 130


@contextmanager
def operator(kits):
    own = Credentials.load(kits.path / "authority" / "operator.pem", "operator.pem")
    with closing(AdminLink(kits.address, own)) as link:
        yield link


def member(found, name):
    return next(one for one in found.members if one.name == name)


def stop_in_a_round(link, name, client):
    """Stop a client of which the round in progress has everything to expect yet."""
    client.process.send_signal(signal.SIGSTOP)
    poll(lambda: link.status().current and link.status().awaited == (name,), "a round waits")
    client.process.send_signal(signal.SIGTERM)
    client.process.send_signal(signal.SIGCONT)
    assert client.process.wait(60) == STOPPED, client.output


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("protection", ["bfv", "masks"])
def test_a_guest_stops_and_a_core_member_stops(tmp_path, protection):
    """The deadline, ten minutes, is never waited for, nor what a step under masks may take."""
    slow = {"deadline_seconds": 600.0, "protection": protection}
    with commands() as start:
        kits = Running(tmp_path, start, **slow)
        with operator(kits) as link:
            last = kits.until(5)
            stop_in_a_round(link, GUEST, kits.running[GUEST])
            assert member(link.status(), GUEST).state == "stopped"
            began = time.monotonic()
            last = kits.until(4, after=last)
            waited = time.monotonic() - began
            assert waited < 60, waited
            kits.running[GUEST] = kits.client(GUEST, f"{GUEST} again")
            last = kits.until(5, after=last)
            assert link.status().clients_here == 5

            kits.running["d"].process.send_signal(signal.SIGTERM)
            assert kits.running["d"].process.wait(60) == STOPPED
            status = member(link.status(), "d")
            assert status.state == "stopped" and status.last_counted >= last - 3
            shown = start(tmp_path / "clients.log", "clients", kits.address, *asked(kits))
            assert shown.ended() == 0, shown.output
            assert any(line.split()[:2] == ["d", "stopped"] for line in shown.out.splitlines())

            broken = kits.client("d", "d broken", "--data", "nowhere.csv")
            assert broken.ended() != 0
            status = member(link.status(), "d")
            assert status.state in ("stopped", "cannot_start") and "[" in status.why, status
            kits.running["d"] = kits.client("d", "d again")
            kits.until(5, after=link.status().published_round)
            found = link.status()
            assert found.clients_here == 5, found.members
        for name in "abcde":
            assert kits.running[name].process.poll() is None, kits.running[name].output
        assert list(kits.folder.rglob("audit.jsonl")) == [], "nothing had to be refused"


def asked(kits):
    """Return how an operator's command is told who asks."""
    return "--operator", str(kits.path / "authority" / "operator.pem")


CLIENTS = "abcde"
ROUNDS = 300


class Running(Kits):
    """The kits of five clients, and the processes that were started from them."""

    def __init__(self, folder, start, *, deadline_seconds=5.0, protection="bfv"):
        super().__init__(
            folder, start, clients=CLIENTS, protection=protection, total=ROUNDS,
            rounds=f"deadline_seconds = {deadline_seconds}", parties=f'go_on = ["{GUEST}"]',
        )  # fmt: skip
        self.folder = folder
        self.coordinator()
        self.authority()
        self.running = {name: self.client(name) for name in CLIENTS}

    def until(self, counted, *, after=0, rounds=3):
        """Wait for so many rounds in a row over so many clients; return the last one's number."""

        def seen():
            last = [found for found in self._counted() if found[0] > after][-rounds:]
            return last[-1][0] if [n for _, n in last] == [counted] * rounds else 0

        return poll(seen, f"{rounds} rounds over {counted} clients")

    def _counted(self):
        log = (self.folder / "coordinator.log").read_text()
        found = re.findall(r"round published .*counted=(\d+) .*round=(\d+)", log)
        return [(int(number), int(counted)) for counted, number in found]


@pytest.mark.slow
@pytest.mark.long
def test_a_guest_is_killed_and_comes_back_and_a_core_member_leaves_for_good(tmp_path, monkeypatch):
    with commands() as start:
        kits = Running(tmp_path, start)
        last = kits.until(len(CLIENTS))
        kits.running[GUEST].process.kill()
        last = kits.until(4, after=last)
        kits.running[GUEST] = kits.client(GUEST, f"{GUEST} again")
        last = kits.until(len(CLIENTS), after=last)
        monkeypatch.setenv("FEDREC_CLIENT__COORDINATOR", kits.address)
        fedrec(tmp_path, "client", "leave", str(kits.path / "clients" / "d" / "client.toml"))
        kits.running["a"].wait_for("key epoch 3")
        kits.running["d"].process.kill()
        kits.until(4, after=last)
        for name in "abce":
            assert kits.running[name].process.poll() is None, kits.running[name].output
            assert "Traceback" not in kits.running[name].output
        assert list(kits.folder.rglob("audit.jsonl")) == [], "nothing had to be refused"
