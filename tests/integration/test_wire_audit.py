"""A recorded federation over gRPC: what the audit of the wire says, and what it must not miss."""

import re
import threading
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from world.bench import N_ITEMS, plan_of
from world.clock import DEADLINE_SECONDS
from world.federation import rotate
from world.links import Passing
from world.parties import operators_link

import fedrec.wire.grpc_link as grpc_link
from fedrec.identity.identity import Identity
from fedrec.model.state import PrivateState
from fedrec.plan.layout import Layout
from fedrec.plan.travelling_rows import ROW_STEP
from fedrec.wire.chunks import Blob
from fedrec.wire.recording import FrameReader
from fedrec.wire.v1 import update_pb2
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_client.state.private_store import PrivateStore
from fedrec_lab.audit.wire import audit_wire
from fedrec_lab.audit.wire.reading import body_of
from fedrec_server.service.wire_recorder import WireRecorder

N_CLIENTS, N_ROUNDS = 3, 5


@pytest.fixture
def recorded(found, tmp_path):
    """Start a federation whose coordinator records."""

    def start(protection, *, max_bytes=1 << 30):
        recorder = WireRecorder(tmp_path / "recording", max_bytes=max_bytes)
        return found(plan_of(protection), recorder=recorder)

    return start


def report_of(federation, tmp_path, *, truth=True):
    """Stop every client and audit."""
    federation.stop()
    bench = federation.bench
    folders = [state.parent for state in bench.workspace.client_states] if truth else []
    settings = bench.coordinator_settings()
    return audit_wire(settings, recording=tmp_path / "recording", truth=folders)


def run(federation, **options):
    for client in federation.start_all(**options):
        client.result()


def test_without_protection_every_update_is_readable_and_that_is_said(recorded, tmp_path):
    federation = recorded("none")
    run(federation)
    report = report_of(federation, tmp_path)
    plan = federation.bench.plan
    lengths = [Layout.counting(plan, N_ITEMS).length]
    lengths += [Layout.of(plan, ROW_STEP).length] * (N_ROUNDS - 1)
    assert report.problems == ()
    assert report.updates == report.readable_updates == N_CLIENTS * N_ROUNDS
    assert report.readable_values == N_CLIENTS * sum(lengths)
    assert report.published == report.published_readable == N_ROUNDS
    assert [row.readable_updates for row in report.clients] == [N_ROUNDS] * N_CLIENTS
    assert any(
        f"every one readable, {report.readable_values:,} values" in sentence
        for sentence in report.sentences()
    )


def test_under_bfv_every_promise_holds(recorded, tmp_path):
    federation = recorded("bfv")
    run(federation)
    report = report_of(federation, tmp_path)
    assert report.problems == ()
    assert report.holds
    assert (report.updates, report.readable_updates) == (N_CLIENTS * N_ROUNDS, 0)
    assert (report.published, report.published_readable) == (N_ROUNDS, 0)
    assert (report.kept_updates, report.context_problem) == (0, "")
    assert report.found == {}
    assert report.searched["private vectors"] > 0
    assert report.searched["user ids"] == 40
    streams = {f.name: f for f in report.findings if f.name.endswith("its stream")}
    upload = streams["SubmitUpdate request: its stream"]
    # The count round's vector is shorter than all others; here both fill one block of slots.
    assert (upload.clients, upload.lengths) == (N_CLIENTS, "one")
    assert upload.distinct == N_CLIENTS * N_ROUNDS
    sent = [finding for finding in report.findings if " request: " in finding.name]
    # A published sum is as long as its round's vector; who opens which round differs.
    opened = "SubmitReveal request: its stream"
    lengths = {finding.lengths for finding in sent if finding.name != opened}
    assert lengths <= {"number", "one", "several"}


def test_a_run_whose_keys_were_renewed_is_audited_epoch_by_epoch(recorded, tmp_path):
    """The coordinator's own file is the newest epoch's; the one before is in the recording only."""
    federation = recorded("bfv")
    workspace = federation.bench.workspace
    link = operators_link(federation.bench, federation.address)

    def renew(event):
        if (event.name, event.round) == ("published", 2):
            link.install_epoch(rotate(AuthorityFolder(workspace.folder / "keys")).to_json())

    clients = [federation.client(0, on_event=renew), federation.client(1), federation.client(2)]
    for client in clients:
        assert client.result().reason == "all rounds are published"
    link.close()
    report = report_of(federation, tmp_path)
    assert report.problems == ()
    assert (report.readable_updates, report.found) == (0, {})
    first, second = report.epochs
    assert (first.epoch, first.roster, first.members, first.rotated) == (1, "recorded", 3, True)
    assert (second.epoch, second.roster, second.rotated) == (2, "coordinator", False)
    assert first.updates + second.updates == report.updates >= N_CLIENTS * N_ROUNDS
    assert min(first.updates, second.updates) >= 2 * N_CLIENTS
    assert first.outsiders == second.outsiders == first.readable_updates == 0
    seen = "each message was compared with the one that it names"
    assert any(seen in sentence for sentence in report.sentences())


def test_an_undeclared_field_is_named(recorded, tmp_path, monkeypatch):
    honest = grpc_link.UPLOAD_HEADER.to_proto

    def leaking(header):
        made = honest(header)
        # Field 99, a string: the number of users, say.
        made.MergeFromString(b"\x9a\x06\x0b14 users, 3")
        return made

    monkeypatch.setattr(grpc_link, "UPLOAD_HEADER", SimpleNamespace(to_proto=leaking))
    federation = recorded("bfv")
    run(federation)
    report = report_of(federation, tmp_path)
    assert report.problems == (
        "SubmitUpdate request: UploadHeader.<field 99> must not exist: "
        f"{11 * N_CLIENTS * N_ROUNDS} bytes",
    )


class _Unfit(Passing):
    """Sends other bytes than it should, under a signature of its own."""

    def __init__(self, link, identity):
        super().__init__(link)
        self._identity = identity
        self.answered = threading.Event()

    def submit_update(self, header, payload):
        unfit = self.unfit(payload)
        blob = Blob.of(unfit)
        changed = replace(header, length=blob.length, digest=blob.digest)
        changed = replace(changed, signature=self._identity.sign(changed.statement()))
        try:
            return self.link.submit_update(changed, unfit)
        finally:
            self.answered.set()

    def unfit(self, payload):
        raise NotImplementedError


class _TouchedRowsOnly(_Unfit):
    """Sends what is not zero of an update, as if that were all."""

    def unfit(self, payload):
        values = np.frombuffer(payload[44:], dtype="<i4")
        return payload[:44] + values[values != 0].tobytes()


class _PlainUnderEncryption(_Unfit):
    """Sends as many bytes as the plan asks for, of which none are encrypted."""

    def unfit(self, payload):
        return (
            payload[:44] + np.arange(len(payload) - 44, dtype="<u4").tobytes()[: len(payload) - 44]
        )


def audit_with(federation, tmp_path, kind):
    """Let the first client be unfit for one upload, and audit; return its fingerprint, too."""
    identity = Identity.load(federation.bench.state(0))
    unfit = federation.client(0, wrap=lambda link: kind(link, identity))
    federation.client(1)
    federation.client(2)
    assert isinstance(unfit.link, _Unfit)
    assert unfit.link.answered.wait(DEADLINE_SECONDS)
    return report_of(federation, tmp_path, truth=False), identity.client_id[:16]


def test_an_update_of_touched_rows_only_is_told_of_by_its_length(recorded, tmp_path):
    report, name = audit_with(recorded("none"), tmp_path, _TouchedRowsOnly)
    seen = rf"{name} announced an update of \d+ bytes, but the plan's have \d+\. \(1 times\)"
    assert any(re.fullmatch(seen, problem) for problem in report.problems)
    # Where its bytes were read before it was refused, they are counted as well.
    assert all("bytes" in problem for problem in report.problems)


def test_an_update_that_is_not_encrypted_is_told_of(recorded, tmp_path):
    report, _ = audit_with(recorded("bfv"), tmp_path, _PlainUnderEncryption)
    problems = [each for each in report.problems if each.startswith("SubmitUpdate request")]
    assert any("its bytes are not uniform in 1 of" in problem for problem in problems)
    assert any("it can be compressed in 1 of" in problem for problem in problems)


def test_what_lies_in_the_folder_and_may_not_is_named(recorded, tmp_path):
    federation = recorded("bfv")
    run(federation)
    federation.stop()
    bench = federation.bench
    store = PrivateStore(bench.state(1), read_only=True)
    assert store.state.private is not None
    private = PrivateState.from_bytes(store.read(store.state.private))
    (vectors,) = private.tensors.values()
    state = bench.workspace.coordinator_state
    (state / "notes.txt").write_bytes(b"seen: " + vectors.tobytes())
    (state / "updates" / f"00000002-{'a' * 64}").write_bytes(b"a kept update")
    report = report_of(federation, tmp_path)
    problems = "\n".join(report.problems)
    assert "file notes.txt must not exist" in problems
    assert "private vectors found in file notes.txt" in problems
    assert "An update is kept after its round was over." in problems
    assert report.kept_updates == 1


def test_recording_ends_at_its_limit_and_the_run_goes_on(recorded, tmp_path):
    federation = recorded("none", max_bytes=4000)
    run(federation)
    assert len(federation.published()) == N_ROUNDS
    report = report_of(federation, tmp_path, truth=False)
    assert report.problems == ()
    assert any("ended at its size limit" in note for note in report.notes)
    (path,) = (tmp_path / "recording").iterdir()
    assert path.stat().st_size <= 4000


def test_a_full_disk_ends_the_recording_and_the_run_goes_on(recorded, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedrec_server.service.wire_recorder.FrameWriter.append", full)
    federation = recorded("none")
    run(federation)
    assert len(federation.published()) == N_ROUNDS
    federation.stop()
    (path,) = (tmp_path / "recording").iterdir()
    assert list(FrameReader(path)) == []


def test_without_a_recorder_nothing_is_put_in_front(found):
    federation = found(plan_of("none"))
    assert federation.coordinator._recorder is None


def sent_updates(folder):
    """Return the recorded bodies of all updates by round, and all methods that were called."""
    (path,) = folder.iterdir()
    rounds, bodies, called = {}, defaultdict(bytes), set()
    for frame in FrameReader(path):
        called.add((frame.method, frame.kind))
        if frame.method.endswith("SubmitUpdate") and frame.kind == "request":
            part = update_pb2.UploadPart.FromString(frame.message)
            if part.WhichOneof("part") == "header":
                rounds[frame.call] = part.header.round
            bodies[frame.call] += part.chunk.data
    found = sorted((rounds[call], body_of(body)) for call, body in bodies.items() if body)
    return found, called


def test_tail_at_home_changes_no_byte_of_an_update(found, tmp_path):
    """Both runs have the same data. The better local scores stay at the client."""
    recorded, seen = {}, []
    for tail in (False, True):
        folder = tmp_path / f"recording-{tail}"
        recorder = WireRecorder(folder, max_bytes=1 << 30)
        federation = found(plan_of("none", algorithm="ease"), recorder=recorder)
        run(
            federation,
            client__tail=tail,
            on_event=seen.append,
            accept_exposure=True,
        )
        federation.stop()
        recorded[tail] = sent_updates(folder)
    assert len(recorded[True][0]) == N_CLIENTS * N_ROUNDS
    assert recorded[True] == recorded[False]
    figures = [event.detail for event in seen if event.name == "tail_at_home"]
    assert len(figures) == N_CLIENTS
    assert all("items that don't travel, chosen by" in detail for detail in figures)
