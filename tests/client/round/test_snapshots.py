"""A client that catches up by snapshots and across epochs."""

import json
from dataclasses import replace
from types import MappingProxyType

import pytest
from blake3 import blake3
from safetensors.numpy import load, save
from world.fake_authority import AuthorityWorld
from world.fake_federation import World
from world.fake_link import (
    attested,
    crossed,
    follow,
    make_snapshot,
    played,
    sealed_snapshot,
    version,
)

from fedrec.errors import KeysError, RefusedError
from fedrec.follower.database import STATE_FILE
from fedrec.follower.enrolment import enrol
from fedrec.follower.membership import Membership
from fedrec.identity.public import verify
from fedrec.ids import RoundId
from fedrec.model.state import Rest, SharedState
from fedrec.wire.fields import MAX_REFUSED
from fedrec.wire.messages import MakeSnapshot, Snapshot, Wait
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_late_joiner_starts_from_a_snapshot(world):
    played(world)
    world.link.offered = make_snapshot(world, 3)
    assert follow(world) == 3
    assert "snapshot_taken" in world.event_names()
    store = PrivateStore(world.state, read_only=True)
    assert store.state.shared is not None
    assert store.read(store.state.shared) == world.stored(3)


def test_a_snapshot_is_followed_by_the_later_rounds(world):
    played(world)
    world.link.offered = make_snapshot(world, 2)
    assert follow(world) == 3


def of_its_maker_alone(world):
    """Another model, which only its maker signed."""
    right = world.shared[3]
    rows = {"item_embedding": -right.kept["item_embedding"]}
    false = SharedState(MappingProxyType({**right.kept, **rows}), right.holders, right.rest)
    maker, honest = world.puppets[2], make_snapshot(world, 3, false)
    text = world.membership(maker).report_on(RoundId(3), false, world.rows_after(3))
    return replace(honest, reports=(text, honest.reports[0]))


def of_another_state(world):
    return make_snapshot(world, 3, world.shared[2])


def of_other_shapes(world):
    rows = world.shared[3].tensors["item_embedding"][:2]
    return make_snapshot(world, 3, SharedState({"item_embedding": rows}))


def of_other_rows(world):
    """Rows of other items than those that enough users hold."""
    state = world.shared[3]
    few = Rest(state.rest.index[:-1], state.rest.tables)
    kept = {name: values[:-1] for name, values in state.kept.items()}
    return make_snapshot(world, 3, SharedState(MappingProxyType(kept), state.holders, few))


def of_whole_tables_beside_a_list_of_rows(world):
    """Rows 0, 1, 2 of what it keeps are not those of the list."""
    state = world.shared[3]
    none_apart = Rest(state.rest.index, MappingProxyType({}))
    return make_snapshot(world, 3, SharedState(state.tensors, state.holders, none_apart))


def of_rows_beyond_all_numbers(world):
    arrays = load(world.stored(3))
    index = arrays["index"]
    index[-2:] = [2**63 - 1, -2]
    return sealed_snapshot(world, 3, save(arrays))


def of_rows_that_no_client_trains(world):
    """The first version's rows, which no client sends: whoever takes them has no word for them."""
    return sealed_snapshot(world, 3, world.shared[3].to_bytes())


def that_does_not_open(world):
    found = make_snapshot(world, 3)
    return replace(found, blob=found.blob[:-1] + bytes([found.blob[-1] ^ 1]))


def of_another_round(world):
    return replace(make_snapshot(world, 3), blob=make_snapshot(world, 2).blob)


def that_is_empty(world):
    return replace(make_snapshot(world, 3), blob=b"")


def of_no_state(world):
    return sealed_snapshot(world, 3, b"nothing of the kind")


def of_a_type_that_numpy_does_not_know(world):
    """A safetensors file as the format allows it: a header's length, the header, the data."""
    header = b'{"shared.item_embedding":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}'
    return sealed_snapshot(world, 3, len(header).to_bytes(8, "little") + header + bytes(4))


def that_is_not_sealed(world):
    return replace(make_snapshot(world, 3), blob=world.stored(3))


def by_a_stranger(world):
    found = make_snapshot(world, 3, world.shared[2])
    claimed = replace(found.reports[0], client_id=world.stranger.client_id)
    signed = replace(claimed, signature=world.stranger.sign(claimed.statement()))
    return replace(found, reports=(found.reports[1], signed))


BAD = {
    of_its_maker_alone: "contradict",
    of_another_state: "isn't the model that other parties signed",
    of_other_shapes: "of the shape (2, 4), not (12, 4)",
    of_other_rows: "has separate rows for other items",
    of_whole_tables_beside_a_list_of_rows: "has separate rows of [], not of ['item_embedding']",
    of_rows_beyond_all_numbers: "not in the order of the catalogue",
    of_rows_that_no_client_trains: "it has the initial rows",
    that_does_not_open: "",
    of_another_round: "",
    that_is_empty: "",
    of_no_state: "The snapshot cannot be read",
    of_a_type_that_numpy_does_not_know: "",
    that_is_not_sealed: "",
    by_a_stranger: "",
}
"""Snapshots that a member or the coordinator may send, and what the audit log says of each."""


@pytest.mark.parametrize("bad", BAD)
def test_a_wrong_snapshot_is_passed_over_for_the_rounds(world, bad):
    played(world)
    world.link.offered = bad(world)
    assert follow(world) == 3
    names = world.event_names()
    assert "snapshot_refused" in names and "snapshot_taken" not in names
    (line,) = (json.loads(line) for line in world.audit().splitlines())
    assert (line["event"], line["round"]) == ("snapshot_refused", 3)
    assert BAD[bad] in line["message"]
    store = PrivateStore(world.state, read_only=True)
    assert store.state.shared is not None
    assert store.read(store.state.shared) == world.stored(3)


def test_a_wrong_snapshot_is_passed_over_for_another(world):
    played(world)
    wrong = of_another_state(world)
    world.link.offered, world.link.spare = wrong, [make_snapshot(world, 3)]
    assert follow(world) == 3
    assert "snapshot_taken" in world.event_names()
    assert "published" not in world.event_names()
    assert world.link.refused == [(), (blake3(wrong.blob).digest(),)]
    assert world.audit().count('"event":"snapshot_refused"') == 1


def test_of_very_many_wrong_snapshots_eight_are_looked_at(world):
    """A coordinator that makes up new ones for ever gets nothing but these lines."""
    played(world)
    fill = iter(range(1000))
    false = make_snapshot(world, 3)
    world.link.snapshot = lambda *news: replace(false, blob=bytes([next(fill)]) * 64)  # type: ignore[method-assign]
    assert follow(world) == 3
    assert next(fill) == MAX_REFUSED == 8
    assert world.audit().count('"event":"snapshot_refused"') == MAX_REFUSED


def test_a_snapshot_of_an_epoch_that_we_are_not_in_yet_is_no_wrong_one(world):
    """The keys may change between enrolling and asking; the rounds are there all the same."""
    played(world)
    world.link.offered = replace(make_snapshot(world, 3), epoch=2)
    assert follow(world) == 3
    assert world.audit() == ""


def test_a_snapshot_is_sent_when_asked_for_and_others_take_it(world, tmp_path_factory):
    played(world)
    world.link.script += [Wait, lambda: MakeSnapshot(round=RoundId(3))]
    world.app().run()
    ((report, blob),) = world.link.snapshots
    verify(world.identity.public.signing_key, report.statement(), report.signature)
    assert report == world.report(3, world.identity)
    seal = world.membership(world.puppets[0]).seal_of(RoundId(3))
    assert seal.unseal_snapshot(blob) == world.stored(3)
    reports = (report, world.report(3, world.puppets[0]))
    world.link.offered = Snapshot(
        round=RoundId(3), epoch=1, statement=None, reports=reports, blob=blob
    )
    late = tmp_path_factory.mktemp("late")
    world.state = late
    for name in ("identity.key", "identity.pub.json"):
        (late / name).write_bytes((world.folder / "state" / name).read_bytes())
        (late / name).chmod(0o600)
    assert follow(world) == 3


def test_one_member_that_says_it_twice_is_one_member(world):
    played(world)
    found = make_snapshot(world, 3)
    world.link.offered = replace(found, reports=found.reports[:1] * 2)
    assert follow(world) == 3
    assert "snapshot_taken" not in world.event_names()
    assert "reports from 1 distinct members" in world.audit()


def test_the_key_authoritys_word_on_the_round_vouches_for_a_copy(tmp_path):
    world = AuthorityWorld(tmp_path)
    played(world)
    text = world.rounds[3].published.statement  # type: ignore[union-attr]
    copy = replace(make_snapshot(world, 3), statement=text, reports=())
    false = replace(make_snapshot(world, 3, world.shared[2]), statement=text, reports=())
    world.link.offered, world.link.spare = false, [copy]
    assert follow(world) == 3
    assert "snapshot_taken" in world.event_names()
    assert world.audit().count("isn't the model that other parties signed") == 1


def test_a_snapshot_of_a_version_we_do_not_have(world):
    world.link.script.append(lambda: MakeSnapshot(round=RoundId(3)))
    world.app().run()
    assert world.link.snapshots == []
    assert "stale" in world.event_names()


def test_two_members_who_crossed_vouch_for_a_snapshot(world):
    crossed(world)
    world.link.offered = attested(world)
    assert follow(world) == 3
    state = PrivateStore(world.state, read_only=True).state
    assert state.shared is not None and state.is_of_epoch


def test_without_a_snapshot_it_waits(world):
    crossed(world)
    world.link.script += [Wait, Wait]
    world.app().run()
    assert version(world) == 0
    assert world.event_names().count("waiting_for_snapshot") == 1


def waits_after(world):
    """Let the client look; return what it refused. It goes on waiting, its model as it was."""
    world.link.script += [Wait, Wait]
    assert world.app().run().version == 0
    assert world.event_names().count("waiting_for_snapshot") == 1
    assert world.audit().count("snapshot_refused") == 1
    return world.audit()


def test_one_member_alone_cannot_vouch(world):
    crossed(world)
    world.link.offered = attested(world, world.puppets[0], world.puppets[0])
    waits_after(world)
    assert version(world) == 0


def test_strangers_cannot_vouch(world):
    crossed(world)
    honest = attested(world)
    strange = replace(honest.reports[1], client_id=world.stranger.client_id)
    strange = replace(strange, signature=world.stranger.sign(strange.statement()))
    world.link.offered = replace(honest, reports=(honest.reports[0], strange))
    assert '"code":"not_a_member"' in waits_after(world)


@pytest.mark.parametrize("changes", [{"state_tag": bytes(32)}, {"epoch": 1}, {"round": 2}])
def test_words_about_something_else_do_not_count(world, changes):
    crossed(world)
    world.link.offered = attested(world, **changes)
    waits_after(world)
    assert version(world) == 0


def test_another_copy_is_taken_when_it_comes(world):
    crossed(world)
    good = attested(world)
    world.link.offered = replace(good, blob=good.blob[::-1])

    def later():
        world.link.spare = [good]
        return Wait()

    world.link.script += [Wait, later]
    assert world.app().run().version == 3
    names = world.event_names()
    assert names.index("snapshot_refused") < names.index("waiting_for_snapshot")
    assert names.index("waiting_for_snapshot") < names.index("snapshot_taken")


def test_after_eight_wrong_copies_it_stops(world):
    """The rounds before are closed to it: there is nothing else that it could go on with."""
    crossed(world)
    fill = iter(range(1000))
    good = attested(world)
    world.link.snapshot = lambda *news: replace(good, blob=bytes([next(fill)]) * 64)  # type: ignore[method-assign]
    with pytest.raises(RefusedError, match="8 snapshots were refused"):
        follow(world)
    assert version(world) == 0
    assert world.audit().count("snapshot_refused") == 8


def test_a_member_who_crossed_says_which_model_it_has(world):
    played(world)

    def renew():
        world.epoch = world.make_epoch(epoch=2)
        return Wait()

    world.link.epoch_of_tasks = lambda: world.epoch.roster.epoch
    world.link.script += [Wait, renew, lambda: MakeSnapshot(round=RoundId(3))]
    world.app().run()
    assert "epoch_changed" in world.event_names()
    ((report, blob),) = world.link.snapshots
    assert report.metrics == b"" and report.epoch == 2
    verify(world.identity.public.signing_key, report.statement(), report.signature)
    (expected, _) = attested(world).reports
    assert report.model == expected.model
    seal = world.membership(world.puppets[0]).seal_of(RoundId(3))
    assert seal.unseal_snapshot(blob) == world.stored(3)


def test_the_secrets_of_an_epoch_do_not_outlive_it(world, monkeypatch):
    played(world)
    opened: list[Membership] = []

    def keep(*values, **options):
        opened.append(enrol(*values, **options))
        return opened[-1]

    def renew():
        world.epoch = world.make_epoch(epoch=2)
        return Wait()

    seen: list[bool] = []

    def look():
        with pytest.raises(KeysError, match="destroyed"):
            _ = opened[0].secrets.group_key
        seen.append(True)
        return Wait()

    monkeypatch.setattr("fedrec_client.app.enrol", keep)
    world.link.epoch_of_tasks = lambda: world.epoch.roster.epoch
    world.link.script += [Wait, renew, look]
    world.app().run()
    assert seen == [True] and [m.epoch for m in opened] == [1, 2]
    assert b"group_key" not in (world.state / STATE_FILE).read_bytes()
