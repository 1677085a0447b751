"""What a round under masks costs its users is charged once, with the vector that says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from client.support.dying import dying_at
from client.support.fake_link import Killed
from client.support.fake_parties import USERS
from client.support.masked_federation import STEPS, MaskedWorld

from fedrec.plan.planned_noise import mechanism_of
from fedrec.privacy import Mechanism
from fedrec_client.state.privacy_ledger import PrivacyLedger
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow

NOISE = {"mechanism": "gaussian", "expected_users": 3.0}


def noisy(folder: Path, **privacy: object) -> MaskedWorld:
    return MaskedWorld(folder, privacy={**NOISE, **privacy})


def mechanism(world: MaskedWorld) -> Mechanism:
    found = mechanism_of(world.plan)
    assert found is not None
    return found


def rounds_of(world: MaskedWorld) -> list[int]:
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
    # Nobody took part: all of it is this client's share, whose law tests of noise compare.
    scale = mechanism(world).share
    assert np.count_nonzero(noise) > 0.9 * noise.size
    assert scale / 4 < np.abs(noise).mean() < 4 * scale


def calls_of_a_round(folder: Path) -> int:
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

        def kill(name: str, world: MaskedWorld = world, kill_at: int = kill_at) -> None:
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

    def kill(name: str) -> None:
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
def test_killed_at_every_write_a_round_is_charged_once(tmp_path, monkeypatch):
    """Dies at the i-th fsync, rename or commit, for all i, and is started again."""
    for step in range(1, 400):
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
