"""What a client believes about a published round, and what it stops at."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from client.fake_federation import FakeRound, World

from fedrec.errors import (
    BadSignature,
    KeysError,
    MalformedUpdate,
    NotInRoster,
    ProtocolError,
    RefusedError,
    RevealRefused,
)
from fedrec.identity.identity import Identity
from fedrec.identity.public import verify
from fedrec.ids import RoundId
from fedrec.training.state import SharedState
from fedrec.wire.committee import draw
from fedrec.wire.messages import (
    UNSAID,
    MakeSnapshot,
    PublishedRound,
    RevealStatement,
    Snapshot,
    Wait,
)
from fedrec_client.enrolment import enrol
from fedrec_client.membership import Membership
from fedrec_client.private_store import PrivateStore


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def version(world: World) -> int:
    return PrivateStore(world.state, read_only=True).state.version


def follow(world: World) -> int:
    world.link.script.append(Wait)
    return world.app().run().version


def falsify(world: World, change: Callable[[PublishedRound, FakeRound], PublishedRound]) -> None:
    round_ = world.play(1)
    assert round_.published is not None
    round_.published = change(round_.published, round_)


def test_a_late_joiner_takes_every_round(world: World) -> None:
    world.play(1, "count")
    world.play(2)
    world.play(4)
    assert follow(world) == 4
    store = PrivateStore(world.state, read_only=True)
    assert store.state.shared is not None
    assert store.read(store.state.shared) == world.shared[4].to_bytes()


def resigned(world: World, round_: FakeRound, **changes: bytes) -> PublishedRound:
    """Return the round with statements that two puppets signed over false content."""
    assert round_.published is not None
    signers = {puppet.client_id: puppet for puppet in world.puppets}
    statements = tuple(
        world.membership(signers[said.client_id]).sign_statement(replace(said, **changes))
        for said in round_.published.statements
    )
    return replace(round_.published, statements=statements)


@pytest.mark.parametrize(
    "part", ["manifest_digest", "aggregate_tag", "state_tag", "locked_metrics"]
)
def test_statements_that_do_not_fit_the_blob(world: World, part: str) -> None:
    falsify(world, lambda found, round_: resigned(world, round_, **{part: b"\x00" * 32}))
    with pytest.raises(BadSignature, match=part):
        follow(world)
    assert version(world) == 0
    assert '"event":"published_round_refused"' in world.audit()


def test_one_statement(world: World) -> None:
    falsify(world, lambda found, _: replace(found, statements=found.statements[:1]))
    with pytest.raises(BadSignature, match="1 distinct"):
        follow(world)


def test_one_statement_twice(world: World) -> None:
    falsify(world, lambda found, _: replace(found, statements=found.statements[:1] * 2))
    with pytest.raises(BadSignature, match="1 distinct"):
        follow(world)
    assert version(world) == 0


def test_a_forged_statement(world: World) -> None:
    def forge(found: PublishedRound, _: FakeRound) -> PublishedRound:
        first, second = found.statements
        return replace(found, statements=(first, replace(second, signature=first.signature)))

    falsify(world, forge)
    with pytest.raises(BadSignature):
        follow(world)


def test_a_statement_by_a_stranger(world: World) -> None:
    def forge(found: PublishedRound, _: FakeRound) -> PublishedRound:
        first, second = found.statements
        claimed = replace(second, client_id=world.stranger.client_id)
        signed = replace(claimed, signature=world.stranger.sign(claimed.statement()))
        return replace(found, statements=(first, signed))

    falsify(world, forge)
    with pytest.raises(NotInRoster):
        follow(world)


def test_statements_that_contradict_each_other(world: World) -> None:
    def forge(found: PublishedRound, _: FakeRound) -> PublishedRound:
        first, second = found.statements
        author = next(p for p in world.puppets if p.client_id == second.client_id)
        other = world.membership(author).sign_statement(replace(second, state_tag=b"\x01" * 32))
        return replace(found, statements=(first, other))

    falsify(world, forge)
    with pytest.raises(RefusedError, match="contradict"):
        follow(world)


def test_statements_about_another_round(world: World) -> None:
    first = world.play(1)
    second = world.play(2)
    assert first.published is not None
    assert second.published is not None
    second.published = replace(second.published, statements=first.published.statements)
    with pytest.raises(RefusedError, match="is about"):
        follow(world)
    assert version(world) == 1


def test_a_blob_of_another_round(world: World) -> None:
    first, second = world.play(1), world.play(2)
    assert first.published is not None
    assert second.published is not None
    second.published = replace(second.published, blob=first.published.blob)
    with pytest.raises(BadSignature):
        follow(world)
    assert version(world) == 1


def test_a_round_that_was_left_out(world: World) -> None:
    """Nobody can hide a round: what the next one's clients signed follows from it."""
    world.play(1)
    world.play(2)
    world.rounds.pop(1)
    with pytest.raises(RefusedError, match="from version 1, expected kind train from version 0"):
        follow(world)
    assert version(world) == 0


def test_another_kind_than_the_signed_one(world: World) -> None:
    falsify(world, lambda found, _: replace(found, kind="count"))
    with pytest.raises(RefusedError, match="kind train from version 0, expected kind count"):
        follow(world)
    assert version(world) == 0


@pytest.mark.parametrize("protection", ["bfv", "none"])
@pytest.mark.parametrize("told", [{"kind": "evaluate"}, {"kind": "count"}, {"base_round": 5}])
def test_contributors_who_were_told_something_else(
    tmp_path: Path, protection: str, told: dict[str, Any]
) -> None:
    """Even where two key holders vouch for such a round, nobody else believes it."""
    world = World(tmp_path, protection=protection)
    round_ = world.open(1)
    world.contribute(round_)
    member = world.puppets[0]
    world.put(round_, member, round_.contributions[member.client_id][1], **told)
    world.publish(round_)
    with pytest.raises(RefusedError, match="expected kind train from version 0"):
        follow(world)
    assert version(world) == 0
    assert '"event":"published_round_refused"' in world.audit()


def test_a_list_of_contributions_that_was_cut(world: World) -> None:
    falsify(world, lambda found, _: replace(found, contributions=found.contributions[:2]))
    with pytest.raises(RefusedError, match="at least 3"):
        follow(world)


def test_a_list_of_contributions_that_was_exchanged(tmp_path: Path) -> None:
    world = World(tmp_path, n_puppets=4)
    falsify(world, lambda found, _: replace(found, contributions=found.contributions[1:]))
    with pytest.raises(BadSignature, match="manifest_digest"):
        follow(world)


def test_a_contribution_with_a_forged_signature(world: World) -> None:
    def forge(found: PublishedRound, _: FakeRound) -> PublishedRound:
        first, *rest = found.contributions
        return replace(found, contributions=(replace(first, signature=bytes(64)), *rest))

    falsify(world, forge)
    with pytest.raises(BadSignature):
        follow(world)


def test_an_unsealed_round_under_encryption(world: World) -> None:
    falsify(world, lambda found, _: replace(found, sealed=False, statements=()))
    with pytest.raises(RefusedError, match="not sealed"):
        follow(world)


def test_a_round_published_with_others_than_those_we_opened(tmp_path: Path) -> None:
    world = World(tmp_path, n_puppets=4)
    round_ = world.open(1)
    world.contribute(round_)
    world.link.script.append(lambda: world.reveal(round_))
    world.app().run()
    round_.contributions.pop(world.puppets[3].client_id)
    world.publish(round_)
    with pytest.raises(RefusedError, match="other contributions"):
        follow(world)
    assert version(world) == 0


def test_an_old_round_again(world: World) -> None:
    first = world.play(1)
    assert follow(world) == 1
    world.rounds[2] = first
    world.published_round = RoundId(2)
    with pytest.raises(ProtocolError, match="as newer than"):
        follow(world)


def test_plain_rounds_are_applied(tmp_path: Path) -> None:
    world = World(tmp_path, protection="none")
    world.play(1, "count")
    world.play(2)
    assert follow(world) == 2


def test_a_plain_sum_of_another_number(tmp_path: Path) -> None:
    world = World(tmp_path, protection="none", rounds={"minimum_clients": 2})
    falsify(world, lambda found, _: replace(found, contributions=found.contributions[:2]))
    with pytest.raises(RevealRefused, match="3 summands"):
        follow(world)


@pytest.mark.parametrize("protection", ["bfv", "none"])
def test_a_round_of_fewer_clients_than_agreed(tmp_path: Path, protection: str) -> None:
    """The plan's minimum binds a coordinator that published it."""
    world = World(tmp_path, protection=protection, rounds={"minimum_clients": 4})
    world.play(1)
    with pytest.raises(RefusedError, match="has 3 contributions, expected at least 4"):
        follow(world)
    assert version(world) == 0


def test_a_plain_blob_that_cannot_be_read(tmp_path: Path) -> None:
    world = World(tmp_path, protection="none")
    falsify(world, lambda found, _: replace(found, blob=found.blob[:-1]))
    with pytest.raises(MalformedUpdate):
        follow(world)
    assert version(world) == 0


# Snapshots.


def make_snapshot(world: World, number: int, shared: SharedState | None = None) -> Snapshot:
    """Return what another member sends after a round, correct unless `shared` is given."""
    round_ = world.rounds[number]
    assert round_.published is not None
    maker = world.membership(world.puppets[2])
    statement = maker.sign_statement(
        replace(round_.published.statements[0], client_id=maker.client_id)
    )
    raw = (shared or world.shared[number]).to_bytes()
    return Snapshot(
        round=RoundId(number),
        epoch=1,
        statements=(statement,),
        sealed=True,
        blob=maker.seal_of(RoundId(number), "train").seal_snapshot(raw),
    )


def played(world: World) -> None:
    world.play(1, "count")
    world.play(2)
    world.play(3)


def test_a_late_joiner_starts_from_a_snapshot(world: World) -> None:
    played(world)
    world.link.offered = make_snapshot(world, 3)
    assert follow(world) == 3
    assert "snapshot_taken" in world.event_names()
    store = PrivateStore(world.state, read_only=True)
    assert store.state.shared is not None
    assert store.read(store.state.shared) == world.shared[3].to_bytes()


def test_a_snapshot_is_followed_by_the_later_rounds(world: World) -> None:
    played(world)
    world.link.offered = make_snapshot(world, 2)
    assert follow(world) == 3


def test_a_snapshot_that_nobody_but_its_maker_signed(world: World) -> None:
    played(world)
    false = world.shared[3].with_tensors(item_embedding=-world.shared[3].tensors["item_embedding"])
    maker = world.membership(world.puppets[2])
    tag = maker.seal_of(RoundId(3), "train").state_tag(false.canonical_bytes())
    honest = make_snapshot(world, 3, false)
    statement = maker.sign_statement(replace(honest.statements[0], state_tag=tag))
    world.link.offered = replace(honest, statements=(statement,))
    with pytest.raises(RefusedError, match="contradict"):
        follow(world)
    assert version(world) == 0
    assert '"event":"snapshot_refused"' in world.audit()


def test_a_snapshot_of_another_state(world: World) -> None:
    played(world)
    world.link.offered = make_snapshot(world, 3, world.shared[2])
    with pytest.raises(BadSignature, match="not the model"):
        follow(world)


def test_a_snapshot_of_other_shapes(world: World) -> None:
    played(world)
    world.link.offered = make_snapshot(
        world, 3, SharedState({"item_embedding": world.shared[3].tensors["item_embedding"][:2]})
    )
    with pytest.raises(ProtocolError, match="tensors"):
        follow(world)


def test_a_snapshot_is_sent_when_asked_for_and_others_take_it(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    played(world)
    world.link.script += [Wait, lambda: MakeSnapshot(round=RoundId(3))]
    world.app().run()
    ((statement, blob),) = world.link.snapshots
    verify(world.identity.public.signing_key, statement.statement(), statement.signature)
    seal = world.membership(world.puppets[0]).seal_of(RoundId(3), "train")
    assert seal.unseal_snapshot(blob) == world.shared[3].to_bytes()
    world.link.offered = Snapshot(
        round=RoundId(3), epoch=1, statements=(statement,), sealed=True, blob=blob
    )
    late = tmp_path_factory.mktemp("late")
    world.state = late
    for name in ("identity.key", "identity.pub.json"):
        (late / name).write_bytes((world.folder / "state" / name).read_bytes())
        (late / name).chmod(0o600)
    assert follow(world) == 3


# Snapshots of rounds that were published in an earlier epoch.


def crossed(world: World) -> None:
    """Let the federation go on with new keys after round 3."""
    played(world)
    world.epoch = world.make_epoch(epoch=2)


def attested(world: World, *makers: Identity, **changes: Any) -> Snapshot:
    """Return a snapshot of round 3 for which members of the new epoch vouch."""
    shared = world.shared[3]
    statements = []
    for maker in makers or world.puppets[:2]:
        known = world.membership(maker)
        statement = RevealStatement(
            federation="films",
            run=world.run,
            round=RoundId(3),
            epoch=2,
            client_id=maker.client_id,
            manifest_digest=UNSAID,
            aggregate_tag=UNSAID,
            state_tag=known.seal_of(RoundId(3), "train").state_tag(shared.canonical_bytes()),
            published_digest=UNSAID,
            locked_metrics=b"",
        )
        statements.append(known.sign_statement(replace(statement, **changes)))
    seal = world.membership(world.puppets[0]).seal_of(RoundId(3), "train")
    return Snapshot(
        round=RoundId(3),
        epoch=2,
        statements=tuple(statements),
        sealed=True,
        blob=seal.seal_snapshot(shared.to_bytes()),
    )


def test_two_members_who_crossed_vouch_for_a_snapshot(world: World) -> None:
    crossed(world)
    world.link.offered = attested(world)
    assert follow(world) == 3
    state = PrivateStore(world.state, read_only=True).state
    assert state.shared is not None and state.content is None


def test_without_a_snapshot_it_waits(world: World) -> None:
    crossed(world)
    world.link.script += [Wait, Wait]
    world.app().run()
    assert version(world) == 0
    assert world.event_names().count("waiting_for_snapshot") == 1


def test_one_member_alone_cannot_vouch(world: World) -> None:
    crossed(world)
    world.link.offered = attested(world, world.puppets[0], world.puppets[0])
    with pytest.raises(RefusedError):
        follow(world)
    assert version(world) == 0


def test_strangers_cannot_vouch(world: World) -> None:
    crossed(world)
    honest = attested(world)
    strange = replace(honest.statements[1], client_id=world.stranger.client_id)
    strange = replace(strange, signature=world.stranger.sign(strange.statement()))
    world.link.offered = replace(honest, statements=(honest.statements[0], strange))
    with pytest.raises(NotInRoster):
        follow(world)


@pytest.mark.parametrize("changes", [{"state_tag": bytes(32)}, {"epoch": 1}, {"round": 2}])
def test_words_about_something_else_do_not_count(world: World, changes: dict[str, Any]) -> None:
    crossed(world)
    world.link.offered = attested(world, **changes)
    with pytest.raises(RefusedError):
        follow(world)
    assert version(world) == 0


def test_a_member_who_crossed_says_which_model_it_has(world: World) -> None:
    played(world)

    def renew() -> Wait:
        world.epoch = world.make_epoch(epoch=2)
        return Wait()

    world.link.epoch_of_tasks = lambda: world.epoch.roster.epoch
    world.link.script += [Wait, renew, lambda: MakeSnapshot(round=RoundId(3))]
    world.app().run()
    assert "epoch_changed" in world.event_names()
    ((statement, blob),) = world.link.snapshots
    assert statement.is_attestation and statement.epoch == 2
    verify(world.identity.public.signing_key, statement.statement(), statement.signature)
    (expected, _) = attested(world).statements
    assert statement.state_tag == expected.state_tag
    seal = world.membership(world.puppets[0]).seal_of(RoundId(3), "train")
    assert seal.unseal_snapshot(blob) == world.shared[3].to_bytes()


def test_the_secrets_of_an_epoch_do_not_outlive_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(world)
    opened: list[Membership] = []

    def keep(*values: Any, **options: Any) -> Membership:
        opened.append(enrol(*values, **options))
        return opened[-1]

    def renew() -> Wait:
        world.epoch = world.make_epoch(epoch=2)
        return Wait()

    seen: list[bool] = []

    def look() -> Wait:
        with pytest.raises(KeysError, match="destroyed"):
            _ = opened[0].secrets.group_key
        seen.append(True)
        return Wait()

    monkeypatch.setattr("fedrec_client.app.enrol", keep)
    world.link.epoch_of_tasks = lambda: world.epoch.roster.epoch
    world.link.script += [Wait, renew, look]
    world.app().run()
    assert seen == [True] and [m.epoch for m in opened] == [1, 2]
    assert "group_key" not in (world.state / "state.json").read_text()


def test_a_snapshot_of_a_version_we_do_not_have(world: World) -> None:
    world.link.script.append(lambda: MakeSnapshot(round=RoundId(3)))
    world.app().run()
    assert world.link.snapshots == []
    assert "stale" in world.event_names()


def test_a_voucher_outside_the_committee(tmp_path: Path) -> None:
    """Only those whom the draw gave the round may vouch for it, however many others do."""
    world = World(tmp_path, n_puppets=5)

    def forge(found: PublishedRound, round_: FakeRound) -> PublishedRound:
        outside = [p for p in world.puppets if p.client_id not in round_.committee]
        words = tuple(world.state_of(round_, puppet)[0] for puppet in outside[:2])
        return replace(found, statements=words)

    falsify(world, forge)
    with pytest.raises(RefusedError, match="not in its committee"):
        follow(world)
    assert version(world) == 0


def test_a_published_committee_that_was_chosen(tmp_path: Path) -> None:
    """Contributors who rank before a committee's members show that it was not drawn."""
    world = World(tmp_path, n_puppets=5)
    round_ = world.open(1)
    order = draw(
        world.seed(), world.run, round_.number, [puppet.client_id for puppet in world.puppets]
    )
    worst = sorted({p.client_id for p in world.puppets} - set(order))
    round_.committee = (worst[0], worst[1], order[2])
    world.contribute(round_)
    world.publish(round_)
    with pytest.raises(RefusedError, match="not the one that was drawn"):
        follow(world)


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_a_model_of_ones_own(tmp_path: Path, protection: str) -> None:
    """Contributors who were given another model sign another digest of it."""
    world = World(tmp_path, protection=protection)
    round_ = world.open(1)
    honest = world.base_state

    def other(version: int) -> bytes:
        return bytes(32)

    world.base_state = other  # type: ignore[method-assign]
    world.contribute(round_)
    world.base_state = honest  # type: ignore[method-assign]
    world.publish(round_)
    with pytest.raises(RefusedError, match="from another model of version 0"):
        follow(world)
    assert version(world) == 0


def test_words_of_a_snapshot_are_no_words_of_a_committee(world: World) -> None:
    """Whoever vouched for a copy of the model did not open a sum."""

    def forge(found: PublishedRound, round_: FakeRound) -> PublishedRound:
        return resigned(world, round_, share=b"")

    falsify(world, forge)
    with pytest.raises(RefusedError, match="is that of a snapshot"):
        follow(world)


def test_a_blob_that_only_one_key_holder_made(world: World) -> None:
    """Two agree on the sum, and one of them sealed rubbish: it is not what they signed."""
    falsify(world, lambda found, _: replace(found, blob=found.blob[:-1] + b"x"))
    with pytest.raises((BadSignature, RefusedError)):
        follow(world)
    assert version(world) == 0


def test_a_foreign_epoch_does_not_drive_a_client_into_a_snapshot(world: World) -> None:
    world.play(1)
    round_ = world.play(2)
    assert round_.published is not None
    follow_to = world.rounds.pop(2)
    world.published_round = RoundId(1)
    world.app().run()
    assert version(world) == 1
    world.rounds[2] = follow_to
    world.published_round = RoundId(2)
    follow_to.published = replace(round_.published, epoch=0)
    with pytest.raises(RefusedError, match="key epoch 0"):
        world.app().run()
    assert version(world) == 1
    assert "snapshot" not in world.link.calls
