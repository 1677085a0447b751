"""A model for each client, over gRPC: lost processes, absent clients, wrong values."""

from __future__ import annotations

import mmap
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from world.bench import KINDS, N_ALONE, N_ITEMS, Alone, accepted, apart_plan, compute
from world.children import (
    Child,
    ClientProcess,
    CoordinatorProcess,
    KillClient,
    KillCoordinator,
    close_all,
)
from world.clock import DEADLINE_SECONDS, poll
from world.links import Passing
from world.parties import (
    Client,
    check_against_one_process,
    operators_link,
    published_rounds,
)
from world.plans import params

from fedrec.errors import DamagedFile, ProtocolError, RefusedError, RoundError, WrongIdentity
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.plan.price import price
from fedrec.training.personalising import personalise
from fedrec.wire.v1.coordinator_pb2 import FetchOwnModelRequest
from fedrec_client.connecting import open_link
from fedrec_lab.audit.wire import audit_wire
from fedrec_server.service.wire_recorder import WireRecorder
from fedrec_server.store.durable_files import own_models_name

SUMMED = (
    KillCoordinator(failpoint="folder.synced", round=2, phase="summing"),
    KillCoordinator(failpoint="rows.commit", round=3, phase="summing"),
    KillCoordinator(failpoint="rows.committed", round=4, phase="summing"),
)
FETCHED = (
    KillClient(place="after its own model", round=2),
    KillClient(place="after its own model", round=4),
)
ALL = frozenset(range(4))


def models(state: Path) -> list[str]:
    """Return the rounds of the clients' files in a coordinator's folder, and their clients."""
    return sorted(path.name[:73] for path in (state / "models").iterdir())


@pytest.mark.slow
def test_coordinator_and_client_killed_around_the_models(tmp_path):
    """With some of the files, with all of an unpublished round, and while they are fetched."""
    bench = Alone.make(tmp_path, apart_plan("pfedgraph", 4), 4)
    children: list[Child] = []
    clients: list[Client] = []
    try:
        children.append(CoordinatorProcess(bench, kill=SUMMED[0]))
        coordinator = children[-1]
        address = coordinator.address
        clients += [Client(bench.client_settings(number, address)) for number in range(3)]
        victim: Child = ClientProcess(bench, 3, address, FETCHED[0])
        children.append(victim)
        for killed, following in zip(SUMMED, [*SUMMED[1:], None], strict=True):
            assert coordinator.ended(killed) == -signal.SIGKILL, killed
            port = int(address.rpartition(":")[2])
            coordinator = CoordinatorProcess(bench, kill=following, port=port)
            children.append(coordinator)
            if killed is SUMMED[0]:
                assert victim.ended(FETCHED[0]) == -signal.SIGKILL
                victim = ClientProcess(bench, 3, address, FETCHED[1])
                children.append(victim)
        assert victim.ended(FETCHED[1]) == -signal.SIGKILL
        victim = ClientProcess(bench, 3, address)
        children.append(victim)
        assert victim.answer() == "all rounds are published"
        for client in clients:
            assert client.result().reason == "all rounds are published"
        rounds = accepted(bench, published_rounds(bench, address))
    finally:
        for client in clients:
            client.stop()
        close_all(children)
    assert [played.clients for played in rounds] == [ALL] * 5
    wanted = compute(bench.plan, bench.users(), rounds)
    for number in range(4):
        assert bench.model(number) == wanted.model
        kept = bench.private(number).tensors
        assert all(
            np.array_equal(kept[name], values)
            for name, values in wanted.private[number].tensors.items()
        )


def test_a_late_joiner_and_a_client_that_is_away_keep_what_they_have(found):
    """Seven of eight are enough. The last one comes when two rounds have trained."""
    federation = found(apart_plan("gpfedrec", N_ALONE - 1), N_ALONE, bench=Alone)
    for number in range(N_ALONE - 1):
        federation.client(number)
    federation.clients[0].wait_for("published", 3)
    federation.client(N_ALONE - 1)
    counted = check_against_one_process(federation)
    assert counted[:3] == [frozenset(range(N_ALONE - 1))] * 3


def test_a_model_waits_for_a_client_that_others_go_on_without(found):
    reached, opened = threading.Event(), threading.Event()

    class Held(Passing):
        def own_model(self, client_id, run, round_id, parameter):
            reached.set()
            assert opened.wait(DEADLINE_SECONDS)
            return self.link.own_model(client_id, run, round_id, parameter)

    federation = found(apart_plan("pfedgraph", N_ALONE - 1), N_ALONE, bench=Alone)
    last = N_ALONE - 1
    federation.client(last, wrap=Held)
    for number in range(last):
        federation.client(number)
    assert reached.wait(DEADLINE_SECONDS)
    for client in federation.clients[1:]:
        client.wait_for("sent", 3)
    federation.clock.jump(federation.bench.plan.rounds.deadline_seconds)
    federation.tick()
    federation.clients[1].wait_for("published", 3)
    opened.set()
    counted = check_against_one_process(federation)
    assert last in counted[1] and last not in counted[2]


@pytest.mark.parametrize(
    "algorithm", params("pfedgraph", long=["gpfedrec", "perfedrec", "cofedrec"])
)
def test_a_cohort_of_one(found, algorithm):
    federation = found(apart_plan(algorithm, 1), 1, bench=Alone)
    federation.client(0)
    check_against_one_process(federation)


@pytest.mark.parametrize("algorithm", params("plgc-perfedrec", long=["plgc-gpfedrec"]))
def test_plgc_around_it_in_a_cohort_of_several(found, algorithm):
    federation = found(apart_plan(algorithm, 4), 4, bench=Alone)
    for number in range(4):
        federation.client(number)
    assert check_against_one_process(federation) == [ALL] * 5


@pytest.fixture
def made(monkeypatch):
    """Hold a server that makes models until `made.go_on()`. `made.begun` is set meanwhile.

    With `made.written`, it is held after it wrote them.
    """

    class Made:
        begun = threading.Event()
        go_on = staticmethod(lambda: True)
        written = False

    def waiting(*args):
        found = personalise(*args) if Made.written else None
        Made.begun.set()
        poll(Made.go_on)
        return personalise(*args) if found is None else found

    monkeypatch.setattr("fedrec_server.uploads.own_models.personalise", waiting)
    return Made


def test_status_and_stop_are_answered_while_models_are_made(found, made):
    """The round is published, and the run ends with it."""
    stopped = threading.Event()
    made.go_on = stopped.is_set
    federation = found(apart_plan("gpfedrec", 2, total=3), 2, bench=Alone)
    clients = federation.start_all()
    assert made.begun.wait(DEADLINE_SECONDS)
    operator = operators_link(federation.bench, federation.address)
    try:
        assert operator.status().current.phase == "summing"
        assert operator.stop_run() == "The run ends with the round in progress."
        assert not operator.status().finished
    finally:
        stopped.set()
        operator.close()
    assert {client.result().reason for client in clients} == {"the operator stopped the run"}
    assert [played.kind for played in federation.published()] == ["count", "train"]


@pytest.mark.parametrize("written", [False, True])
def test_a_run_that_ends_at_once_makes_no_more_models(found, made, written):
    stopped = threading.Event()
    made.go_on, made.written = stopped.is_set, written
    federation = found(apart_plan("gpfedrec", 2, total=3), 2, bench=Alone)
    state = Path(federation.bench.coordinator_settings().coordinator.state)
    clients = federation.start_all()
    assert made.begun.wait(DEADLINE_SECONDS)
    client_id = Identity.load(federation.bench.state(0)).client_id
    (state / f"{own_models_name(RoundId(2), client_id)}-0").touch()
    operator = operators_link(federation.bench, federation.address)
    try:
        assert operator.stop_run(now=True).startswith("The run is over")
        assert operator.status().finish_reason == "the operator stopped the run"
    finally:
        stopped.set()
        operator.close()
    assert {client.result().reason for client in clients} == {"the operator stopped the run"}
    federation.stop_coordinator()
    assert models(state) == []


def test_a_coordinator_that_stops_makes_the_models_when_it_is_started_again(found, made):
    federation = found(apart_plan("gpfedrec", 2, total=1), 2, bench=Alone)
    run = federation.coordinator.engine.run
    made.go_on = lambda: run.stopping
    federation.start_all()
    assert made.begun.wait(DEADLINE_SECONDS)
    federation.stop_coordinator()
    made.go_on = lambda: True
    federation.start_again()
    check_against_one_process(federation)
    assert federation.journal()[-1].kind == "run finished"
    assert "round abandoned" not in {event.kind for event in federation.journal()}


def test_files_are_deleted_and_the_audit_knows_what_travelled(found, tmp_path):
    """A round has one file a parameter and client. While it is published there are two."""
    most, state, recording = [0], [], tmp_path / "recording"

    def look(name: str) -> None:
        if state and name == "folder.synced":
            most[0] = max(most[0], len(models(state[0])))

    recorder = WireRecorder(recording, max_bytes=1 << 30)
    options = {"bench": Alone, "failpoint": look, "recorder": recorder}
    federation = found(apart_plan("gpfedrec", 4), 4, **options)
    state.append(Path(federation.bench.coordinator_settings().coordinator.state))
    federation.start_all()
    check_against_one_process(federation)
    planned = price(federation.bench.plan, n_items=N_ITEMS, n_clients=4).down_bytes
    assert len(federation.published()[1].blob) + 4 * 4 * N_ITEMS <= planned
    federation.stop()
    assert 4 < most[0] <= 8
    assert models(state[0]) == []
    report = audit_wire(
        federation.bench.coordinator_settings(),
        recording=recording,
        truth=[folder.parent for folder in federation.bench.workspace.client_states],
    )
    assert report.problems == ()
    assert report.readable_updates == 4 * len(KINDS)
    assert report.published_readable == report.published == len(KINDS)


def test_a_client_fetches_its_own_model_alone(found):
    federation = found(apart_plan("gpfedrec", 4, total=1), 4, bench=Alone)
    federation.start_all()
    for client in federation.clients:
        client.result()
    bench = federation.bench
    me, other = (Identity.load(bench.state(number)).client_id for number in (0, 1))
    link = open_link(bench.client_settings(0, federation.address))
    run, name = link.federation(me).run, "smoothed_item_embedding"
    try:
        with pytest.raises(WrongIdentity):
            link.own_model(other, run, RoundId(2), name)
        with pytest.raises(ProtocolError):
            link.own_model(me, run, RoundId(2), "user_embedding")
        with pytest.raises(RoundError) as missing:
            link.own_model(me, run, RoundId(7), name)
        assert "not counted" not in str(missing.value) and "restore models/" in str(missing.value)
    finally:
        link.close()


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.slow
def test_models_that_a_member_asks_for_and_does_not_read_take_no_memory(found):
    federation = found(apart_plan("gpfedrec", 4, total=1), 4, bench=Alone)
    federation.start_all()
    for client in federation.clients:
        client.result()
    bench, values = federation.bench, bytes(32 << 20)
    me = Identity.load(bench.state(0)).client_id
    state = Path(bench.coordinator_settings().coordinator.state)
    path = state / "models" / f"{2:08d}-{me}-0"
    path.write_bytes(blake3(values).digest() + values)
    link = open_link(bench.client_settings(0, federation.address))
    asked = FetchOwnModelRequest(
        run=link.federation(me).run, round=2, client_id=me, parameter="smoothed_item_embedding"
    )
    before, calls = resident_bytes(), []
    try:
        for _ in range(10):
            calls.append(link._stub.FetchOwnModel(asked, timeout=DEADLINE_SECONDS))
            assert next(calls[-1]).blob.length == len(values)
        # gRPC's own buffers, of both sides in this process, are a third of that.
        assert resident_bytes() - before < 10 * len(values)
        for call in calls:
            call.cancel()
        assert link.own_model(me, asked.run, RoundId(2), asked.parameter) == values
        for damage in (b"", path.read_bytes()[:-1]):
            path.write_bytes(damage)
            with pytest.raises(DamagedFile):
                link.own_model(me, asked.run, RoundId(2), asked.parameter)
    finally:
        link.close()


class Lying(Passing):
    """Gives a client values that no server computes."""

    def own_model(self, *args):
        found = np.frombuffer(self.link.own_model(*args), dtype="<f4").copy()
        found[0] = np.nan
        return found.tobytes()


def test_values_that_no_server_computes_change_nothing(found):
    federation = found(apart_plan("perfedrec"), N_ALONE, bench=Alone)
    for number in range(N_ALONE):
        federation.client(number, wrap=Lying if number == 0 else lambda link: link)
    assert isinstance(federation.clients[0].failure(), ProtocolError)
    assert federation.clients[0].failure().message.startswith("The server computed")


def test_a_client_of_two_users_is_refused(found):
    federation = found(apart_plan("cofedrec", 3), 3)
    refused = federation.client(0).failure()
    assert isinstance(refused, RefusedError)
    assert "a client is one user" in refused.message
    assert "Start a client for each user" in refused.remedy
