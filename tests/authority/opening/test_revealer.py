"""The key authority's revealer: it opens honest sums, once, alone, and does nothing else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from world.fake_authority import AuthorityWorld, refused
from world.fake_link import Killed

from fedrec.durable import DiskFull
from fedrec.errors import NotInRoster, PlanMismatch
from fedrec.follower.database import StateDatabase
from fedrec.identity.public import verify
from fedrec.ids import RoundId
from fedrec.plan.agreement import plan_to_json
from fedrec.wire.messages import MakeSnapshot, Wait
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.revealer import STATE_FOLDER

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path):
    return AuthorityWorld(tmp_path)


def state_of(world):
    return OpenedSums(world.keys.revealer.folder / STATE_FOLDER, read_only=True).state


@pytest.mark.parametrize("protection", ["bfv", "paillier"])
def test_an_honest_sum_is_opened_by_its_word_alone(tmp_path, protection):
    world = AuthorityWorld(tmp_path, protection=protection)
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    ((statement, sealed),) = world.link.reveals
    revealer = world.revealer
    assert statement.client_id == revealer.client_id
    verify(revealer.public.signing_key, statement.statement(), statement.signature)
    known = world.membership(world.puppets[0])
    opened = known.vector_of("train", len(known.catalogue)).unpack(
        known.seal_of(round_.number).unseal_aggregate(sealed), 1
    )
    assert np.array_equal(opened, sum(world.vector(n) for n in range(3)))
    assert statement.metrics == opened[world.layout.metrics_slice].astype("<i8").tobytes()
    assert world.refusals() == ""
    (seen,) = (event for event in world.events if event.name == "sum revealed")
    assert seen.run == known.run


def test_it_trains_nothing_and_sends_no_model(world):
    round_ = world.honest_round()
    tasks: list[Callable[[], Any]] = [
        lambda: world.train(round_),
        lambda: MakeSnapshot(round=RoundId(0)),
        Wait,
        lambda: world.reveal(round_),
    ]
    world.run_revealer(*tasks)
    assert world.link.uploads == [] and world.link.snapshots == []
    assert len(world.link.reveals) == 1


def test_it_follows_what_is_published(world):
    """Each sum starts from the model that the sums before led to."""
    first = world.honest_round(1)

    def publish():
        world.publish(first)
        return Wait()

    def second():
        return world.reveal(world.honest_round(2))

    world.run_revealer(lambda: world.reveal(first), publish, second)
    assert [statement.round for statement, _ in world.link.reveals] == [1, 2]
    assert world.refusals() == ""
    assert state_of(world).version == 1


def test_a_full_disk_is_waited_for(world, key, monkeypatch):
    """The key is not used before what it is used for is kept; then it is used once."""
    round_ = world.honest_round()
    commit, asked = StateDatabase.write, list[int]()

    def full(database, table, records):
        if 0 < len(asked) < 4:
            raise DiskFull("state.sqlite cannot be written: database or disk is full.")
        commit(database, table, records)

    def reveal():
        assert not key.opened
        asked.append(1)
        return world.reveal(round_)

    monkeypatch.setattr(StateDatabase, "write", full)
    world.run_revealer(*[reveal] * 4)
    assert len(key.opened) == 1 and len(world.link.reveals) == 1
    seen = [event for event in world.events if event.name == "disk full"]
    assert len(seen) == 1 and "Retried until there is space." in seen[0].detail
    assert [event.name for event in world.events].count("revealer joined") == 1
    assert world.refusals() == ""


def test_a_coordinator_of_an_older_epoch_is_waited_for(world):
    """It does not know this revealer; once its operator brought the newest folder, work goes on."""
    world.epoch = world.make_epoch(epoch=2)
    round_ = world.honest_round()

    def refuse():
        error = NotInRoster("Not in the federation's roster.")
        error.epoch = 1
        raise error

    world.run_revealer(refuse, refuse, lambda: world.reveal(round_))
    assert len(world.link.reveals) == 1
    seen = [event.detail for event in world.events if event.name == "revealer waits"]
    assert len(seen) == 1 and "went back from key epoch 2 to 1" in seen[0]


def test_killed_before_its_word_arrived(world, key):
    """It says the same again, and never anything about another list of the same round."""
    round_ = world.honest_round()

    def killed(name):
        if name == "submit_reveal":
            raise Killed

    world.link.before = killed
    with pytest.raises(Killed):
        world.run_revealer(lambda: world.reveal(round_))
    world.link.before = lambda name: None
    assert key.opened == [world.total(round_)]
    world.run_revealer(lambda: world.reveal(round_))
    ((again, sealed),) = world.link.reveals
    expected, opened = world.state_of(round_)
    assert sealed == opened
    assert again.sequence == 1
    assert replace(again, sequence=expected.sequence, signature=expected.signature) == expected
    # What was said is on disk: the key is not used again.
    assert len(key.opened) == 1
    world.link.reveals.clear()
    key.opened.clear()
    world.put_vector(round_, world.identity, world.vector(8))
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "already opened with other contributions")


def test_a_round_that_is_published_is_over(world, key):
    round_ = world.honest_round()

    def publish():
        world.publish(round_)
        return Wait()

    world.run_revealer(lambda: world.reveal(round_), publish)
    world.link.reveals.clear()
    key.opened.clear()
    world.run_revealer(lambda: world.reveal(round_, base_round=RoundId(1)))
    assert world.link.reveals == [] and key.opened == []


def test_sums_refused_in_vain_end_the_answers_until_the_next_epoch(tmp_path):
    """Every answer about a message made to depend on the key tells a bit of the key."""
    world = AuthorityWorld(tmp_path)

    def wild(number):
        def task():
            round_ = world.open(number)
            world.contribute(round_, *world.puppets[:2])
            vector = world.vector(1)
            vector[world.layout.metrics_slice] = world.plan.federation.maximum_users << 20
            world.put_vector(round_, world.puppets[2], vector)
            return world.reveal(round_)

        return task

    # Asking again is no new answer.
    repeated = [wild(1)]
    repeated += [lambda: world.reveal(world.rounds[1])] * 2
    world.run_revealer(*repeated)
    assert state_of(world).refused_sums == 1
    world.run_revealer(*(wild(number) for number in range(2, 17)))
    assert state_of(world).refused_sums == 16
    world.run_revealer(lambda: world.reveal(world.honest_round(17)))
    assert world.link.reveals == []
    assert "Every further answer would reveal something about the key" in world.refusals()
    world.epoch = world.make_epoch(epoch=2)
    world.run_revealer(lambda: world.reveal(world.honest_round(18)))
    assert len(world.link.reveals) == 1


def test_above_the_limit_the_tags_alone_are_looked_at(tmp_path):
    rounds = {"recompute_limit": 3, "cells_per_round": 2}
    world = AuthorityWorld(tmp_path, n_puppets=5, rounds=rounds)
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    assert len(world.link.reveals) == 1
    assert world.link.calls.count("contribution") == 0
    assert state_of(world).refused_sums == 0


def test_secrets_of_earlier_epochs_are_destroyed(world):
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    assert world.keys.revealer.epochs == (1,)
    world.epoch = world.make_epoch(epoch=2)
    assert world.keys.revealer.epochs == (1, 2), "the epoch before may not be over"
    world.run_revealer(Wait)
    assert world.keys.revealer.epochs == (2,)


def test_a_folder_without_the_epochs_secret_waits_for_a_new_one(world):
    """After a backup was restored the authority cannot open sums until there is a new epoch."""
    (world.keys.revealer.folder / "epoch-00000001.secret").unlink()
    waited: list[float] = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            world.epoch = world.make_epoch(epoch=2)

    world.clock.advance = sleep  # type: ignore[method-assign]
    world.run_revealer(lambda: world.reveal(world.honest_round()))
    (event,) = [event for event in world.events if event.name == "revealer waits"]
    assert "fedrec keys rotate" in event.detail
    assert len(world.link.reveals) == 1 and len(waited) >= 3


def test_another_run_has_to_be_agreed_to(world):
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    world.link.reveals.clear()
    world.run = "run-2"
    with pytest.raises(PlanMismatch, match="run"):
        world.run_revealer(lambda: world.reveal(world.honest_round()))
    assert world.link.reveals == []
    world.link.script.clear()
    world.run_revealer(lambda: world.reveal(world.honest_round()), new_run=True)
    assert len(world.link.reveals) == 1
    world.run = "run-1"
    with pytest.raises(PlanMismatch, match="left it"):
        world.run_revealer(new_run=True)


def test_another_plan_than_the_data_owners_is_refused(world):
    seen = world.info
    other = world.plan.model_copy(
        update={"rounds": world.plan.rounds.model_copy(update={"total": 7})}
    )
    world.info = lambda **changes: replace(seen(), plan_json=plan_to_json(other))  # type: ignore[method-assign]
    with pytest.raises(PlanMismatch, match=r"rounds\.total"):
        world.run_revealer()
