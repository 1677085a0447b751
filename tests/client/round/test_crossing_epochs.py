"""Crossing into a new key epoch: who vouches for the model, and what becomes of the old keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from client.support.fake_federation import World
from client.support.following import attested, crossed, follow, played, version

from fedrec.errors import KeysError, RefusedError
from fedrec.follower.database import STATE_FILE
from fedrec.follower.enrolment import enrol
from fedrec.follower.membership import Membership
from fedrec.identity.public import verify
from fedrec.ids import RoundId
from fedrec.wire.messages import MakeSnapshot, Wait
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


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


def waits_after(world: World) -> str:
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


def test_a_copy_that_does_not_open_is_passed_over_for_another(world):
    """Two vouch for the model, and whoever sent the copy sent rubbish."""
    crossed(world)
    good = attested(world)
    world.link.offered, world.link.spare = replace(good, blob=good.blob[::-1]), [good]
    assert follow(world) == 3
    assert "snapshot_taken" in world.event_names()
    assert world.audit().count("snapshot_refused") == 1


def test_another_copy_is_taken_when_it_comes(world):
    crossed(world)
    good = attested(world)
    world.link.offered = replace(good, blob=good.blob[::-1])

    def later() -> Wait:
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
    world.link.snapshot = lambda *told: replace(good, blob=bytes([next(fill)]) * 64)  # type: ignore[method-assign]
    with pytest.raises(RefusedError, match="8 snapshots could not be used"):
        follow(world)
    assert version(world) == 0
    assert world.audit().count("snapshot_refused") == 8


def test_a_member_who_crossed_says_which_model_it_has(world):
    played(world)

    def renew() -> Wait:
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
    assert b"group_key" not in (world.state / STATE_FILE).read_bytes()
