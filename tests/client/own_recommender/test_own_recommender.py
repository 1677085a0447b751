"""What a client recommends and exports."""

import csv
import json
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from world.fake_federation import World
from world.fake_parties import USERS
from world.plans import plan_of
from world.silo import Silo

from fedrec.cli.main import main
from fedrec.data import Catalogue
from fedrec.errors import CatalogueMismatch, DataError, SettingsError, StorageError
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.recommender import ModelFile, Recommender, tail
from fedrec.settings.validation import load_settings
from fedrec_client.own_recommender import (
    Wanted,
    export_model,
    export_recommendations,
    own_recommender,
    recommendations,
)
from fedrec_client.state.private_store import PrivateStore


def recommend(settings, user, wanted=None, which="best"):
    own = own_recommender(settings, which)
    return recommendations(own, (wanted or Wanted()).for_users(own, user))


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_best_or_the_latest_model(world):
    best = PrivateStore(world.state, read_only=True).state.best
    assert recommend(world.settings(), USERS[0]).version == best.round
    assert recommend(world.settings(), USERS[0], which="latest").version == 3


@pytest.mark.slow
def test_it_works_beside_a_running_client(world):
    with PrivateStore(world.state):
        assert recommend(world.settings(), USERS[1], Wanted(n=2)).items


@pytest.mark.slow
def test_a_user_whom_this_client_does_not_have(world):
    with pytest.raises(DataError, match="'mallory' is not among the 3 users"):
        recommend(world.settings(), "mallory")


@pytest.mark.slow
def test_before_the_first_round(tmp_path):
    world = World(tmp_path)
    world.app().run()
    with pytest.raises(StorageError, match="no model"):
        recommend(world.settings(), USERS[0])


@pytest.mark.slow
def test_before_the_first_start(tmp_path):
    world = World(tmp_path)
    with pytest.raises(StorageError, match="contains no run"):
        recommend(world.settings(), USERS[0])


@pytest.mark.slow
def test_other_users_in_the_data(world):
    world.write_data((*USERS, "dave"))
    with pytest.raises(StorageError, match="other users"):
        recommend(world.settings(), USERS[0])


@pytest.mark.slow
def test_another_catalogue(world):
    path = world.state / "catalogue.csv"
    path.write_text(path.read_text().replace("item-3,", "item-x,"))
    with pytest.raises((CatalogueMismatch, DataError)):
        recommend(world.settings(), USERS[0])


@pytest.mark.slow
def test_json_has_stable_keys(world):
    from dataclasses import asdict

    shown = json.loads(json.dumps(asdict(recommend(world.settings(), USERS[0], Wanted(n=1)))))
    assert set(shown) == {"version", "items", "tail"}
    assert set(shown["items"][0]) == {"rank", "item_id", "title", "score"}


@pytest.fixture(scope="module")
def silo(tmp_path_factory):
    made = Silo(tmp_path_factory.mktemp("silo"))
    made.publish(3)
    return made


def test_parquet_has_every_user_s_best_with_their_bits(silo, tmp_path):
    file = tmp_path / "all.parquet"
    found = export_recommendations(own_recommender(silo.settings), file, Wanted(n=7))
    table = pq.read_table(file)
    assert table.schema.names == ["user_id", "rank", "item_id", "title", "score", "version"]
    assert table.schema.metadata[b"fedrec.version"] == b"3"
    assert (found.version, found.n_users, found.n_rows) == (3, 24, table.num_rows)
    own = own_recommender(silo.settings)
    rows = table.to_pylist()
    for user in own.user_ids:
        ids, scores = own.recommend(user, 7)
        mine = [row for row in rows if row["user_id"] == user]
        assert [row["rank"] for row in mine] == list(range(1, len(ids) + 1))
        assert [row["item_id"] for row in mine] == ids.tolist()
        assert [row["title"] for row in mine] == [f"Film {item}" for item in ids]
        text = np.array([row["score"] for row in mine], dtype=np.float32)
        assert text.tobytes() == scores.tobytes()
        assert {row["version"] for row in mine} == {3}
    assert file.stat().st_mode & 0o777 == 0o600


def test_who_has_less_to_choose_from_has_fewer_rows(silo, tmp_path):
    own = own_recommender(silo.settings)
    some = [item for item in own.catalogue.item_ids if own.learned(item)][:6]
    wanted = Wanted(n=50, candidates=some, exclude=some[:1])
    found = export_recommendations(own_recommender(silo.settings), tmp_path / "few.parquet", wanted)
    had = [set(own.history_of(user)) for user in own.user_ids]
    assert found.n_rows == sum(len(set(some[1:]) - items) for items in had)
    assert {*pq.read_table(tmp_path / "few.parquet")["item_id"].to_pylist()} <= {*some[1:]}


def test_csv_says_the_same(silo, tmp_path):
    export_recommendations(own_recommender(silo.settings), tmp_path / "all.parquet", Wanted(n=3))
    export_recommendations(own_recommender(silo.settings), tmp_path / "all.csv", Wanted(n=3))
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert rows == [{name: str(value) for name, value in row.items()} for row in table]
    assert (tmp_path / "all.csv").stat().st_mode & 0o777 == 0o600


def test_no_title_is_a_formula_to_a_spreadsheet(silo, tmp_path):
    catalogue = Catalogue.load(silo.state / "catalogue.csv")
    titles = ["=HYPERLINK(0)", "+1-cmd|'/C'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\uff1d1"]
    safe = ["-5", "+3.5e7", "-.5", "'quoted", "2001: A Space Odyssey", "a=b", "x"]
    named = list(islice(cycle([*titles, *safe]), len(catalogue)))
    Catalogue.of(catalogue.item_ids, named).save(tmp_path / "named.csv")
    settings = load_settings(silo.settings_file, {"data.catalogue": str(tmp_path / "named.csv")})
    wanted = Wanted(n=len(catalogue), exclude_seen=False)
    for form in ("csv", "parquet"):
        export_recommendations(own_recommender(settings), tmp_path / f"all.{form}", wanted)
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        shown = {row["title"] for row in csv.DictReader(file)}
    exact = {*pq.read_table(tmp_path / "all.parquet")["title"].to_pylist()}
    assert exact == {*titles, *safe}
    assert shown == {f"'{title}" for title in titles} | set(safe)


def test_nothing_is_replaced_unasked_and_nothing_is_left_behind(silo, tmp_path):
    file, own = tmp_path / "all.csv", own_recommender(silo.settings)
    file.write_text("mine")
    with pytest.raises(DataError, match="Nothing was changed"):
        export_recommendations(own, file, Wanted())
    with pytest.raises(SettingsError, match="ending"):
        export_recommendations(own, tmp_path / "all.xlsx", Wanted())
    with pytest.raises(CatalogueMismatch, match="nothing"):
        export_recommendations(own, file, Wanted(exclude=["nothing"]), force=True)
    with pytest.raises(StorageError, match="cannot be written"):
        export_recommendations(own, tmp_path / "missing" / "all.csv", Wanted())
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["all.csv"]
    export_recommendations(own, file, Wanted(), force=True)
    assert file.read_text().startswith("user_id,")


def test_the_commands(silo, tmp_path, capsys):
    def call(*words):
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        shown = capsys.readouterr()
        return left.value.code or 0, shown.out, shown.err

    settings = silo.settings_file
    code, out, _ = call("client", "export", settings, "--to", tmp_path / "a.parquet", "-n", 2)
    assert code == 0
    assert "48 recommendations to 24 users" in out
    own = own_recommender(silo.settings)
    chosen = tmp_path / "chosen.txt"
    best = own.recommend(silo.user, 4)[0].tolist()
    chosen.write_text("\n".join(best[1:]) + "\n\n")
    words = ("--candidates", f"@{chosen}", "--exclude", best[2])
    code, out, _ = call("recommend", settings, "--user", silo.user, *words)
    assert [line.split()[2] for line in out.splitlines()] == ["item", best[1], best[3]]
    assert f"Film {best[1]}" in out
    code, out, _ = call("recommend", settings, "--similar", best[0], "-n", 2)
    likes = own.similar_items(best[0], 2)[0].tolist()
    assert [line.split()[2] for line in out.splitlines()] == ["item", *likes]
    for wrong, text in (
        ((), "--user, --history and --similar"),
        (("--user", silo.user, "--similar", best[0]), "--user, --history and --similar"),
        (("--similar", "nothing"), "--similar nothing"),
        (("--user", silo.user, "--exclude", "@missing.txt"), "cannot be read"),
    ):
        code, _, err = call("recommend", settings, *wrong)
        assert code == 2
        assert text in err
    chosen.write_text(f"{best[0]}\nnothing\n")
    code, _, err = call("recommend", settings, "--user", silo.user, *words[:2])
    assert code == 2
    assert f"@{chosen}, line 2" in err


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_best_or_the_latest(world, tmp_path):
    best = PrivateStore(world.state, read_only=True).state.best
    assert export_model(world.settings(), tmp_path / "a").version == best.round
    assert export_model(world.settings(), tmp_path / "b", which="latest").version == 3
    shared = ModelFile.load(tmp_path / "b" / "model.safetensors").shared
    table = world.shared[3].tensors["item_embedding"]
    assert np.array_equal(shared.tensors["item_embedding"], table)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("protection", "mode"), [("bfv", 0o600), ("none", 0o644)])
def test_what_the_coordinator_could_not_read_belongs_to_its_owner(tmp_path, protection, mode):
    world = World(tmp_path, protection=protection)
    world.whole_round(1, "count")
    world.whole_round(2)
    world.app().run()
    exported = export_model(world.settings(), tmp_path / "run")
    assert exported.model.stat().st_mode & 0o777 == mode
    assert exported.was_hidden is (protection == "bfv")


@pytest.mark.slow
def test_nothing_is_replaced_unasked(world, tmp_path):
    export_model(world.settings(), tmp_path / "run")
    with pytest.raises(DataError, match="Nothing was changed"):
        export_model(world.settings(), tmp_path / "run", which="latest")
    assert export_model(world.settings(), tmp_path / "run", which="latest", force=True).version == 3


@pytest.mark.slow
def test_folders_of_other_runs_are_refused(world, tmp_path):
    simulated = tmp_path / "simulated"
    simulated.mkdir()
    (simulated / "users.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="folder of a simulation"):
        export_model(world.settings(), simulated, force=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "resolved.toml").write_text('federation.name = "books"\n')
    with pytest.raises(DataError, match="folder of a run of 'books'"):
        export_model(world.settings(), other)
    (other / "resolved.toml").unlink()
    Catalogue.of(["x"]).save(other / "catalogue.csv")
    with pytest.raises(CatalogueMismatch, match="is not the catalogue of the model"):
        export_model(world.settings(), other)
    assert not (other / "model.safetensors").exists()


@pytest.mark.slow
def test_nothing_is_exported_before_the_first_round(tmp_path):
    world = World(tmp_path)
    world.app().run()
    with pytest.raises(StorageError, match="no model"):
        export_model(world.settings(), tmp_path / "run")


@pytest.mark.slow
def test_the_command(world, tmp_path, capsys):
    settings = world.folder / "fedrec.toml"
    settings.write_text('[data]\npath = "data.csv"\n[client]\nstate = "state"\n')

    def call(*options):
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
    assert "contains no user's vector" in out
    assert "could never read it" in out
    assert out.splitlines()[-1] == str(tmp_path / "run" / "model.safetensors")


def test_an_id_that_begins_with_an_at_sign_is_no_file():
    """Only options of commands name files: to Python callers it is an item like any other."""
    catalogue = Catalogue.of(["@home", "b0", "a1"])
    table = np.array([[3, 0], [0, 3], [2, 0.1]], float)
    file = ModelFile(
        plan=plan_of(algorithm={"dim": 2}, update={"structure": "dense"}),
        catalogue_fingerprint=catalogue.fingerprint(),
        round=RoundId(3),
        shared=SharedState(MappingProxyType({"item_embedding": table})),
    )
    model = Recommender(file, catalogue)
    chosen = Wanted(candidates=["@home", "b0"])
    assert chosen.like_item(model, "a1")[0].tolist() == ["@home", "b0"]
    assert chosen.like_item(model, "@home")[0].tolist() == ["b0"]
    assert Wanted(exclude=["@home"]).like_item(model, "a1")[0].tolist() == ["b0"]
    with pytest.raises(CatalogueMismatch, match=r"@nowhere"):
        Wanted(candidates=["@nowhere"]).like_item(model, "a1")


@pytest.mark.slow
def test_tail_at_home_is_told_at_the_end_of_a_run(tmp_path, monkeypatch):
    """A client with too many users for it is refused before it sends anything."""
    made = World(tmp_path)
    made.whole_round(1, "count")
    made.whole_round(2)
    settings = made.settings(tail=True, tail_minimum_users=1)
    with monkeypatch.context() as changed:
        changed.setattr(tail, "MOST_USERS", 1)
        with pytest.raises(SettingsError, match=r"client.tail: this client has \d+ users"):
            made.app(settings=settings).run()
    assert made.link.uploads == []
    made.app(settings=settings).run()
    assert made.event_names().count("tail_at_home") == 1
    news = next(event for event in made.events if event.name == "tail_at_home")
    assert news.detail == str(own_recommender(settings).tail)
    assert not any(user in news.detail for user in USERS)
