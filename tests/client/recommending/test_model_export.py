"""The shared model leaves a client on its owner's word, and nothing private leaves with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from client.support.fake_federation import World
from client.support.fake_parties import USERS
from safetensors import safe_open

from fedrec.cli.main import main
from fedrec.data import Catalogue
from fedrec.errors import (
    CatalogueMismatch,
    DataError,
    StorageError,
)
from fedrec.recommender import ModelFile, Recommender
from fedrec_client.recommending import export_model, recommend
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow


def test_the_folder_can_be_recommended_from(world, tmp_path):
    exported = export_model(world.settings(), tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    assert loaded.round == exported.version
    assert exported.version == recommend(world.settings(), USERS[0]).version
    assert loaded.user_ids == ()
    rows = (world.folder / "data.csv").read_text().splitlines()[1:]
    history = [row.split(",")[1] for row in rows if row.startswith(USERS[0])]
    ids, _ = loaded.recommend_vector(loaded.fold_in(history), 3, exclude=history)
    assert len(ids) == 3
    assert not set(ids.tolist()) & set(history)


def test_the_best_or_the_latest(world, tmp_path):
    best = PrivateStore(world.state, read_only=True).state.best
    assert best is not None
    assert export_model(world.settings(), tmp_path / "a").version == best.round
    assert export_model(world.settings(), tmp_path / "b", which="latest").version == 3
    shared = ModelFile.load(tmp_path / "b" / "model.safetensors").shared
    table = world.shared[3].tensors["item_embedding"]
    assert np.array_equal(shared.tensors["item_embedding"], table)


def test_nothing_private_is_in_it(world, tmp_path):
    exported = export_model(world.settings(), tmp_path / "run")
    with safe_open(exported.model, framework="numpy") as file:
        assert set(file.keys()) == {"shared.item_embedding", "holders"}
    state = PrivateStore(world.state, read_only=True)
    assert state.state.private is not None
    vectors = state.read(state.state.private)[-64:]
    for path in (exported.model, exported.catalogue):
        content = path.read_bytes()
        assert vectors not in content
        assert not any(user.encode() in content for user in USERS)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "catalogue.csv",
        "model.safetensors",
    }


def test_counts_of_rare_items_stay_here(tmp_path):
    world = World(tmp_path, federation={"name": "films", "seed": 7, "minimum_item_users": 4})
    world.whole_round(1, "count")
    world.whole_round(2)
    world.app().run()
    known = world.shared[2].holders
    assert known is not None
    assert ((known > 0) & (known < 4)).any(), "the data has no rare item"
    exported = ModelFile.load(export_model(world.settings(), tmp_path / "run").model).shared
    assert exported.holders is not None
    assert np.array_equal(exported.holders, np.where(known >= 4, known, 0))


@pytest.mark.parametrize(("protection", "mode"), [("bfv", 0o600), ("none", 0o644)])
def test_what_the_coordinator_could_not_read_belongs_to_its_owner(tmp_path, protection, mode):
    world = World(tmp_path, protection=protection)
    world.whole_round(1, "count")
    world.whole_round(2)
    world.app().run()
    exported = export_model(world.settings(), tmp_path / "run")
    assert exported.model.stat().st_mode & 0o777 == mode
    assert exported.was_hidden is (protection == "bfv")


def test_nothing_is_replaced_unasked(world, tmp_path):
    export_model(world.settings(), tmp_path / "run")
    with pytest.raises(DataError, match="nothing was changed"):
        export_model(world.settings(), tmp_path / "run", which="latest")
    assert export_model(world.settings(), tmp_path / "run", which="latest", force=True).version == 3


def test_folders_of_other_runs_are_refused(world, tmp_path):
    simulated = tmp_path / "simulated"
    simulated.mkdir()
    (simulated / "users.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="folder of a simulation"):
        export_model(world.settings(), simulated, force=True)
    other = tmp_path / "other"
    other.mkdir()
    Catalogue.of(["x"]).save(other / "catalogue.csv")
    with pytest.raises(CatalogueMismatch, match="another catalogue"):
        export_model(world.settings(), other)
    assert not (other / "model.safetensors").exists()


def test_before_the_first_round(tmp_path):
    world = World(tmp_path)
    world.app().run()
    with pytest.raises(StorageError, match="no model"):
        export_model(world.settings(), tmp_path / "run")


def test_the_command(world, tmp_path, capsys):
    settings = world.folder / "fedrec.toml"
    settings.write_text('[data]\npath = "data.csv"\n[client]\nstate = "state"\n')

    def call(*options: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["client", "export-model", str(settings), "--to", str(tmp_path / "run"), *options])
        shown = capsys.readouterr()
        return left.value.code or 0, shown.out, shown.err

    code, out, _ = call("--latest", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["version"] == 3
    assert found["was_hidden"] is True
    assert Path(found["model"]).is_file()
    code, _, err = call()
    assert code == 2
    assert "--force" in err
    code, out, _ = call("--force")
    assert code == 0
    assert "no user's vector is in it" in out
    assert "give it only to those who may" in out
    assert out.splitlines()[-1] == str(tmp_path / "run" / "model.safetensors")
