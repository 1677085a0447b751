"""Looking at a state folder while its client goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from client.support.fake_federation import World

from fedrec.data import Catalogue
from fedrec.errors import StorageError
from fedrec.ids import RoundId
from fedrec_client.state import held_model
from fedrec_client.state.held_model import read_held_model
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A client that has the count and a round of training."""
    made = World(tmp_path)
    made.whole_round(1, "count")
    made.whole_round(2)
    made.app().run()
    return made


def test_a_version_that_goes_meanwhile_is_followed_by_the_next(world, monkeypatch):
    begun = PrivateStore(world.state, read_only=True).state.shared
    assert begun is not None

    class Slow:
        """Its catalogue is read while the client takes the next version."""

        left = 1

        @classmethod
        def load(cls, path: Path) -> Catalogue:
            if cls.left:
                cls.left -= 1
                with PrivateStore(world.state) as store:
                    following = store.read(begun)[:-4] + bytes(4)
                    store.change(best=None)
                    store.adopt(RoundId(3), following)
                assert not (world.state / begun.name).exists()
            return Catalogue.load(path)

    monkeypatch.setattr(held_model, "Catalogue", Slow)
    assert read_held_model(world.settings(), "latest").version == 3


def test_what_is_missing_of_the_present_version_is_damage(world):
    shared = PrivateStore(world.state, read_only=True).state.shared
    assert shared is not None
    (world.state / shared.name).unlink()
    with pytest.raises(StorageError, match=shared.name):
        read_held_model(world.settings(), "latest")
