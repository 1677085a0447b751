"""What a client believes about a published round, and what it stops at."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from world.fake_authority import AuthorityWorld
from world.fake_federation import World
from world.fake_link import Killed, follow, make_snapshot, version

from fedrec.errors import (
    BadSignature,
    MalformedUpdate,
    ProtocolError,
    RefusedError,
    RevealRefused,
    RoundClosed,
)
from fedrec.identity.public import verify
from fedrec.ids import RoundId
from fedrec.wire.messages import RevealStatement, Wait
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path):
    """Return a federation of the papers' protocol."""
    return World(tmp_path)


@pytest.fixture
def opened(tmp_path):
    """Return one whose sums the key authority opens."""
    return AuthorityWorld(tmp_path)


def falsify(world, change):
    round_ = world.play(1)
    assert round_.published is not None
    round_.published = change(round_.published, round_)


WORLDS: dict[str, Callable[..., World]] = {
    "none": partial(World, protection="none"),
    "members": World,
    "authority": AuthorityWorld,
}


def test_a_late_joiner_takes_every_round(world):
    world.play(1, "count")
    world.play(2)
    world.play(4)
    assert follow(world) == 4
    store = PrivateStore(world.state, read_only=True)
    assert store.state.shared is not None
    assert store.read(store.state.shared) == world.stored(4)


def test_a_client_behind_by_fifty_rounds_takes_them_all(tmp_path):
    world = World(tmp_path, protection="none")
    world.play(1)
    assert follow(world) == 1
    for number in range(2, 52):
        world.play(number)
    assert follow(world) == 51
    store = PrivateStore(world.state, read_only=True)
    assert store.state.shared is not None
    assert store.read(store.state.shared) == world.stored(51)


def resigned(world, found, **changes):
    """Return the round with a statement that the authority signed over false content."""
    assert found.statement is not None
    changed = replace(found.statement, **changes)
    return replace(found, statement=world.membership(world.revealer).sign_statement(changed))


@pytest.mark.parametrize(
    "part", ["manifest_digest", "state_tag", "metrics", "published_digest", "rows_digest"]
)
def test_statements_that_do_not_fit_the_blob(opened, part):
    falsify(opened, lambda found, _: resigned(opened, found, **{part: b"\x01" * 32}))
    with pytest.raises(BadSignature, match=part):
        follow(opened)
    assert version(opened) == 0
    assert '"event":"published_round_refused"' in opened.audit()


def test_no_statement(opened):
    falsify(opened, lambda found, _: replace(found, statement=None))
    with pytest.raises(BadSignature, match="key authority, the only party that opens sums"):
        follow(opened)


def test_a_statement_where_no_authority_opens_sums(tmp_path):
    world = World(tmp_path)
    falsify(
        world,
        lambda found, _: replace(
            found,
            statement=RevealStatement(
                federation="films",
                run=world.run,
                round=found.round,
                epoch=1,
                client_id=world.puppets[0].client_id,
                manifest_digest=bytes(32),
            ),
        ),
    )
    with pytest.raises(RefusedError, match="names no key authority"):
        follow(world)


def test_a_refusal_is_no_word_for_a_sum(opened):
    falsify(opened, lambda found, _: resigned(opened, found, refused="too few"))
    with pytest.raises(RefusedError, match="refused to open round 1"):
        follow(opened)


def test_a_forged_statement(opened):
    def forge(found, _):
        assert found.statement is not None
        forged = replace(found.statement, signature=bytes(64))
        return replace(found, statement=forged)

    falsify(opened, forge)
    with pytest.raises(BadSignature):
        follow(opened)


def test_a_statement_about_another_round(opened):
    first = opened.play(1)
    second = opened.play(2)
    assert second.published is not None
    second.published = replace(second.published, statement=first.published.statement)
    with pytest.raises(RefusedError, match="is about"):
        follow(opened)
    assert version(opened) == 1


def test_a_blob_of_another_round(opened):
    first, second = opened.play(1), opened.play(2)
    assert second.published is not None
    second.published = replace(second.published, blob=first.published.blob)
    with pytest.raises(BadSignature):
        follow(opened)
    assert version(opened) == 1


def test_a_round_that_was_left_out(world):
    """No client can hide a round: what the next one's clients signed follows from it."""
    world.play(1)
    world.play(2)
    world.rounds.pop(1)
    with pytest.raises(RefusedError, match="not of kind train from version 0"):
        follow(world)
    assert version(world) == 0


def test_another_kind_than_the_signed_one(world):
    falsify(world, lambda found, _: replace(found, kind="count"))
    with pytest.raises(RefusedError, match="not of kind count"):
        follow(world)
    assert version(world) == 0


@pytest.mark.parametrize("protection", WORLDS)
@pytest.mark.parametrize("seen", [{"kind": "evaluate"}, {"kind": "count"}, {"base_round": 5}])
def test_contributors_who_were_told_something_else(tmp_path, protection, seen):
    """Even where the key authority vouches for such a round, no other client believes it."""
    world = WORLDS[protection](tmp_path)
    round_ = world.open(1)
    world.contribute(round_)
    member = world.puppets[0]
    world.put(round_, member, round_.contributions[member.client_id][1], **seen)
    world.publish(round_)
    with pytest.raises(RefusedError, match="not of kind train from version 0"):
        follow(world)
    assert version(world) == 0
    assert '"event":"published_round_refused"' in world.audit()


def test_a_list_of_contributions_that_was_cut(world):
    falsify(world, lambda found, _: replace(found, contributions=found.contributions[:2]))
    with pytest.raises(RefusedError, match="at least 3"):
        follow(world)


def test_a_list_of_contributions_that_was_exchanged(tmp_path):
    world = AuthorityWorld(tmp_path, n_puppets=6)
    cell = {member.client_id for member in world.puppets[:3]}

    def cut(found, _):
        left = tuple(one for one in found.contributions if one.client_id in cell)
        return replace(found, contributions=left)

    falsify(world, cut)
    with pytest.raises(BadSignature, match="manifest_digest"):
        follow(world)


def test_a_contribution_with_a_forged_signature(world):
    def forge(found, _):
        first, *rest = found.contributions
        return replace(found, contributions=(replace(first, signature=bytes(64)), *rest))

    falsify(world, forge)
    with pytest.raises(BadSignature):
        follow(world)


def test_an_unsealed_round_of_the_key_authority(opened):
    falsify(opened, lambda found, round_: replace(found, blob=opened.total(round_)))
    with pytest.raises(MalformedUpdate, match="sealed"):
        follow(opened)
    assert version(opened) == 0


def test_an_old_round_again(world):
    first = world.play(1)
    assert follow(world) == 1
    world.rounds[2] = first
    world.published_round = RoundId(2)
    with pytest.raises(ProtocolError, match="after version 1"):
        follow(world)


def test_a_plain_sum_of_another_number(tmp_path):
    world = World(tmp_path, protection="none", rounds={"minimum_clients": 2})
    falsify(world, lambda found, _: replace(found, contributions=found.contributions[:2]))
    with pytest.raises(RevealRefused, match="3 summands"):
        follow(world)


@pytest.mark.parametrize("protection", ["bfv", "none"])
def test_a_round_of_fewer_clients_than_agreed(tmp_path, protection):
    """The plan's minimum binds a coordinator that published it."""
    world = World(tmp_path, protection=protection, rounds={"minimum_clients": 4})
    world.play(1)
    with pytest.raises(RefusedError, match="has 3 contributions, but needs at least 4"):
        follow(world)
    assert version(world) == 0


def test_a_plain_blob_that_cannot_be_read(tmp_path):
    world = World(tmp_path, protection="none")
    falsify(world, lambda found, _: replace(found, blob=found.blob[:-1]))
    with pytest.raises(MalformedUpdate):
        follow(world)
    assert version(world) == 0


@pytest.mark.parametrize("protection", WORLDS)
def test_a_model_of_ones_own(tmp_path, protection):
    """Contributors who were given another model sign another digest of it."""
    world = WORLDS[protection](tmp_path)
    round_ = world.open(1)
    honest = world.base_state

    def other(version):
        return bytes(32)

    world.base_state = other  # type: ignore[method-assign]
    world.contribute(round_)
    world.base_state = honest  # type: ignore[method-assign]
    world.publish(round_)
    with pytest.raises(RefusedError, match="from a different model"):
        follow(world)
    assert version(world) == 0


def test_a_blob_that_the_authority_did_not_seal(opened):
    falsify(
        opened, lambda found, _: replace(found, blob=found.blob[:-1] + bytes([found.blob[-1] ^ 1]))
    )
    with pytest.raises((BadSignature, RefusedError)):
        follow(opened)
    assert version(opened) == 0


class TestPapersProtocol:
    """Each client decrypts the published sum and tells what it found."""

    def metrics(self, world, round_):
        total = sum(world.vector(n, round_) for n in range(3))
        return total[world.round_vector(round_).layout.metrics_slice].astype("<i8").tobytes()

    def test_it_reports_the_last_round_once(self, world):
        world.play(1, "count")
        round_ = world.play(2)
        world.link.script += [Wait, Wait]
        assert world.app().run().version == 2
        (report,) = world.link.reports
        assert report == world.report(2, world.identity, self.metrics(world, round_))
        verify(world.identity.public.signing_key, report.statement(), report.signature)

    def test_it_reports_again_after_a_restart(self, world):
        """No client knows whether the first report arrived before the client was killed."""

        def kill(name):
            if name == "submit_report":
                raise Killed

        world.play(1)
        world.link.before = kill
        with pytest.raises(Killed):
            follow(world)
        assert version(world) == 1 and world.link.reports == []
        world.link.before = lambda name: None
        assert follow(world) == 1
        assert follow(world) == 1
        first, second = world.link.reports
        assert (
            first == second == world.report(1, world.identity, self.metrics(world, world.rounds[1]))
        )

    def test_no_client_reports_where_another_party_reads_the_sum(self, tmp_path):
        for name in ("none", "authority"):
            folder = tmp_path / name
            folder.mkdir()
            world = WORLDS[name](folder)
            world.play(1)
            assert follow(world) == 1
            assert world.link.reports == []

    def test_in_a_new_epoch_it_reports_under_the_new_key(self, world):
        """The coordinator may have been restarted in it, and compares words of one key only."""
        world.play(1)

        take = world.link.submit_report

        def taken(report):
            if report.epoch != world.epoch.roster.epoch or report.epoch == 1:
                raise RoundClosed("Key epoch 1 is over.")
            take(report)

        def renew():
            world.epoch = world.make_epoch(epoch=2)
            return Wait()

        world.link.submit_report = taken  # type: ignore[method-assign]
        world.link.epoch_of_tasks = lambda: world.epoch.roster.epoch
        world.link.script += [Wait, renew, Wait]
        assert world.app().run().version == 1
        (report,) = world.link.reports
        assert "stale" in world.event_names()
        assert report.epoch == 2 and report.model == world.report(1, world.puppets[0]).model

    def test_another_ciphertext_than_the_sum(self, tmp_path):
        """It is refused where it cannot be the sum of so many; honest is taken to be honest."""
        world = World(tmp_path)
        first = world.puppets[0].client_id

        def one(found, round_):
            total = world.protection.accumulator(world.context)
            total.add(round_.contributions[first][1])
            return replace(found, blob=total.finish())

        falsify(world, one)
        with pytest.raises(RevealRefused, match="summands"):
            follow(world)
        assert version(world) == 0
        assert "published_round_refused" in world.audit()
        assert world.link.reports == []

    def test_a_sum_that_is_kept_no_more(self, world):
        """A client that is too far behind takes a copy of the model that two reports name."""
        world.play(1, "count")
        assert follow(world) == 1
        world.play(2)
        world.play(3)
        world.link.gone = {2}

        def offer():
            world.link.offered = make_snapshot(world, 3)
            return Wait()

        world.link.script += [Wait, offer, Wait]
        assert world.app().run().version == 3
        names = world.event_names()
        assert names.count("waiting_for_snapshot") == 1
        assert names.index("waiting_for_snapshot") < names.index("snapshot_taken")
        assert {one.round for one in world.link.reports} == {1}, "it knows no metrics of round 3"
        store = PrivateStore(world.state, read_only=True)
        assert store.state.shared is not None
        assert store.read(store.state.shared) == world.stored(3)


def test_a_foreign_epoch_does_not_drive_a_client_into_a_snapshot(world):
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
