"""`fedrec recommend` answers from any run folder with a model, and says what to do without one."""

from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
import pytest
from world.plans import plan_of

from fedrec.data import Catalogue
from fedrec.ids import RoundId, UserId
from fedrec.model.state import PrivateState, SharedState
from fedrec.recommender import ModelFile, Recommender, UsersFile


@pytest.fixture
def run(tmp_path):
    """A folder with a model of two tastes, and no user's vector."""
    catalogue = Catalogue.of(["a0", "b0", "a1", "b1"])
    table = np.array([[3, 0], [0, 3], [2, 0.1], [0.1, 2]], float)
    model = ModelFile(
        plan=plan_of(algorithm={"dim": 2}, update={"structure": "dense"}),
        catalogue_fingerprint=catalogue.fingerprint(),
        round=RoundId(3),
        shared=SharedState(MappingProxyType({"item_embedding": table})),
    )
    Recommender(model, catalogue).save(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def data(run):
    """Data that the run's settings name: anna likes a*, ben b*."""
    path = run.parent / "data.csv"
    path.write_text("user_id,item_id\nanna,a0\nben,b0\n")
    (run / "resolved.toml").write_text('[data]\npath = "../data.csv"\n')
    return path


def best(out: str) -> list[str]:
    return [item["item_id"] for item in json.loads(out)["items"]]


def test_a_user_whose_data_is_here_is_folded_in(fedrec, run, data):
    for user, item in (("anna", "a1"), ("ben", "b1")):
        found = fedrec("recommend", run, "--user", user, "-n", 1, "--json")
        assert best(found.out) == [item]
        assert str(data.name) in found.err
    seen = fedrec("recommend", run, "--user", "anna", "-n", 1, "--json", "--include-seen")
    assert best(seen.out) == ["a0"]


def test_data_can_be_given(fedrec, run, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("user_id,item_id\nanna,b0\n")
    found = fedrec("recommend", run, "--user", "anna", "--data", other, "-n", 1, "--json")
    assert best(found.out) == ["b1"]


def test_stored_vectors_come_first(fedrec, run, data):
    users = UsersFile(
        user_ids=(UserId("anna"),),
        private=PrivateState(MappingProxyType({"user_embedding": np.array([[0, 1]], np.float32)})),
        seen_indptr=np.array([0, 0]),
        seen_items=np.array([], np.int64),
    )
    users.save(run / "users.safetensors")
    assert best(fedrec("recommend", run, "--user", "anna", "-n", 1, "--json").out) == ["b0"]
    unknown = fedrec("recommend", run, "--user", "dora")
    assert unknown.code == 2
    assert "'dora' is not among the 1 users" in unknown.err
    assert "--history ITEM" in unknown.err and "--data FILE" in unknown.err
    assert "fold_in" not in unknown.err


def test_unknown_users_and_items_are_the_commands_fault(fedrec, run, data):
    unknown = fedrec("recommend", run, "--user", "dora", "--json")
    assert unknown.code == 2
    assert unknown.json["error"] == "data"
    assert "dora" in unknown.json["message"]
    item = fedrec("recommend", run, "--history", "zzz")
    assert item.code == 2
    assert "has no item" in item.err
    assert fedrec("recommend", run).code == 2


def test_without_a_folder_or_a_model_it_names_the_way(fedrec, tmp_path):
    missing = fedrec("recommend", tmp_path / "nowhere", "--user", "1")
    assert missing.code == 2
    assert "no such folder" in missing.err
    empty = tmp_path / "empty"
    empty.mkdir()
    without = fedrec("recommend", empty, "--user", "1")
    assert without.code == 2
    assert "has no model.safetensors" in without.err
    assert "fedrec recommend SETTINGS --user ID" in without.err
    assert f"fedrec client export-model SETTINGS --to {empty}" in without.err
    (empty / "checkpoint").mkdir()
    (empty / "checkpoint" / "checkpoint.json").touch()
    assert "simulate SETTINGS --resume" in fedrec("recommend", empty, "--user", "1").err


def test_a_folder_to_resume_from_must_be_one(fedrec, tmp_path, interactions_file):
    settings = tmp_path / "run.toml"
    assert fedrec("init", settings, "--data", interactions_file).code == 0
    found = fedrec("simulate", settings, "--resume", tmp_path / "nowhere")
    assert found.code == 2
    assert "is not a run folder" in found.err


def test_what_is_like_an_item(fedrec, run):
    found = fedrec("recommend", run, "--similar", "a0", "-n", 1, "--json")
    assert best(found.out) == ["a1"]
    # The cosine of (3, 0) and (2, 0.1).
    (item,) = json.loads(found.out)["items"]
    assert item["score"] == pytest.approx(2 / np.hypot(2, 0.1))
    others = fedrec("recommend", run, "--similar", "a0", "--exclude", "a1", "-n", 1, "--json")
    assert best(others.out) == ["b1"]
    some = fedrec("recommend", run, "--similar", "a0", "--candidates", "b0", "--json")
    assert best(some.out) == ["b0"]


def test_what_may_be_recommended(fedrec, run, tmp_path):
    words = ("recommend", run, "--history", "a0", "-n", 9, "--json")
    assert best(fedrec(*words).out)[0] == "a1"
    assert "a1" not in best(fedrec(*words, "--exclude", "a1").out)
    chosen = tmp_path / "chosen.txt"
    chosen.write_text("\ufeffb1\n\n b0 \n", encoding="utf-8")
    assert sorted(best(fedrec(*words, "--candidates", f"@{chosen}").out)) == ["b0", "b1"]
    both = fedrec(*words, "--candidates", f"@{chosen}", "--candidates", "a1", "--exclude", "b0")
    assert sorted(best(both.out)) == ["a1", "b1"]


def test_unknown_items_name_the_flag_and_the_line(fedrec, run, tmp_path):
    chosen = tmp_path / "chosen.txt"
    chosen.write_text("b1\nzz\n")
    for flag in ("--exclude", "--candidates"):
        for given, text in (
            (f"@{chosen}", f"{flag} @{chosen}, line 2"),
            ("zz", f"{flag} zz"),
            (f"@{tmp_path}", "cannot be read"),
        ):
            found = fedrec("recommend", run, "--history", "a0", flag, given)
            assert found.code == 2
            assert text in found.err
    found = fedrec("recommend", run, "--similar", "zz")
    assert (found.code, "--similar zz" in found.err) == (2, True)
    both = fedrec("recommend", run, "--similar", "a0", "--user", "anna")
    assert (both.code, "Exactly one" in both.err) == (2, True)


def test_where_nothing_is_left_it_says_so(fedrec, run, tmp_path):
    chosen = tmp_path / "chosen.txt"
    chosen.write_text("b0\n")
    asked = ("recommend", run, "--history", "a0", "--candidates", f"@{chosen}")
    found = fedrec(*asked, "--exclude", f"@{chosen}")
    assert (found.code, found.out) == (0, "")
    assert "No item is left" in found.err and "--candidates" in found.err
    assert fedrec(*asked, "--exclude", f"@{chosen}", "--json").json["items"] == []
    assert fedrec(*asked).out.split()[:4] == ["rank", "score", "item", "title"]
