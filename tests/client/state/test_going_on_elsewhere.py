"""A client that is started again where training rounds otherwise than before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from client.support.fake_federation import World
from client.support.fake_parties import USERS

from fedrec.arithmetic import arithmetic_of
from fedrec.errors import RefusedError
from fedrec.ids import RoundId
from fedrec_client.recommending import Wanted, export_model, recommend
from fedrec_client.state.client_state import ClientState
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow

OTHER = "OPENBLAS_CORETYPE"
"""Part of the arithmetic; a process that has loaded the library does not look at it any more."""


@pytest.fixture(autouse=True)
def _absent(monkeypatch):
    """Some machines set it; the library is loaded already and does not look at it."""
    monkeypatch.delenv(OTHER, raising=False)


def state_of(world: World) -> ClientState:
    return PrivateStore(world.state, read_only=True).state


def contents(world: World) -> dict[str, bytes]:
    """The state folder byte by byte, but for the lock, which names the last process."""
    return {
        path.name: path.read_bytes()
        for path in world.state.iterdir()
        if path.is_file() and path.name != "lock"
    }


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A client in the middle of a run: it answered two rounds."""
    made = World(tmp_path)
    made.whole_round(1, "count")
    made.whole_round(2)
    made.app().run()
    return made


def test_the_state_says_what_trained_it(world):
    found = state_of(world).provenance
    assert found is not None
    assert found.arithmetic == arithmetic_of("cpu")
    assert found.path == "fedmf accelerator 1"
    assert found.accepted == ()


def test_it_is_refused_at_once_and_nothing_is_touched(world, monkeypatch):
    before, calls = contents(world), list(world.link.calls)
    with monkeypatch.context() as patched:
        patched.setenv(OTHER, "Prescott")
        with pytest.raises(RefusedError, match=f"{OTHER} is Prescott, not absent") as caught:
            world.app().run()
    assert str(world.state) in caught.value.message
    assert "--accept-other-arithmetic" in caught.value.remedy
    assert "as good" in caught.value.remedy
    # A coordinator that is away does not hide it.
    assert world.link.calls == [*calls, "close"]
    assert contents(world) == before
    world.whole_round(3)
    assert world.app().run().version == 3


def test_accepted_it_goes_on_and_says_so_for_good(world, monkeypatch):
    own = arithmetic_of("cpu").digest()
    monkeypatch.setenv(OTHER, "Prescott")
    world.whole_round(3)
    assert world.app(accept_other_arithmetic=True).run().version == 3
    found = state_of(world).provenance
    assert found is not None
    (change,) = found.accepted
    assert change.round == 2
    assert (change.before, change.after) == (own, arithmetic_of("cpu").digest())
    record = json.loads((world.state / "environment.json").read_text())
    assert record["accepted"][0]["before"] == own
    assert record["format"] == 11
    # From then on this arithmetic is the run's own.
    world.whole_round(4)
    assert world.app().run().version == 4
    assert state_of(world).provenance == found


def test_another_release_is_refused_even_if_accepted(world, monkeypatch):
    """The coordinator would refuse each of its updates, and the way back would be closed."""
    before = contents(world)
    world.whole_round(3)
    with monkeypatch.context() as patched:
        patched.setattr("fedrec.environment.training_path", lambda plan: "fedmf accelerator 2")
        with pytest.raises(RefusedError, match="began under fedmf accelerator 1") as caught:
            world.app(accept_other_arithmetic=True).run()
    assert "with the release that began it" in caught.value.remedy
    assert contents(world) == before
    assert world.app().run().version == 3


def test_before_the_first_answer_there_is_nothing_to_refuse(tmp_path, monkeypatch):
    world = World(tmp_path)
    world.app().run()
    monkeypatch.setenv(OTHER, "Prescott")
    world.whole_round(1, "count")
    assert world.app().run().version == 1
    found = state_of(world).provenance
    assert found is not None
    assert found.arithmetic == arithmetic_of("cpu")
    assert found.accepted == ()


def test_another_run_begins_under_whatever_there_is(world, monkeypatch):
    monkeypatch.setenv(OTHER, "Prescott")
    # The coordinator still has the run that was answered.
    with pytest.raises(RefusedError, match=OTHER):
        world.app().run(new_run=True)
    world.run = "run-2"
    world.rounds.clear()
    world.published_round = RoundId(0)
    world.app().run(new_run=True)
    found = state_of(world).provenance
    assert found is not None
    assert found.arithmetic == arithmetic_of("cpu")
    assert found.accepted == ()


def test_reading_is_not_asked_where(world, tmp_path, monkeypatch):
    here = recommend(world.settings(), USERS[0], Wanted(n=3))
    monkeypatch.setenv(OTHER, "Prescott")
    assert recommend(world.settings(), USERS[0], Wanted(n=3)) == here
    assert export_model(world.settings(), tmp_path / "exported").version == here.version
