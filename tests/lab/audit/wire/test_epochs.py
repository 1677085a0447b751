"""Traffic of several key epochs: each message is held against the one that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from world.federation import Workspace, keep, rotate

from fedrec.errors import BadSignature, DataError, KeysError
from fedrec.identity.authority import Authority
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.ids import canonical
from fedrec.settings.validation import load_settings
from fedrec.wire.v1 import admin_pb2, coordinator_pb2, update_pb2
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.folder_changes import make_epoch
from fedrec_lab.audit.wire.auditing import audit_wire
from fedrec_lab.audit.wire.known import Known

from .conftest import ADMIN, CLIENTS, RANDOM, Recording, made, planned, problems_of


@dataclass
class Rotated:
    """A federation whose third member left: epoch 1 is over, and its bundle is gone.

    Attributes:
        rosters: the authority's public record of all epochs.
    """

    workspace: Workspace
    first: KeyEpoch
    second: KeyEpoch
    left: str

    @property
    def rosters(self) -> Path:
        return self.workspace.folder / "keys" / "authority" / "rosters"

    def known(self, *given: Path) -> Known:
        return Known.of(load_settings(self.workspace.parties.coordinator), given)

    def foreign(self, number: int) -> KeyEpoch:
        """Return an epoch of an issuer that is not this federation's authority."""
        plan, n_items = self.workspace.plan, len(self.workspace.data.catalogue)
        members = self.first.roster.members
        return make_epoch(Authority.create(), plan, n_items, members, number=number)


@pytest.fixture(scope="module")
def rotated(tmp_path_factory):
    workspace = made(tmp_path_factory.mktemp("rotated"))
    folder = AuthorityFolder(workspace.folder / "keys")
    first = folder.newest
    assert first is not None
    left = Identity.load(workspace.client_states[2]).client_id
    keep(folder, folder.membership.without_member(left, 5))
    return Rotated(workspace, first, rotate(folder), left)


@pytest.fixture
def record(rotated, tmp_path):
    """Begin a recording that is read with the given rosters."""

    def start(*given: Path) -> Recording:
        return Recording(tmp_path / "recording" / "a.frames", rotated.known(*given))

    return start


def enrol(recording: Recording, call: int, keys: KeyEpoch, client: str, **changes: Any) -> None:
    """Let a client ask for the federation, and answer with an epoch."""
    answer: dict[str, Any] = {
        "epoch": keys.roster.epoch,
        "roster_json": keys.roster.to_json(),
        "server_context": keys.server_context,
        "wrapped_secrets": RANDOM.bytes(600),
    }
    request = coordinator_pb2.GetFederationRequest(client_id=client)
    recording.add(call, "GetFederation", request)
    message = coordinator_pb2.Federation(**{**answer, **changes})
    recording.add(call, "GetFederation", message, "response")


def install(recording: Recording, call: int, bundle: bytes) -> None:
    """Hand in an epoch as its authority does."""
    blob = update_pb2.BlobHeader(length=len(bundle), digest=bytes(32))
    chunk = update_pb2.Chunk(offset=0, data=bundle)
    for part in ({"blob": blob}, {"chunk": chunk}):
        message = admin_pb2.EpochPart(**part)
        recording.add(call, "InstallEpoch", message, service=ADMIN)


def test_an_epoch_that_is_over_is_known_by_its_signed_roster(record, rotated):
    """What every epoch has of its own is compared within the epoch alone."""
    recording = record()
    for call, client in enumerate(CLIENTS):
        enrol(recording, 2 * call, rotated.first, client)
        wrapped = RANDOM.bytes(800)
        enrol(recording, 2 * call + 1, rotated.second, client, wrapped_secrets=wrapped)
    traffic = recording.traffic()
    assert problems_of(traffic) == []
    epochs = traffic.known.epochs
    assert [epochs.source(number) for number in (1, 2, 3)] == [
        "recorded", "coordinator", "not given",
    ]  # fmt: skip
    assert (epochs.n_members(1), epochs.n_members(2)) == (3, 2)
    assert {number: tally.messages for number, tally in traffic.epochs.items()} == {1: 2, 2: 2}


def test_what_all_members_are_handed_counts_once(record, rotated):
    """A hundred random bytes, forty times, are no uneven ones."""
    recording, shared = record(), RANDOM.bytes(100)
    for call in range(40):
        both = canonical("fedrec wrapped v1", RANDOM.bytes(113), shared)
        enrol(recording, call, rotated.second, CLIENTS[call % 2], wrapped_secrets=both)
    traffic = recording.traffic()
    assert problems_of(traffic) == []
    (tally,) = traffic.wrapped.values()
    assert tally.entropy is not None and tally.entropy > 7.97
    assert tally.shared_words == 0.0 and tally.copies == 0


def test_lengths_within_an_epoch_are_still_compared(record, rotated):
    recording = record()
    enrol(recording, 1, rotated.second, CLIENTS[0])
    enrol(recording, 2, rotated.first, CLIENTS[0])
    enrol(recording, 3, rotated.first, CLIENTS[1], wrapped_secrets=RANDOM.bytes(700))
    (problem,) = problems_of(recording.traffic())
    assert "Federation.wrapped_secrets (epoch 1) has several lengths" in problem


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"epoch": 1}, "roster_json in GetFederation is of key epoch 2, the message names 1"),
        ({"server_context": None}, "server_context in GetFederation is not the one"),
        ({"roster_json": b"{}"}, "roster_json in GetFederation is not that of key epoch 2"),
        ({"epoch": 9}, "roster_json in GetFederation is of key epoch 2, the message names 9"),
    ],
)
def test_documents_of_another_epoch_are_told(record, rotated, changes, seen):
    recording = record()
    if "server_context" in changes:
        changes = {"server_context": rotated.first.server_context[:-1] + b"?"}
    enrol(recording, 1, rotated.second, CLIENTS[0], **changes)
    assert any(seen in problem for problem in problems_of(recording.traffic()))


def test_a_roster_that_the_authority_did_not_sign_is_told(record, rotated):
    recording = record()
    enrol(recording, 1, rotated.foreign(5), CLIENTS[0])
    (problem,) = problems_of(recording.traffic())
    assert "roster_json in GetFederation is not signed by the authority" in problem


def test_an_epoch_without_a_roster_is_told_as_such(record, rotated):
    """Its messages are tried like all others; its members cannot be named."""
    recording = record()
    blob = planned(rotated.known())
    recording.upload(1, rotated.left, blob, slice(0, len(blob)), epoch=1)
    recording.traffic()
    rotated.workspace.coordinator_state.mkdir(exist_ok=True)
    settings = load_settings(rotated.workspace.parties.coordinator)
    report = audit_wire(settings, recording=recording.path)
    assert report.problems == ()
    (row,) = report.epochs
    assert (row.epoch, row.roster, row.members, row.rotated) == (1, "not given", 0, True)
    assert (row.updates, row.readable_updates, row.outsiders) == (1, 0, 0)
    assert any("1 messages name key epoch 1, whose roster was not given" in n for n in report.notes)
    report = audit_wire(settings, recording=recording.path, epochs=[rotated.rosters])
    (row,) = report.epochs
    assert (row.roster, row.members) == ("given", 3)
    assert not any("not given" in note for note in report.notes)


def test_who_left_is_an_outsider_of_the_later_epoch_only(record, rotated):
    recording = record(rotated.rosters)
    for call, (client, epoch) in enumerate(
        [(rotated.left, 1), (rotated.left, 2), (rotated.second.roster.members[0].client_id, 2)]
    ):
        blob = planned(rotated.known())
        recording.upload(call, client, blob, slice(0, len(blob)), epoch=epoch)
    traffic = recording.traffic()
    assert problems_of(traffic) == []
    assert {n: (t.updates, t.outsiders) for n, t in traffic.epochs.items()} == {
        1: (1, 0),
        2: (2, 1),
    }


def test_a_bundle_that_passed_makes_its_epoch_known(rotated, tmp_path):
    known = rotated.known()
    recording = Recording(tmp_path / "a.frames", known)
    install(recording, 1, rotated.first.to_json())
    traffic = recording.traffic()
    assert problems_of(traffic) == []
    assert known.epochs.source(1) == "recorded"


@pytest.mark.parametrize("kind", ["foreign", "damaged"])
def test_a_bundle_that_is_none_is_told(record, rotated, kind):
    recording = record()
    bundle = rotated.foreign(3).to_json() if kind == "foreign" else b"a key, perhaps"
    install(recording, 1, bundle)
    (problem,) = problems_of(recording.traffic())
    assert problem.startswith("InstallEpoch has a bundle for a different federation: ")


def test_strangers_cannot_make_it_remember_any_number_of_epochs(record, rotated):
    recording = record()
    for epoch in range(1, 1010):
        recording.upload(epoch, CLIENTS[0], b"x" * 32, epoch=epoch)
    assert len(recording.traffic().epochs) == 1000


def test_bundles_in_the_coordinators_folder_are_known(rotated, tmp_path):
    settings = load_settings(rotated.workspace.parties.coordinator)
    changed = settings.coordinator.model_copy(update={"state": str(tmp_path)})
    (tmp_path / "epochs").mkdir()
    (tmp_path / "epochs" / f"00000001-{'a' * 64}").write_bytes(rotated.first.to_json())
    known = Known.of(settings.model_copy(update={"coordinator": changed}))
    assert list(known.epochs) == [1, 2]
    assert known.epochs.source(1) == "coordinator"


class TestGiven:
    def test_the_authority_s_folder_its_rosters_and_single_files(self, rotated):
        keys = rotated.workspace.folder / "keys"
        for place in (keys, rotated.rosters, rotated.rosters / "00000001.json"):
            assert list(rotated.known(place).epochs) == [1, 2], place
        assert list(rotated.known(keys / "epoch.json").epochs) == [2]

    def test_a_folder_without_any(self, rotated, tmp_path):
        with pytest.raises(DataError, match="has no roster"):
            rotated.known(tmp_path)

    def test_a_file_that_is_something_else(self, rotated, tmp_path):
        path = tmp_path / "other.json"
        path.write_bytes(b"{}")
        with pytest.raises(KeysError, match=r"other\.json"):
            rotated.known(path)

    def test_another_authority_s(self, rotated, tmp_path):
        path = tmp_path / "00000001.json"
        path.write_bytes(rotated.foreign(1).roster.to_json())
        with pytest.raises(BadSignature, match=r"00000001\.json"):
            rotated.known(path)

    def test_two_rosters_of_one_number(self, rotated, tmp_path):
        """An authority that was restored from an old backup may use a number twice."""
        authority = AuthorityFolder(rotated.workspace.folder / "keys").authority
        plan, n_items = rotated.workspace.plan, len(rotated.workspace.data.catalogue)
        again = make_epoch(authority, plan, n_items, rotated.first.roster.members, number=2)
        path = tmp_path / "00000002.json"
        path.write_bytes(again.roster.to_json())
        with pytest.raises(KeysError, match="two different rosters of key epoch 2"):
            rotated.known(path)
