"""What a client believes about a published round, and what it stops at."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from client.fake_federation import FakeRound, World
from client.following import follow, version

from fedrec.errors import (
    BadSignature,
    MalformedUpdate,
    NotInRoster,
    ProtocolError,
    RefusedError,
    RevealRefused,
)
from fedrec.ids import RoundId
from fedrec.wire.committee import draw
from fedrec.wire.messages import PublishedRound
from fedrec_client.private_store import PrivateStore


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


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
    assert store.read(store.state.shared) == world.stored(4)


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
