"""The state folder: who may read it, one process at a time, and damage that is noticed."""

import gc
import json
import os
import signal
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from fedrec.durable import DiskFull
from fedrec.environment import provenance_of
from fedrec.errors import (
    FolderInUse,
    PlanMismatch,
    RefusedError,
    StorageError,
    VersionMismatch,
)
from fedrec.evaluation.metrics import Rates
from fedrec.follower.database import STATE_FILE, STATE_FORMAT, change_counter, image_of
from fedrec.follower.stored_state import RunPin
from fedrec.formats import BACKUP_FILE
from fedrec.ids import ClientId, RoundId
from fedrec.model.state import PrivateState
from fedrec.model.tables import room_in
from fedrec.plan.agreement import plan_to_json
from fedrec.plan.schema import PLAN_FORM, Plan
from fedrec.wire.messages import UploadHeader
from fedrec_client.round.participation import selection_secret
from fedrec_client.state.client_state import BestModel, ClientState
from fedrec_client.state.private_store import PrivateStore

PIN = RunPin(
    federation="films", run="run-1", plan_json="{}", catalogue_fingerprint="ab", users="cd"
)


def header(round_id):
    return UploadHeader(
        protocol_version="2.0",
        federation="films",
        run="run-1",
        round=RoundId(round_id),
        kind="train",
        base_round=RoundId(round_id - 1),
        base_state=b"\xfc" * 32,
        key_list=b"",
        nonce=b"",
        epoch=1,
        client_id=ClientId("ab" * 32),
        catalogue_fingerprint="ab",
        plan_fingerprint="cd",
        length=3,
        digest=b"\xfe" * 32,
        signature=b"\xfd" * 64,
    )


@pytest.fixture
def store(tmp_path):
    made = PrivateStore(tmp_path / "state")
    made.bind(PIN, 1)
    return made


def stage(store, round_id=1):
    store.stage(header(round_id), b"update", b"private after")


def publish(store, round_id=1, *, counted):
    store.publish(RoundId(round_id), b"shared", metrics=b"\xff\x00", counted=counted)


def reopened(store):
    store.close()
    return PrivateStore(store.folder)


def test_only_the_owner_reads_it(store):
    stage(store)
    selection_secret(store)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.folder.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_an_open_folder_is_tightened(tmp_path):
    tmp_path.chmod(0o755)
    PrivateStore(tmp_path).close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_one_process_at_a_time(store):
    named = (
        rf"client.state: the folder .{store.folder.absolute()}. is in use by process {os.getpid()}"
    )
    with pytest.raises(FolderInUse, match=named):
        PrivateStore(store.folder)
    PrivateStore(store.folder, read_only=True)
    reopened(store).close()


def test_what_was_stored_is_read(store):
    stage(store)
    again = reopened(store)
    assert again.state == store.state
    assert again.state.staged.header == header(1)
    assert again.read(again.state.staged.update) == b"update"


def test_counted_commits(store):
    stage(store)
    publish(store, counted=True)
    assert store.state.staged is None
    assert store.state.private is not None
    assert store.read(store.state.private) == b"private after"
    assert store.state.version == 1


def test_not_counted_rolls_back(store):
    stage(store)
    publish(store, counted=False)
    assert (store.state.staged, store.state.private) == (None, None)


def test_abandoned_rolls_back(store):
    stage(store)
    store.roll_back()
    assert (store.state.staged, store.state.private) == (None, None)
    assert list(store.folder.glob("*.bin")) == []


def test_an_update_of_an_old_epoch_is_not_sent_again(store):
    stage(store)
    store.bind(PIN, 2)
    assert store.state.staged.closed
    again = reopened(store)
    assert again.state.staged.closed


def test_a_later_round_in_progress_outlives_an_earlier_one(store):
    stage(store, 5)
    publish(store, 4, counted=False)
    assert store.read(store.state.staged.private) == b"private after"


def test_a_round_is_answered_once(store):
    stage(store, 3)
    store.roll_back()
    for round_id in (2, 3):
        with pytest.raises(StorageError, match="second answer"):
            stage(store, round_id)
    stage(store, 4)


def test_files_that_nothing_needs_are_removed(store):
    stage(store)
    publish(store, counted=True)
    (store.folder / "shared-left-by-a-crash.bin").write_bytes(b"")
    (store.folder / ".state.sqlite.0123.new").write_bytes(b"")
    again = reopened(store)
    kept = {path.name for path in again.folder.iterdir()}
    assert kept == {"lock", "highwater", STATE_FILE, *again.state.files()}


def test_the_best_model_is_kept_while_others_pass(store):
    stage(store)
    publish(store, 1, counted=True)
    shared, private = store.state.shared, store.state.private
    assert shared is not None
    assert private is not None
    rates = Rates(users=2, hr=0.5, recall=0.5, ndcg=1 / 3, mrr=0.25)
    best = BestModel(round=RoundId(1), validation=rates, test=None, shared=shared, private=private)
    store.publish(RoundId(2), b"newer", metrics=b"\xff\x00", counted=False, best=best)
    store.publish(RoundId(3), b"newest", metrics=b"\xff\x00", counted=False)
    assert store.state.best == best
    assert store.read(best.shared) == b"shared"


@pytest.mark.parametrize("kind", ["update", "private", "shared"])
def test_a_damaged_file_is_named(store, kind):
    publish(store, 1, counted=False)
    stage(store, 2)
    (path,) = store.folder.glob(f"{kind}-*.bin")
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    state = store.state
    assert state.shared is not None
    refs = {"update": state.staged.update, "private": state.staged.private, "shared": state.shared}
    with pytest.raises(StorageError, match="is damaged") as caught:
        store.read(refs[kind])
    assert path.name in caught.value.message
    assert caught.value.remedy
    path.unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        store.read(refs[kind])


def test_a_database_torn_anywhere_is_noticed_or_says_the_same(store):
    stage(store)
    before = store.state
    store.close()
    path = store.folder / STATE_FILE
    raw = path.read_bytes()

    def is_noticed(damaged):
        path.write_bytes(damaged)
        try:
            # Where nothing is kept, nothing is damaged.
            assert PrivateStore(store.folder, read_only=True).state == before
        except StorageError as error:
            assert STATE_FILE in error.message
            return True
        except VersionMismatch:
            # In the format's number it is another format.
            return True
        return False

    # The last page may be of what is not read here.
    assert all([is_noticed(raw[:cut]) for cut in range(0, len(raw) - 4096, 509)])
    assert all([is_noticed(raw[:cut]) is not None for cut in range(len(raw) - 4096, len(raw), 509)])
    noticed = sum(
        is_noticed(raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :])
        for place in range(0, len(raw), 13)
    )
    used = sum(len(name) + len(value) for name, value in before.records().items())
    assert noticed > used / 13
    path.write_bytes(raw)
    PrivateStore(store.folder).close()


@pytest.mark.parametrize("name", ["pin", "staged"])
def test_a_record_that_is_not_what_was_written_is_damage(store, name):
    stage(store)
    store.close()
    with closing(sqlite3.connect(store.folder / STATE_FILE)) as rows, rows:
        rows.execute("UPDATE run SET value = ? WHERE name = ?", (b"null", name))
    with pytest.raises(StorageError, match=f"damaged: the record '{name}'"):
        PrivateStore(store.folder)


@pytest.mark.parametrize(("number", "who"), [(3, "an older"), (8, "an older"), (12, "a newer")])
@pytest.mark.parametrize("read_only", [False, True])
def test_another_format_is_refused_before_anything_is_touched(tmp_path, number, who, read_only):
    if number < STATE_FORMAT:
        (tmp_path / "state.json").write_bytes(b"fedrec client state %d\n{}\n\n" % number)
    else:
        (tmp_path / STATE_FILE).write_bytes(image_of({}))
        with closing(sqlite3.connect(tmp_path / STATE_FILE)) as rows:
            rows.execute(f"PRAGMA user_version = {number}")
    # A blob that nothing names would be swept, and the lock file written anew.
    for name in ("private-0123.bin", ".state.json.new", "lock"):
        (tmp_path / name).write_bytes(b"before")
    tmp_path.chmod(0o755)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(VersionMismatch, match=f"format {number}, made by {who}") as caught:
        PrivateStore(tmp_path, read_only=read_only)
    assert "Install" in caught.value.remedy
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_records_that_are_no_state_are_refused():
    for records in ({}, {"epoch": b"1"}, {"pin": b"{", "epoch": b"1"}, {"pin": b"\xff"}):
        with pytest.raises(StorageError, match="isn't a valid state"):
            ClientState.from_records(records, STATE_FILE)


def killed_in_a_commit(folder):
    """Commit a record in a process that dies when its pages are written and its journal is not."""
    child = os.fork()
    if not child:
        try:
            rows = sqlite3.connect(folder / STATE_FILE, isolation_level=None)
            # So few pages fit into memory that others are written before the commit.
            rows.execute("PRAGMA cache_size = 1")
            rows.execute("PRAGMA cache_spill = 1")
            rows.execute("BEGIN IMMEDIATE")
            rows.execute("UPDATE run SET value = zeroblob(100000)")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_commit_that_was_killed_did_not_happen(store, read_only):
    stage(store)
    before = store.state
    store.close()
    killed_in_a_commit(store.folder)
    assert (store.folder / f"{STATE_FILE}-journal").exists()
    again = PrivateStore(store.folder, read_only=read_only)
    assert again.state == before
    again.close()
    with PrivateStore(store.folder) as written:
        publish(written, counted=True)
        assert PrivateStore(store.folder, read_only=True).state.version == 1


def test_looking_changes_nothing(store):
    stage(store)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.folder.iterdir()}
    seen = PrivateStore(store.folder, read_only=True)
    assert seen.state == store.state
    assert seen.own("roster") is None
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.folder.iterdir()}
    assert after == before


def test_every_commit_shows_from_outside(store):
    seen = [change_counter(store.folder)]
    stage(store)
    seen.append(change_counter(store.folder))
    store.keep_own("roster", b"{}")
    seen.append(change_counter(store.folder))
    assert None not in seen and len(set(seen)) == 3
    assert change_counter(store.folder.parent) is None


def test_a_full_disk_is_an_error_that_says_so(store):
    before = store.state
    n_pages = len((store.folder / STATE_FILE).read_bytes()) // 4096
    stage(store)
    store.roll_back()
    # SQLite's own way to a full disk: no page more than there are.
    store._database._rows.execute(f"PRAGMA max_page_count = {n_pages}")
    with pytest.raises(DiskFull, match="is full") as caught:
        store.keep_own("roster", bytes(100_000))
    assert "space" in caught.value.remedy
    assert store.own("roster") is None and store.state.pin == before.pin
    store.keep_own("roster", bytes(100_000))
    stage(reopened(store), 2)


def test_a_full_disk_takes_no_file_either(store, monkeypatch):
    before = (store.folder / STATE_FILE).read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left") as caught:
        stage(store)
    assert "space" in caught.value.remedy
    monkeypatch.undo()
    assert (store.folder / STATE_FILE).read_bytes() == before
    stage(reopened(store))


def test_an_unbound_folder_says_what_to_do(tmp_path):
    with pytest.raises(StorageError, match="contains no run yet"):
        _ = PrivateStore(tmp_path, read_only=True).state


def test_the_pin_is_compared(store):
    store.bind(PIN, 1)
    with pytest.raises(PlanMismatch, match="catalogue_fingerprint and users"):
        store.bind(PIN.model_copy(update={"catalogue_fingerprint": "x", "users": "y"}), 1)


@pytest.mark.parametrize("form", [1, PLAN_FORM])
def test_a_run_of_a_former_release_goes_on_with_this_one_s_trainer(tmp_path, form):
    here = provenance_of(Plan(), "cpu")
    pin = PIN.model_copy(update={"plan_json": plan_to_json(Plan().in_form(form)).decode()})
    made = PrivateStore(tmp_path / "former")
    made.bind(pin, 1, provenance=replace(here, path="trainer 1"))
    stage(made)
    if form == PLAN_FORM:
        with pytest.raises(RefusedError, match="began with trainer 1"):
            made.go_on(here, accepted=True, now=0.0)
        return
    elsewhere = replace(here, arithmetic=replace(here.arithmetic, processor="another"))
    with pytest.raises(RefusedError, match="other arithmetic"):
        made.go_on(elsewhere, accepted=False, now=0.0)
    made.go_on(here, accepted=False, now=0.0)
    found = reopened(made).state.provenance
    assert found.path == here.path
    assert "trainer 1" in found.accepted[0].difference


def made_former(store, number=10):
    """Make the folder one of format 9 or 10: a file in place of the database, and two more."""
    store.keep_own("roster", b"the roster")
    secret = selection_secret(store)
    store.change(spent=store.keep_file("spent", b"what users have spent"))
    state = store.state
    store.close()
    fields = json.loads(state.model_dump_json())
    # Of a key authority's state, which was the same kind then.
    fields |= {"revealed": [], "refused_sums": 0}
    if number == 9:
        # Signed without what wire protocol 8 added.
        fields["statement"] = {"federation": "films", "run": "run-1", "round": 1}
    body = f"fedrec client state {number}\n{json.dumps(fields)}\n".encode()
    found = body + sha256(body).hexdigest().encode() + b"\n"
    (store.folder / "state.json").write_bytes(found)
    (store.folder / "roster.json").write_bytes(b"the roster")
    (store.folder / "coin.key").write_bytes(secret + sha256(secret).digest())
    for name in (STATE_FILE, "highwater"):
        (store.folder / name).unlink()
    return state, secret


@pytest.mark.parametrize("number", [9, 10])
@pytest.mark.parametrize("ends", ["", "backup", "database", "files"])
def test_a_former_state_is_converted_wherever_the_process_was_killed(
    store, monkeypatch, ends, number
):
    stage(store)
    state, secret = made_former(store, number)
    with pytest.raises(VersionMismatch, match="former format"):
        PrivateStore(store.folder, read_only=True)

    def killed(*arguments, **others):
        raise KeyboardInterrupt

    if ends:
        with monkeypatch.context() as patch:
            name = {
                "backup": "fedrec.follower.database.keep_backup",
                "database": "fedrec.follower.database.write_whole",
                "files": "pathlib.Path.unlink",
            }[ends]
            patch.setattr(name, killed)
            with pytest.raises(KeyboardInterrupt):
                PrivateStore(store.folder)
        store.close()
    with PrivateStore(store.folder) as found:
        assert found.state == state
        assert (found.own("roster"), selection_secret(found)) == (b"the roster", secret)
        assert found.read(found.state.spent) == b"what users have spent"
        names = {path.name for path in store.folder.iterdir()}
        assert names.isdisjoint({"state.json", "roster.json", "coin.key"})
        kept = (store.folder / BACKUP_FILE).read_bytes()
        assert b"fedrec client state %d" % number in kept and secret not in kept
        publish(found, counted=True)
        assert found.state.spent == state.spent
        assert not (store.folder / BACKUP_FILE).exists()


def test_a_disk_that_is_full_in_a_conversion_changes_nothing(store, monkeypatch):
    made_former(store)
    before = {path.name: path.read_bytes() for path in store.folder.iterdir()}

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            PrivateStore(store.folder)
    assert {path.name: path.read_bytes() for path in store.folder.iterdir()} == before
    PrivateStore(store.folder).close()


@pytest.mark.parametrize("name", [STATE_FILE, "state.json"])
def test_the_backup_before_a_conversion_is_refused_when_it_is_started(store, name):
    state, _ = made_former(store)
    PrivateStore(store.folder).close()
    (store.folder / STATE_FILE).unlink()
    (store.folder / BACKUP_FILE).rename(store.folder / name)
    with pytest.raises(StorageError, match="is a backup from before an upgrade"):
        PrivateStore(store.folder)
    assert (store.folder / state.spent.name).exists()


def test_a_former_state_beside_a_newer_one_is_refused(store):
    made_former(store)
    (store.folder / STATE_FILE).write_bytes(image_of({}))
    with pytest.raises(StorageError, match=r"has both state.sqlite and state.json"):
        PrivateStore(store.folder)


def test_a_private_state_is_checked_before_it_is_read(store):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    private = PrivateState.of({"user_embedding": values})
    store.stage(header(1), b"update", private.parts())
    staged = store.state.staged
    assert store.read(staged.private) == private.to_bytes()
    found = store.read_private(staged.private)
    assert not found.in_files
    assert np.array_equal(found.tensors["user_embedding"], values)
    path = store.folder / staged.private.name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(StorageError, match="is damaged"):
        store.read_private(staged.private)


def blocks_of(private):
    return {name for table in private.tensors.values() for name in table.names}


def test_versions_share_the_blocks_in_which_they_agree(store, tmp_path, monkeypatch):
    # Four users a block.
    monkeypatch.setattr("fedrec.model.blocked_table.BLOCK_BYTES", 64)
    store.bind(PIN, 1)
    room = room_in(store.folder, 0)

    def trained(before, user, value, room=room):
        new = room.new(12, {"table": (4,)})["table"]
        new.write(np.array([user]), np.full((1, 4), value, dtype=np.float32))
        return PrivateState.of({"table": new.finish(before.tensors["table"])})

    def on_disk():
        return {path.name for path in (store.folder / "blocks").glob("*.bin")}

    first = PrivateState.of({"table": np.arange(48, dtype=np.float32).reshape(12, 4)}).in_room(room)
    store.stage(header(1), b"update 1", first.parts())
    store.publish(RoundId(1), b"shared 1", metrics=b"\xff\x00", counted=True)
    second = trained(first, 5, 7.0)
    store.stage(header(2), b"update 2", second.parts())
    one, two = blocks_of(first), blocks_of(second)
    assert (len(one), len(two), len(one | two)) == (3, 3, 4)
    del first
    # Committed and staged.
    assert on_disk() == one | two
    store.publish(RoundId(2), b"shared 2", metrics=b"\xff\x00", counted=True)
    assert on_disk() == two
    third = trained(second, 11, 8.0)
    store.stage(header(3), b"update 3", third.parts())
    three = blocks_of(third)
    del second, third, room
    store.close()
    # As a process that was killed leaves it, in the middle of the next version.
    (store.folder / "blocks" / ".dead-0.new").write_bytes(b"half a block")
    again = PrivateStore(store.folder)
    assert on_disk() == two | three
    staged = again.state.staged
    found = again.read_private(staged.private).tensors["table"]
    expected = np.arange(48, dtype=np.float32).reshape(12, 4)
    expected[5], expected[11] = 7.0, 8.0
    assert np.array_equal(found[:], expected)
    again.roll_back()
    del found
    gc.collect()
    assert on_disk() == two
    assert again.state.private is not None
    left = again.read_private(again.state.private).tensors["table"]
    assert np.array_equal(left[np.array([5, 11])], [[7.0] * 4, [44.0, 45.0, 46.0, 47.0]])
    again.close()
