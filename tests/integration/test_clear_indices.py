"""The papers' encrypted Top-K over gRPC: k ciphertexts, whose indices the coordinator reads."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from world.bench import N_ALONE, N_ITEMS, Alone, accepted, clear_plan, compute, federal
from world.children import Child, CoordinatorProcess, KillCoordinator, close_all
from world.links import Passing
from world.parties import Client, published_rounds

from fedrec.errors import RefusedError
from fedrec.plan.price import price
from fedrec.training.round_vectors import RoundVectors
from fedrec_lab.audit.wire import audit_wire
from fedrec_server.app import Coordinator
from fedrec_server.federation import PublicCatalogue
from fedrec_server.service.wire_recorder import WireRecorder

KEPT = 30
"""An eighth of 60 x 4 values."""
HEADER_BYTES, FRAME = 44, 512


class Keeping(Passing):
    """Keeps what a client uploads."""

    def __init__(self, link):
        super().__init__(link)
        self.sent: dict[int, bytes] = {}

    def submit_update(self, header, payload):
        self.sent[header.round] = payload
        return self.link.submit_update(header, payload)


def check_model(federation, **plan):
    """Every client has the model of the dense sum of the same changes, and its metrics."""
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    bench = federation.bench
    rounds = accepted(bench, federation.published())
    all_clients = frozenset(range(bench.n_clients))
    assert [played.clients for played in rounds] == [all_clients] * bench.plan.rounds.published
    dense = clear_plan("none", indices="hidden", **plan)
    wanted = compute(dense, bench.users(), rounds)
    assert {bench.model(number) for number in range(bench.n_clients)} == {wanted.model}
    assert federal(federation.metrics()) == federal(wanted.metrics)


def test_eight_clients_of_one_user_each(found, tmp_path):
    recorder = WireRecorder(tmp_path / "recording", max_bytes=1 << 30)
    federation = found(clear_plan(total=1), N_ALONE, bench=Alone, recorder=recorder)
    links = []
    for number in range(N_ALONE):

        def keep(link):
            links.append(Keeping(link))
            return links[-1]

        federation.client(number, wrap=keep)
    check_model(federation, total=1)
    # Blocks of 2048 - 1 - 64 bits: 256 counts of at most 64 users take 7 bits each, and 44 metrics
    # at most 64 in each of the 1983.
    lengths = {len(kept.sent[number]) for kept in links for number in (2, 3)}
    (length,) = lengths
    n_tail, rest = divmod(length - HEADER_BYTES - KEPT * (4 + FRAME), FRAME)
    assert rest == 0 and 2 <= n_tail <= 3
    # Clients' indices differ, and ascend.
    read = [np.frombuffer(kept.sent[2][HEADER_BYTES:], dtype="<u4", count=KEPT) for kept in links]
    assert all((np.diff(one.astype(np.int64)) > 0).all() for one in read)
    assert len({one.tobytes() for one in read}) > 1
    # The coordinator waits for reports as long as the price says.
    opening = (
        price(federation.bench.plan, n_items=N_ITEMS, n_clients=N_ALONE).parts["opening"].facts
    )
    assert opening["entries"] == KEPT
    rules = federation.coordinator.engine.run.state.rules
    assert rules.report_seconds("train", N_ALONE) == opening["report_seconds"]
    # Whoever audits the wire is told; values, counts and the model are nowhere.
    federation.stop()
    report = audit_wire(
        federation.bench.coordinator_settings(),
        recording=tmp_path / "recording",
        truth=[state.parent for state in federation.bench.workspace.client_states],
    )
    assert report.problems == () and report.found == {}
    assert (report.clear_indices, report.readable_updates) == (KEPT, 0)
    assert any("Indices in the clear: 30 of every update" in line for line in report.sentences())


@pytest.mark.long
def test_the_papers_preset_publishes_the_same_bits(found):
    """phe's own path: slow, so that few values are kept and one round trains."""
    plan = clear_plan("paillier/paper", ratio=0.02, total=1, minimum_clients=4)
    federation = found(plan, 4, bench=Alone)
    federation.start_all()
    check_model(federation, ratio=0.02, total=1)


def test_a_client_of_several_users_is_refused_by_name(found):
    federation = found(clear_plan(minimum_clients=3), 3)
    failure = federation.client(0).failure()
    assert type(failure) is RefusedError
    assert "users, but under update.indices" in failure.message


def test_no_client_takes_part_without_accepting_what_indices_show(found, tmp_path):
    federation = found(clear_plan(), N_ALONE, bench=Alone)
    failure = federation.client(0, accept_exposure=False).failure()
    assert type(failure) is RefusedError
    assert "the coordinator would read the index of every kept value" in failure.message
    assert "--accept-exposure" in failure.remedy
    settings = federation.bench.coordinator_settings()
    assert settings.data.catalogue is not None
    with pytest.raises(RefusedError, match=r"update\.indices"):
        Coordinator.from_settings(
            settings,
            PublicCatalogue.load(Path(settings.data.catalogue)),
            RoundVectors.of(federation.bench.plan, N_ITEMS),
        )


KILLS = [
    KillCoordinator(failpoint="update.ack", round=2),
    KillCoordinator(failpoint="folder.synced", round=3, phase="collecting", counted=0),
    KillCoordinator(failpoint="report.ack", round=3, phase="reporting", reports=1),
]


@pytest.mark.long
def test_the_coordinator_killed_between_uploads_and_while_a_sum_opens(tmp_path):
    """Its sum follows from the stored updates: the indices are in them."""
    bench = Alone.make(tmp_path, clear_plan(minimum_clients=4, total=2), 4)
    children: list[Child] = []
    clients: list[Client] = []
    try:
        first = CoordinatorProcess(bench, kill=KILLS[0])
        children.append(first)
        clients += [Client(bench.client_settings(number, first.address)) for number in range(4)]
        port = int(first.address.rpartition(":")[2])
        for killed, following in zip(KILLS, [*KILLS[1:], None], strict=True):
            assert children[-1].ended(killed) == -signal.SIGKILL, killed
            children.append(CoordinatorProcess(bench, kill=following, port=port))
        for client in clients:
            assert client.result().reason == "all rounds are published"
        rounds = accepted(bench, published_rounds(bench, first.address))
    finally:
        for client in clients:
            client.stop()
        close_all(children)
    assert [played.clients for played in rounds] == [frozenset(range(4))] * 4
    wanted = compute(bench.plan, bench.users(), rounds)
    assert {bench.model(number) for number in range(4)} == {wanted.model}
