"""The key authority, and what happens while it is away."""

import base64
import json
import os
import threading
from contextlib import closing

import pytest
from world.bench import N_ITEMS, Alone, Bench, clear_plan, federal, merged, plan_of
from world.children import ClientProcess, CoordinatorProcess, close_all
from world.clock import DEADLINE_SECONDS, poll
from world.links import TRICKS, Falsifier, Gate
from world.parties import AuthorityProcess, check_against_one_process, operators_link
from world.plans import params

from fedrec.cli.operating import status_rows
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.epoch import KeyEpoch
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.travelling_rows import ROW_STEP
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.revealer import STATE_FOLDER
from fedrec_lab.audit.wire import audit_wire
from fedrec_server.service.wire_recorder import WireRecorder


@pytest.mark.parametrize("protection", params("bfv", "ckks", long=["paillier"]))
def test_the_same_bits_as_one_process(found, revealing, tmp_path, protection):
    recorder = WireRecorder(tmp_path / "recording", max_bytes=1 << 30)
    federation = found(plan_of(protection, key_holder="authority"), recorder=recorder)
    events = revealing(federation)
    federation.start_all()
    check_against_one_process(federation)
    assert federal(federation.metrics()) == federal(merged().metrics)
    assert {federation.bench.model(n) for n in range(3)} == {merged().model}
    rounds = federation.published()
    revealer = AuthorityFolder(federation.bench.workspace.folder / "keys").revealer.load()
    for published in rounds:
        assert published.statement.client_id == revealer.client_id
    opened = [event.round for event in events if event.name == "sum revealed"]
    assert opened == [published.round for published in rounds]
    check_secret_stayed(federation.bench)
    assert not [e for c in federation.clients for e in c.events if e.name == "revealing"]
    revealing.stop()  # type: ignore[attr-defined]
    federation.stop()
    report = audit_wire(
        federation.bench.coordinator_settings(),
        recording=tmp_path / "recording",
        truth=[state.parent for state in federation.bench.workspace.client_states],
    )
    assert report.problems == () and report.holds
    assert (report.updates, report.readable_updates) == (15, 0)
    assert (report.published, report.published_readable) == (5, 0)
    assert (report.context_problem, report.found) == ("", {})


def check_secret_stayed(bench):
    """No party but the authority has the secret key in a file; the coordinator's are all read."""
    own = AuthorityFolder(bench.workspace.folder / "keys").private
    secret = AuthorityFolder(bench.workspace.folder / "keys").revealer.secret_of(1)
    content = secret[-1000:]
    forms = (content, base64.b64encode(secret)[-1000:])
    files = [path for path in bench.workspace.folder.rglob("*") if path.is_file()]
    having = [path for path in files if any(form in path.read_bytes() for form in forms)]
    assert having == [own / "revealer" / "epoch-00000001.secret"]


def test_more_updates_than_it_adds_up(found, revealing):
    plan = plan_of("bfv", 5, key_holder="authority", recompute_limit=3)
    federation = found(plan, 5)
    revealing(federation)
    federation.start_all()
    check_against_one_process(federation)


@pytest.mark.parametrize("limit", [64, 3], ids=["added up", "fetched"])
def test_indices_in_the_clear(found, revealing, limit):
    """Members encrypt with the modulus alone, and the authority knows sums by their tags."""
    plan = clear_plan(
        key_holder="authority",
        total=1,
        minimum_clients=4,
        recompute_limit=limit,
    )
    federation = found(plan, 4, bench=Alone)
    revealing(federation)
    federation.start_all()
    check_against_one_process(federation)


def test_a_silent_authority(found):
    """A closed round waits until it is started again, however long; nothing is trained again."""
    federation = found(plan_of("bfv", key_holder="authority"))
    engine = federation.coordinator.engine
    authority = AuthorityProcess(federation.bench, federation.address)
    gate = Gate(2)
    try:
        federation.client(0, wrap=gate)
        federation.client(1)
        federation.client(2)
        assert gate.reached.wait(3 * DEADLINE_SECONDS)
        authority.kill()
        gate.opened.set()
        poll(lambda: [e for e in federation.journal() if (e.kind, e.round) == ("sum made", 2)])
        closed = engine.run.state.current
        for _ in range(3):
            federation.clock.jump(30 * 86_400.0)
            poll(lambda: engine.run.presence.live() >= engine.run.federation.roster)
            assert engine.run.state.current == closed
        with closing(operators_link(federation.bench, federation.address)) as link:
            (now,) = (text for name, text in status_rows(link.status()) if name == "now")
        assert now.startswith("round 2 is complete and waits for the key authority, last heard ")
        authority.close()
        authority = AuthorityProcess(federation.bench, federation.address)
        check_against_one_process(federation)
    finally:
        gate.opened.set()
        authority.close()
    assert _ABANDONED not in {event.kind for event in federation.journal()}
    assert {federation.bench.model(n) for n in range(3)} == {merged().model}
    trained = [
        e for c in federation.clients for e in c.events if (e.name, e.round) == ("trained", 2)
    ]
    assert len(trained) == 3


@pytest.mark.parametrize("protection", params("bfv", long=["ckks", "paillier"]))
def test_one_clients_ciphertext_is_not_a_sum(found, revealing, protection):
    """A coordinator plays every trick over sockets; then it lets the honest task through."""
    plan = plan_of(protection, key_holder="authority")
    federation = found(plan)
    bench, protecting = federation.bench, protection_of(plan, N_ITEMS)
    epoch = KeyEpoch.load(bench.workspace.epoch)

    def empty():
        # Of a round after the count, which is the first that is attacked.
        spec = Layout.of(plan, ROW_STEP).vector_spec
        return protecting.over(spec).accumulator(epoch.server_context)

    state = AuthorityFolder(bench.workspace.folder / "keys").revealer.folder / STATE_FOLDER
    links: list[Falsifier] = []

    def hostile(link):
        links.append(Falsifier(link, state=state, make=empty))
        return links[-1]

    revealing(federation, wrap=hostile)
    federation.start_all()
    check_against_one_process(federation)
    (link,) = links
    assert link.tried == [trick.__name__ for trick in TRICKS]
    assert link.revealed == [], "a sum was revealed that is one client's update"
    assert link.opened == [], "the key was used on a sum that is one client's update"
    refused = [json.loads(line) for line in (state / AUDIT_FILE).read_text().splitlines()]
    assert {line["code"] for line in refused} == {"reveal_refused"}
    assert len(refused) == len(link.declined) == len(TRICKS)
    assert federation.coordinator.engine.run.state.abandoned == 0


_ABANDONED = "round abandoned"


AWAY_SECONDS = float(os.environ.get("FEDREC_TEST_AWAY_SECONDS", "60"))
"""How long the long form really is without an authority; ten minutes are 600."""
ROUND_DEADLINE = 5.0


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
            assert client.answer() == "all rounds are published"
    finally:
        authority.close()
        close_all(children)
    assert {bench.model(number) for number in range(3)} == {merged().model}
