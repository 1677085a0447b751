"""Recommendations from the state folder alone, without a coordinator."""

import json

import pytest
from client.support.fake_federation import World
from client.support.fake_parties import USERS

from fedrec.errors import CatalogueMismatch, DataError, StorageError
from fedrec_client.recommending import Wanted, recommend
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow


def test_unseen_items_best_first(world):
    found = recommend(world.settings(), USERS[0], Wanted(n=4))
    scores = [item.score for item in found.items]
    assert scores == sorted(scores, reverse=True)
    assert [item.rank for item in found.items] == [1, 2, 3, 4]
    seen = {
        line.split(",")[1]
        for line in (world.folder / "data.csv").read_text().splitlines()
        if line.startswith(USERS[0])
    }
    assert not seen & {item.item_id for item in found.items}
    assert all(item.title == item.item_id.replace("item-", "Film ") for item in found.items)


def test_the_best_or_the_latest_model(world):
    best = PrivateStore(world.state, read_only=True).state.best
    assert best is not None
    assert recommend(world.settings(), USERS[0]).version == best.round
    assert recommend(world.settings(), USERS[0], which="latest").version == 3


def test_it_works_beside_a_running_client(world):
    with PrivateStore(world.state):
        assert recommend(world.settings(), USERS[1], Wanted(n=2)).items


def test_a_user_whom_this_client_does_not_have(world):
    with pytest.raises(DataError, match="'mallory' is not among the 3 users"):
        recommend(world.settings(), "mallory")


def test_before_the_first_round(tmp_path):
    world = World(tmp_path)
    world.app().run()
    with pytest.raises(StorageError, match="no model"):
        recommend(world.settings(), USERS[0])


def test_before_the_first_start(tmp_path):
    world = World(tmp_path)
    with pytest.raises(StorageError, match="holds no run"):
        recommend(world.settings(), USERS[0])


def test_other_users_in_the_data(world):
    world.write_data((*USERS, "dave"))
    with pytest.raises(StorageError, match="other users"):
        recommend(world.settings(), USERS[0])


def test_another_catalogue(world):
    path = world.state / "catalogue.csv"
    path.write_text(path.read_text().replace("item-3,", "item-x,"))
    with pytest.raises((CatalogueMismatch, DataError)):
        recommend(world.settings(), USERS[0])


def test_json_has_stable_keys(world):
    from dataclasses import asdict

    shown = json.loads(json.dumps(asdict(recommend(world.settings(), USERS[0], Wanted(n=1)))))
    assert set(shown) == {"version", "items"}
    assert set(shown["items"][0]) == {"rank", "item_id", "title", "score"}
