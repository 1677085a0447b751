"""What was lost: coordinators come back from their key authority, authorities from backups."""

import itertools
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from world.bench import KINDS, N_ITEMS, Accepted, compute, plan_of
from world.clock import poll
from world.federation import rotate
from world.links import Gate
from world.parties import operators_link
from world.plans import params

from fedrec.errors import (
    AuthorityIsOld,
    BadSignature,
    DamagedFile,
    FolderInUse,
    KeysError,
    ProtocolError,
    RefusedError,
    StateWentBack,
)
from fedrec.ids import RoundId
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.recovery import RecoveryPoint
from fedrec_authority.delivery import Delivery
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.backup import back_up, restore
from fedrec_authority.folder.recovery import read_state, recovery_point, write_recovery
from fedrec_authority.opening.revealer import Revealer
from fedrec_server.federation import PublicCatalogue
from fedrec_server.recovery import recover
from fedrec_server.store.sqlite import SqliteStore


def state_of(federation):
    """Return the coordinator's folder."""
    return Path(federation.bench.coordinator_settings().coordinator.state)


def authority_of(federation, name="keys"):
    """Return the authority's folder."""
    return AuthorityFolder(federation.bench.workspace.folder / name)


def recovered(federation, name="keys"):
    """Carry the key authority's file to a stopped coordinator, and start it again."""
    point = recovery_point(authority_of(federation, name))
    made = carry(federation, point, federation.bench.workspace.folder)
    federation.start_again()
    return made


def check_every_client(federation):
    """Compare all clients with an undisturbed run in one process, in which all are counted."""
    bench = federation.bench
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    all_clients = frozenset(range(bench.n_clients))
    rounds = [
        Accepted(round=RoundId(number), kind=kind, clients=all_clients)
        for number, kind in enumerate(KINDS, start=1)
    ]
    wanted = compute(bench.plan, bench.users(), rounds)
    assert {bench.model(number) for number in range(bench.n_clients)} == {wanted.model}
    for number in range(bench.n_clients):
        kept, expected = bench.private(number).tensors, wanted.private[number].tensors
        assert all((kept[name] == values).all() for name, values in expected.items())


def content(folder):
    """Return what a folder holds, without what SQLite makes to look at it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    kept = (path for path in files if not path.name.endswith(("-wal", "-shm")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def until(clients, round_id):
    for client in clients:
        client.wait_for("published", round_id)


def test_coordinator_whose_index_is_gone(found, revealing):
    """It refuses the folder with all its sums; made anew, the run goes on, same bits."""
    federation = found(plan_of("bfv", key_holder="authority"))
    revealing(federation)
    gate = Gate(4)
    clients = [federation.client(0, wrap=gate), federation.client(1), federation.client(2)]
    folder = state_of(federation)
    with gate:
        until(clients[1:], 3)
        federation.stop_coordinator()
        for path in [*folder.glob("coordinator.sqlite*"), folder / "highwater"]:
            path.unlink()
        before = content(folder)
        assert sum(name.startswith("blobs/") for name in before) == 3
        for _ in range(2):
            with pytest.raises(StateWentBack, match="3 in blobs/") as refused:
                federation.start_again()
            assert "fedrec coordinator recover" in refused.value.remedy
            assert content(folder) == before
        made = recovered(federation)
    assert made.aside is not None
    assert content(made.aside) == before, "set aside, not deleted"
    check_every_client(federation)


def test_coordinator_three_rounds_back(found, revealing):
    """An older folder is recognised; made anew, the run goes on with the next round, same bits."""
    federation = found(plan_of("bfv", key_holder="authority"))
    revealing(federation)
    gates = [Gate(2), Gate(5)]
    clients = [federation.client(0, wrap=lambda link: gates[1](gates[0](link)))]
    clients += [federation.client(1), federation.client(2)]
    folder = state_of(federation)
    try:
        clients[1].wait_for("sent", 2)
        federation.stop_coordinator()
        shutil.copytree(folder, folder.with_name("older"))
        federation.start_again()
        gates[0].opened.set()
        until(clients, 4)
        federation.stop_coordinator()
        folder.rename(folder.with_name("newest"))
        folder.with_name("older").rename(folder)
        federation.start_again()
        run = federation.coordinator.engine.run
        poll(run.halted.is_set)
        assert run.problem is not None and "fedrec coordinator recover" in run.problem.remedy
        federation.stop_coordinator()
        made = recovered(federation)
    finally:
        for gate in gates:
            gate.opened.set()
    assert (made.round, made.has_model) == (4, True)
    assert made.aside is not None and (made.aside / "coordinator.sqlite").exists()
    check_every_client(federation)
    assert federation.coordinator.engine.run.state.published == 5


@pytest.mark.parametrize("algorithm", params("fedmf", long=["fedals"]))
def test_coordinator_whole_folder_lost(found, revealing, algorithm):
    """Nothing is left; whoever was behind takes the model from the key authority's copy."""
    federation = found(plan_of("bfv", key_holder="authority", algorithm=algorithm))
    revealing(federation)
    gates = [Gate(4), Gate(4)]
    clients = [federation.client(0, wrap=gates[0]), federation.client(1, wrap=gates[1])]
    clients.append(federation.client(2))
    try:
        clients[2].wait_for("sent", 4)
        federation.stop_coordinator()
        shutil.rmtree(state_of(federation))
        made = recovered(federation)
        assert (made.round, made.aside) == (3, None)
    finally:
        for gate in gates:
            gate.opened.set()
    for client in clients:
        assert client.result().reason == "all rounds are published"
    models = {federation.bench.model(number) for number in range(3)}
    assert len(models) == 1
    if algorithm == "fedmf":
        check_every_client(federation)


def test_a_file_that_ends_before_the_folder(found, revealing):
    """A folder that knows more than the file is left as it is."""
    federation = found(plan_of("bfv", key_holder="authority"))
    revealing(federation)
    gate = Gate(3)
    clients = [federation.client(0, wrap=gate), federation.client(1), federation.client(2)]
    file = state_of(federation).with_name("early.json")
    with gate:
        until(clients, 2)
        poll(lambda: _opened(federation) == 2)
        write_recovery(authority_of(federation), file)
    for client in clients:
        client.result()
    federation.stop_coordinator()
    settings = federation.bench.coordinator_settings()
    assert settings.data.catalogue is not None
    before = content(state_of(federation))
    with pytest.raises(StateWentBack, match=r"has round 5 of this run, but .* ends earlier"):
        recover(
            settings,
            PublicCatalogue.load(Path(settings.data.catalogue)),
            RoundVectors.of(federation.bench.plan, N_ITEMS),
            file,
            now=0.0,
        )
    assert content(state_of(federation)) == before


def test_a_damaged_sum(found, revealing):
    """A coordinator that cannot serve a sum any more says which, and what brings it back."""
    federation = found(plan_of("bfv", key_holder="authority"))
    revealing(federation)
    gates = [Gate(4), Gate(4)]
    clients = [federation.client(0, wrap=gates[0]), federation.client(1, wrap=gates[1])]
    clients.append(federation.client(2))
    try:
        clients[2].wait_for("sent", 4)
        identity = federation.coordinator.engine.run.federation.identity
        federation.stop_coordinator()
        (damaged,) = state_of(federation).glob("blobs/00000002-*")
        raw = bytearray(damaged.read_bytes())
        raw[len(raw) // 2] ^= 1
        damaged.write_bytes(raw)
        with (
            closing(SqliteStore(state_of(federation), identity)) as store,
            pytest.raises(DamagedFile) as refused,
        ):
            store.sweep()
        assert damaged.name in refused.value.message
        assert "fedrec coordinator recover" in refused.value.remedy
        made = recovered(federation)
        assert made.aside is not None and (made.aside / "blobs" / damaged.name).exists()
    finally:
        for gate in gates:
            gate.opened.set()
    check_every_client(federation)


def test_what_is_no_word_of_the_key_authority(found, revealing, tmp_path):
    """Other federations' files, changed ones, and a coordinator that runs: nothing is touched."""
    federation, other = (found(plan_of("bfv", key_holder="authority")) for _ in range(2))
    for each in (federation, other):
        revealing(each)
        for client in each.start_all():
            client.result()
    points = [recovery_point(authority_of(each)) for each in (federation, other)]
    first, second = points
    assert first.statement is not None and second.statement is not None
    with pytest.raises(FolderInUse, match="in use by process"):
        carry(federation, first, tmp_path)
    federation.stop_coordinator()
    before = content(state_of(federation))
    spent = replace(first.statement, charged=0, trained=1)
    for wrong, kind in (
        (second, KeysError),
        (replace(first, statement=second.statement), RefusedError),
        (replace(first, statement=spent), BadSignature),
        (replace(first, head=spent), BadSignature),
        (replace(first, sealed=first.sealed + b"x"), RefusedError),
        (replace(first, contributions=first.contributions[:2]), RefusedError),
    ):
        with pytest.raises(kind):
            carry(federation, wrong, tmp_path)
    assert content(state_of(federation)) == before
    assert not list(state_of(federation).parent.glob(".*"))


def carry(federation, point, folder):
    """Hand a file of that content to the coordinator."""
    file = folder / "carried.json"
    file.write_bytes(point.to_bytes())
    assert RecoveryPoint.from_bytes(file.read_bytes(), "the file") == point
    settings = federation.bench.coordinator_settings()
    assert settings.data.catalogue is not None
    with patch("fedrec_server.peers.key_rotation.log_entry") as logged:
        made = recover(
            settings,
            PublicCatalogue.load(Path(settings.data.catalogue)),
            RoundVectors.of(federation.bench.plan, N_ITEMS),
            file,
            now=federation.clock.now(),
        )
    assert [call.args[0] for call in logged.call_args_list] == [point.run]
    return made


PASSPHRASE = "a passphrase of words"


def restored(federation, copy, name="restored"):
    """Bring an authority's folder back beside the lost one; return its first epoch."""
    folder = authority_of(federation, name)
    restore(copy, folder, PASSPHRASE)
    # No secret key is in it: a new epoch has another.
    with pytest.raises(KeysError, match="fedrec keys rotate"):
        folder.revealer_credentials()
    return rotate(folder)


def statements(federation):
    """Return what the key authority said of the published rounds."""
    text = [found.statement for found in federation.published()]
    return [statement for statement in text if statement is not None]


def deliver(federation, keys):
    """Hand in an epoch as the authority's process does."""
    with closing(operators_link(federation.bench, federation.address)) as link:
        assert link.install_epoch(keys.to_json())


def test_authority_lost(found, revealing, tmp_path):
    """A backup made while it ran brings it back; its chain goes on, and the old folder is refused.

    The backup is older than the loss: what was said since, the coordinator shows.
    """
    federation = found(plan_of("bfv", key_holder="authority"))
    gates = [Gate(2), Gate(4)]
    revealing(federation)
    clients = [federation.client(0, wrap=lambda link: gates[1](gates[0](link)))]
    clients += [federation.client(1), federation.client(2)]
    try:
        until(clients[1:], 1)
        poll(lambda: _opened(federation) == 1)
        back_up(authority_of(federation), tmp_path / "copy", PASSPHRASE)
        gates[0].opened.set()
        until(clients[1:], 3)
        revealing.stop()  # type: ignore[attr-defined]
        keys = restored(federation, tmp_path / "copy")
        own = read_state(authority_of(federation, "restored"))
        assert own is not None and own.state.version <= 1 and own.state.opened is None
        deliver(federation, keys)
        events = revealing(federation, "restored")
    finally:
        for gate in gates:
            gate.opened.set()
    for client in clients:
        assert client.result().reason == "all rounds are published"
    assert len({federation.bench.model(number) for number in range(3)}) == 1
    text = statements(federation)
    assert [one.sequence for one in text] == [1, 2, 3, 4, 5]
    assert len({one.client_id for one in text[:3]} | {one.client_id for one in text[3:]}) == 2
    chain = itertools.pairwise(text)
    assert all(later.previous == one.digest() for one, later in chain)
    assert [one.trained for one in text] == [0, 1, 2, 3, 3]
    # The lost folder turns up and is started again: it says so, and changes nothing.
    with closing(operators_link(federation.bench, federation.address)) as link:
        look = Delivery(authority_of(federation), link, lambda event: None)
        with pytest.raises(AuthorityIsOld, match="another folder of this authority has been used"):
            look.look()
        rotate(authority_of(federation), number=9)
        with pytest.raises(ProtocolError, match="replaced by a restored one"):
            link.install_epoch((authority_of(federation).epoch_path).read_bytes())
    assert [event.name for event in events if event.name == "reveal refused"] == []


def test_an_older_copy_of_the_authority_uses_no_key(found, revealing, tmp_path):
    """In the same epoch: a newer copy has opened sums that it knows nothing of."""
    federation = found(plan_of("bfv", key_holder="authority"))
    gates = [Gate(2), Gate(4)]
    revealing(federation)
    clients = [federation.client(0, wrap=lambda link: gates[1](gates[0](link)))]
    clients += [federation.client(1), federation.client(2)]
    folder = authority_of(federation)
    try:
        until(clients[1:], 1)
        poll(lambda: _opened(federation) == 1)
        revealing.stop()  # type: ignore[attr-defined]
        shutil.copytree(folder.path, folder.path.with_name("older"))
        gates[0].opened.set()
        revealing(federation)
        until(clients, 3)
        revealing.stop()  # type: ignore[attr-defined]
        older = authority_of(federation, "older")
        link = GrpcLink(federation.address, older.revealer_credentials())
        copy = Revealer(older, link, lambda event: None, jitter=lambda: 0.1)
        with closing(copy):
            copy.start()
            gates[1].opened.set()
            with pytest.raises(AuthorityIsOld, match=r"The last one in .*older is 1"):
                copy.wait(60.0)
        found_there = read_state(older)
        assert RoundId(4) not in {one.round for one in found_there.state.revealed}
        revealing(federation)
    finally:
        for gate in gates:
            gate.opened.set()
    check_every_client(federation)


@pytest.mark.long
def test_authority_and_coordinator_lost_together(found, revealing, tmp_path):
    """Both come back from the authority's backup, and go on from what members know since."""
    federation = found(plan_of("bfv", key_holder="authority"))
    gates = [Gate(2), Gate(4)]
    revealing(federation)
    clients = [federation.client(0, wrap=lambda link: gates[1](gates[0](link)))]
    clients += [federation.client(1), federation.client(2)]
    try:
        until(clients[1:], 1)
        poll(lambda: _followed(federation) == 1)
        back_up(authority_of(federation), tmp_path / "copy", PASSPHRASE)
        gates[0].opened.set()
        until(clients, 3)
        revealing.stop()  # type: ignore[attr-defined]
        federation.stop_coordinator()
        shutil.rmtree(state_of(federation))
        shutil.rmtree(authority_of(federation).private)
        restored(federation, tmp_path / "copy")
        made = recovered(federation, "restored")
        assert (made.round, made.has_model) == (1, False)
        revealing(federation, "restored")
        poll(lambda: federation.coordinator.engine.run.state.published >= 3)
    finally:
        for gate in gates:
            gate.opened.set()
    check_every_client(federation)
    learnt = [entry.round for entry in federation.journal() if entry.kind == "round learnt"]
    assert learnt == [3]
    record = federation.coordinator.engine.run.store.published(RoundId(5))
    assert record is not None and record.statement is not None
    assert (record.statement.sequence, record.statement.trained) == (4, 3)


def _followed(federation):
    store = read_state(authority_of(federation))
    return 0 if store is None else store.state.version


def _opened(federation):
    text = recovery_point(authority_of(federation)).statement
    return 0 if text is None else text.round
