"""A folder that is made anew from what the key authority knows of a run."""

from dataclasses import replace

from conformance.store_suite import IDENTITY
from world.cells import partition_of
from world.engine import REVEALER, identity
from world.machine import AUTHORITY, World, client, header, rules, statement

from fedrec.ids import RoundId
from fedrec.wire.chunks import Blob
from fedrec_server.rounds.changes import RoundLearnt
from fedrec_server.store.durable_files import sealed_name, snapshot_name
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.state_folder import read_former_folder
from fedrec_server.store.writing import Recovered, RecoveredRun

RULES = replace(rules(), revealer=client(AUTHORITY))
ROSTER = frozenset(map(client, range(3)))


def a_word(round_id, **about):
    world = World.new(RULES, 3)
    world.tick(0, 1, 2)
    text = statement(world.state, client(AUTHORITY))
    changed = {"trained": 3, "kind": "train", "n_rows": 60, "charged": 2} | about
    return replace(text, round=RoundId(round_id), **changed)


def made_anew(folder, *, exact=False):
    """Write a run that is known up to round 5, whose numbers go to 7."""
    store = SqliteStore(folder, IDENTITY)
    text = a_word(5)
    sealed = store.spool.write(sealed_name(RoundId(5), Blob.of(b"sum")), b"sum")
    model = store.spool.write(snapshot_name(RoundId(5), Blob.of(b"model")), b"model")
    counted = tuple(
        header(5, client(number), kind="train", base_round=4, base_state=bytes(32))
        for number in range(2)
    )
    store.begin_from(
        RecoveredRun(
            run="the run",
            before=Recovered.after(text, last_round=7, charged=6),
            statement=text,
            contributions=counted,
            latest=(header(3, client(2), kind="train", base_round=2),),
            sealed=(sealed_name(RoundId(5), sealed), sealed),
            model=model,
            former=(identity(0).public,),
            at=1.0,
        )
    )
    return store


def nothing_opened(before):
    """Return a run of which the key authority opened no sum."""
    return RecoveredRun(
        run="the run",
        before=before,
        statement=None,
        contributions=(),
        latest=(),
        sealed=None,
        model=None,
        former=(),
        at=1.0,
    )


def test_it_is_loaded_as_it_was(tmp_path):
    made_anew(tmp_path).close()
    store = SqliteStore(tmp_path, IDENTITY)
    assert store.run == "the run"
    state = store.load(RULES, ROSTER)
    assert (state.published, state.last_round, state.recovered) == (5, 7, 5)
    assert (state.counted, state.trained, state.evaluated, state.charged) == (True, 3, False, 6)
    assert state.base_state == a_word(5).state_tag
    assert state.nothing_opened_since_recovery and state.current is None
    record = store.published(RoundId(5))
    assert record is not None and record.statement == a_word(5)
    # Only who has the version before can take it; all others take the model.
    assert (record.is_for(RoundId(4)), record.is_for(RoundId(3))) == (True, False)
    snapshot = store.snapshot()
    assert snapshot is not None and (snapshot.round, snapshot.epoch) == (5, 1)
    assert store.sweep() == 0
    assert {round_ for round_, _ in store.latest().values()} == {3, 5}
    assert store.former_revealers() == (identity(0).public,)
    store.note_former(identity(REVEALER).public)
    store.note_former(identity(REVEALER).public)
    assert len(store.former_revealers()) == 2
    store.close()


def test_exact_sums_go_on_over_those_who_were_counted(tmp_path):
    store = made_anew(tmp_path)
    state = store.load(replace(RULES, exact=True), ROSTER)
    assert state.next_kind == "train"
    assert state.expected("train") == {client(0), client(1)}
    store.close()


def test_a_count_before_a_round_that_was_learnt_names_no_client(tmp_path):
    """Another count may have been in between: whom the earlier one named is no help."""
    store = SqliteStore(tmp_path, IDENTITY)
    text = a_word(1, kind="count", trained=0)
    counted = tuple(header(1, client(n), kind="count", base_round=0) for n in range(2))
    sealed = store.spool.write(sealed_name(RoundId(1), Blob.of(b"sum")), b"sum")
    store.begin_from(
        RecoveredRun(
            run="the run",
            before=Recovered.after(text, last_round=1, charged=0),
            statement=text,
            contributions=counted,
            latest=(),
            sealed=(sealed_name(RoundId(1), sealed), sealed),
            model=None,
            former=(),
            at=1.0,
        )
    )
    exact = replace(RULES, exact=True)
    assert store.load(exact, ROSTER).expected("train") == {client(0), client(1)}
    change = RoundLearnt(
        statement=a_word(9), base_round=RoundId(1), last_round=RoundId(9), charged=0, at=2.0
    )
    store.commit([change], [])
    state = store.load(exact, ROSTER)
    assert (state.next_kind, state.last_count) == ("count", None)
    store.close()


def test_cells_that_were_paused_are_known(tmp_path):
    store = SqliteStore(tmp_path, IDENTITY)
    before = Recovered.after(None, last_round=3, charged=0)
    found = replace(nothing_opened(before), epoch=1, paused={2: RoundId(3)})
    store.begin_from(found)
    cells = replace(RULES, partition=partition_of(map(client, range(6))))
    loaded = store.load(cells, ROSTER).rules.partition.cells
    assert [cell.state for cell in loaded] == ["active", "paused"]
    store.close()


def test_members_show_what_they_sent(tmp_path):
    store = made_anew(tmp_path)
    store.keep_latest(header(4, client(2), kind="train", base_round=3))
    assert store.latest()[client(2)][0] == 4
    # An earlier one changes nothing.
    store.keep_latest(header(2, client(2), kind="train", base_round=1))
    assert store.latest()[client(2)][0] == 4
    store.close()


def test_a_later_round_is_learnt(tmp_path):
    store = made_anew(tmp_path)
    text = a_word(9, trained=6)
    change = RoundLearnt(
        statement=text, base_round=RoundId(5), last_round=RoundId(10), charged=8, at=2.0
    )
    store.commit([change], [])
    store.close()
    store = SqliteStore(tmp_path, IDENTITY)
    state = store.load(RULES, ROSTER)
    assert (state.published, state.last_round, state.recovered) == (9, 10, 9)
    assert (state.trained, state.charged) == (6, 8)
    record = store.published(RoundId(9))
    assert record is not None and not record.is_for(RoundId(5))
    store.close()
    found = read_former_folder(tmp_path)
    assert (found.run, found.published, found.last_round, found.charged) == ("the run", 9, 10, 8)


def test_what_cannot_be_read_is_looked_at_without_a_word(tmp_path):
    assert read_former_folder(tmp_path).run == ""
    (tmp_path / "coordinator.sqlite").write_bytes(b"no database" * 100)
    assert read_former_folder(tmp_path).run == ""


def test_nothing_was_ever_opened(tmp_path):
    """The run keeps its name, and begins."""
    store = SqliteStore(tmp_path, IDENTITY)
    before = Recovered.after(None, last_round=0, charged=0)
    store.begin_from(nothing_opened(before))
    state = store.load(RULES, ROSTER)
    assert (state.published, state.last_round, state.next_kind) == (0, 0, "count")
    assert state.nothing_opened_since_recovery
    store.close()
