"""Rounds under masks and paused cells, as a client sees them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from world.cells import partition_of
from world.fake_authority import PLAN, AuthorityWorld
from world.fake_link import Killed, dying_at, first_step
from world.fake_masks import STEPS, MaskedWorld
from world.fake_parties import USERS

from fedrec.errors import BadSignature, RefusedError
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.cells import Standing
from fedrec.ids import RoundId
from fedrec.plan.planned_noise import mechanism_of
from fedrec.protection.masks import KeyList
from fedrec.protection.masks.messages import (
    KEY_LIST,
    key_list_from_bytes,
    pack,
    unpack,
)
from fedrec.wire.messages import Wait
from fedrec_authority.opening.sum_opening import _UNFIT
from fedrec_client.state.privacy_ledger import PrivacyLedger
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow


LIE = 2
"""The round in which the coordinator leaves a client out."""


class Lied(MaskedWorld):
    """Four clients who are always together; one of them is under test, another is left out."""

    tested_is_guest = False

    def lie(self, at):
        """Leave a puppet out of what the client is given for a step."""
        honest, out = self.link.masks, self.puppets[0].client_id

        def masks(client_id, run, round_id, step):
            raw = honest(client_id, run, round_id, step)
            if (round_id, step) != (LIE, at):
                return raw
            all_clients = sorted(member.client_id for member in self.epoch.roster.members)
            if step == "shares":
                keys = key_list_from_bytes(raw).keys
                return KEY_LIST.to_bytes(KeyList(tuple(k for k in keys if k.client_id != out)))
            left = unpack(raw, len(all_clients)) - {all_clients.index(out)}
            return pack(left, len(all_clients))

        self.link.masks = masks  # type: ignore[method-assign]

    def refusals(self):
        path = self.state / AUDIT_FILE
        lines = path.read_text().splitlines() if path.exists() else []
        return [(one["event"], one["code"], one["round"]) for one in map(json.loads, lines)]


@pytest.mark.parametrize(
    ("step", "sent"), [("shares", ["keys"]), ("signature", ["keys", "shares", "vector"])]
)
@pytest.mark.parametrize("kind", ["count", "train", "evaluate"])
def test_difference_of_one_client(tmp_path, kind, step, sent):
    """The sum of all four was opened; that of three would be the fourth's update.

    Where it gave its vector away, masked, it keeps what would take the masks off.
    """
    world = Lied(tmp_path)
    world.lie(step)
    world.then(1, kind, given_up=True)
    world.then(LIE, kind)
    assert world.app().run().version == 0
    assert world.refusals() == [("partial_cell", "partial_cell", LIE)]
    assert list(world.played[LIE].sent) == sent


def test_without_a_lie_all_is_well(tmp_path):
    world = Lied(tmp_path)
    for number, kind in enumerate(("count", "train", "evaluate"), 1):
        world.then(number, kind)
    assert world.app().run().version == 3
    assert world.refusals() == []


NOISE = {"mechanism": "gaussian", "expected_users": 3.0}


def noisy(folder, **privacy):
    return MaskedWorld(folder, privacy={**NOISE, **privacy})


def mechanism(world):
    found = mechanism_of(world.plan)
    assert found is not None
    return found


def rounds_of(world):
    """Return in how many rounds each user took part, by the client's ledger."""
    with PrivateStore(world.state, read_only=True) as store:
        ledger = PrivacyLedger.of(store)
    cost = mechanism(world).cost
    for account in ledger.accounts.values():
        assert account.spent == cost.times(account.rounds)
    return [account.rounds for account in ledger.accounts.values()]


def test_every_round_is_charged(tmp_path):
    world = noisy(tmp_path)
    world.then(1, "count")
    world.then(2)
    world.then(3)
    assert world.app().run().version == 3
    assert rounds_of(world) == [2] * len(USERS)


@pytest.mark.parametrize("mechanism_name", ["gaussian", "laplace"])
def test_users_stop_at_their_cap_and_the_noise_goes_on(tmp_path, mechanism_name):
    world = noisy(tmp_path, mechanism=mechanism_name, rounds_per_user=1)
    world.then(1)
    world.then(2)
    assert world.app().run().version == 2
    assert rounds_of(world) == [1] * len(USERS)
    noise = world.of_client(2)[world.layout.change_slice][world.layout.noisy]
    # No client took part: all of it is this client's share, whose law tests of noise compare.
    scale = mechanism(world).share
    assert np.count_nonzero(noise) > 0.9 * noise.size
    assert scale / 4 < np.abs(noise).mean() < 4 * scale


def calls_of_a_round(folder):
    folder.mkdir()
    world = noisy(folder)
    world.then(1)
    world.app().run()
    return world.link.calls.index("close")


@pytest.mark.slow
def test_killed_around_any_call_a_round_is_charged_once(tmp_path):
    """Whenever a masked vector goes out, the ledger on disk has it already; the bytes stay."""
    n_calls = calls_of_a_round(tmp_path / "calm")
    places = set()
    for kill_at in range(n_calls):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        world = noisy(folder)
        world.then(1)

        def kill(name, world=world, kill_at=kill_at):
            if name == "submit_update":
                assert rounds_of(world) == [1] * len(USERS)
            if len(world.link.calls) == kill_at + 1:
                places.add(name)
                raise Killed

        world.link.before = kill
        with pytest.raises(Killed):
            world.app().run()
        assert world.app().run().version == 1
        assert rounds_of(world) == [1] * len(USERS)
        sent = world.played[1].sent
        assert tuple(sent) == STEPS
        assert all(len(set(bodies)) == 1 for bodies in sent.values())
    assert {"next_task", "masks", "submit_masks", "submit_update"} <= places


@pytest.mark.parametrize("call", ["submit_masks", "submit_update"])
def test_killed_before_an_answer_arrives_the_same_bytes_go_out(tmp_path, call):
    world = noisy(tmp_path)
    world.then(1)
    left = [1]

    def kill(name):
        if name == call and left[0]:
            left[0] = 0
            raise Killed

    world.link.after = kill
    with pytest.raises(Killed):
        world.app().run()
    assert world.app().run().version == 1
    assert rounds_of(world) == [1] * len(USERS)
    assert all(len(set(bodies)) == 1 for bodies in world.played[1].sent.values())


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 5])
def test_killed_at_every_write_a_round_is_charged_once(tmp_path, monkeypatch, every):
    """Dies at every n-th fsync, rename or commit, and is started again."""
    for step in range(first_step(every), 400, every):
        folder = tmp_path / str(step)
        folder.mkdir()
        world = noisy(folder)
        world.then(1)
        try:
            with dying_at(monkeypatch, step):
                world.app().run()
            survived = True
        except Killed:
            survived = False
        if survived:
            break
        assert world.app().run().version == 1, step
        assert rounds_of(world) == [1] * len(USERS), step
    assert step > 30


@pytest.mark.parametrize("until", STEPS[:-1])
def test_only_a_vector_that_may_have_been_sent_costs_anything(tmp_path, until):
    """Keys and shares say nothing about users; a vector does, also where its round is abandoned."""
    world = noisy(tmp_path, rounds_per_user=1)
    world.then(1, until=until)
    assert world.app().run().version == 0
    assert rounds_of(world) == ([] if until in ("keys", "shares") else [1] * len(USERS))
    world.then(2)
    assert world.app().run().version == 2
    assert rounds_of(world) == [1] * len(USERS)


def named(world, round_, *cells):
    """Publish a round whose statement pauses some cells."""
    published = world.publish(round_)
    assert published.statement is not None
    text = replace(published.statement, paused=cells)
    signed = world.membership(world.revealer).sign_statement(text)
    round_.published = replace(published, statement=signed)


def test_a_client_of_a_paused_cell_waits_and_says_for_what(tmp_path):
    """It rolls its round back, and answers no further one, whatever the coordinator asks."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    first = world.ask_to_train(1)

    def publish():
        for member in (world.identity, *world.puppets[:3]):
            del first.contributions[member.client_id]
        named(world, first, 1)
        return Wait()

    def ask_again():
        return world.train(world.open(2))

    world.link.script += [publish, ask_again]
    world.app().run()
    assert [header.round for header, _ in world.link.uploads] == [1]
    (settled,) = [event for event in world.events if event.name == "published"]
    assert settled.detail == "not_counted: cell_paused"
    (seen,) = [event for event in world.events if event.name == "cell_paused"]
    assert "waits until the key authority resumes the cell" in seen.detail
    with PrivateStore(world.state, read_only=True) as store:
        assert (store.state.version, store.state.private, store.state.staged) == (1, None, None)
    # It knows it still when it is started again.
    world.events.clear()
    world.link.script.append(ask_again)
    world.app().run()
    assert len(world.link.uploads) == 1 and "cell_paused" in world.event_names()


def test_a_client_of_another_cell_goes_on(tmp_path):
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    first = world.ask_to_train(1)

    def publish():
        for member in world.puppets[3:]:
            del first.contributions[member.client_id]
        named(world, first, 2)
        return Wait()

    world.link.script.append(publish)
    world.ask_to_train(2)
    world.app().run()
    assert [header.round for header, _ in world.link.uploads] == [1, 2]
    assert "cell_paused" not in world.event_names()
    (settled,) = [event for event in world.events if event.name == "published"]
    assert settled.detail == "counted"


@pytest.mark.parametrize(
    ("cells", "text"), [((2,), "clients of paused cells"), ((7,), "doesn't have")]
)
def test_a_word_that_does_not_fit_what_is_published(tmp_path, cells, text):
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    named(world, world.honest_round(), *cells)
    world.link.script.append(Wait)
    with pytest.raises(RefusedError, match=text):
        world.app().run()
    assert '"event":"published_round_refused"' in world.audit()


def test_a_newcomer_is_told_that_it_waits_for_others(tmp_path):
    world = AuthorityWorld(tmp_path, n_puppets=3, **PLAN)
    placed = partition_of(one.client_id for one in world.puppets)
    mine = Standing(client_id=world.identity.client_id)
    standings = (*placed.standings, mine)
    world.epoch = world.make_epoch(partition=replace(placed, standings=standings))
    world.app().run()
    (seen,) = [event for event in world.events if event.name == "unplaced"]
    assert seen.detail.startswith("a member, but in no sum yet: newcomers are summed with")
    assert "2 more have to join. " in seen.detail


def test_a_pause_written_over_the_signed_word(tmp_path):
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    round_ = world.honest_round()
    published = world.publish(round_)
    assert published.statement is not None
    round_.published = replace(published, statement=replace(published.statement, paused=(3,)))
    world.link.script.append(Wait)
    with pytest.raises(BadSignature):
        world.app().run()


def test_it_says_that_a_round_was_given_up(tmp_path):
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    world.link.script.append(lambda: Wait(reason=_UNFIT, about=RoundId(4)))
    world.app().run()
    (seen,) = [event for event in world.events if event.name == "round_refused"]
    assert (seen.round, seen.detail) == (4, _UNFIT)
