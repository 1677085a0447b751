"""`fedrec check` resolves, explains and prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec.cli.pricing import price, warnings_for
from fedrec.config.explain import all_settings, explain
from fedrec.config.schema import Plan
from fedrec.protection import PROTECTIONS
from fedrec.training.layout import vector_spec

from .conftest import Fedrec


@pytest.fixture
def settings_file(fedrec: Fedrec, tmp_path: Path, interactions_file: Path) -> Path:
    path = tmp_path / "run.toml"
    assert fedrec("init", path, "--data", interactions_file, "--clients", 3).code == 0
    return path


def test_the_keys_of_its_json_are_stable(
    fedrec: Fedrec, settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDREC_EVALUATION__AT", "5")
    outcome = fedrec("check", settings_file, "--json", "--set", "rounds.total=7")
    found = outcome.json
    assert outcome.err == ""
    assert set(found) == {
        "path",
        "plan_fingerprint",
        "settings",
        "sources",
        "price",
        "warnings",
    }
    assert set(found["sources"]) == set(all_settings("fedmf"))
    assert found["sources"]["rounds.total"]["kind"] == "flag"
    assert found["sources"]["evaluation.at"]["where"] == "environment FEDREC_EVALUATION__AT"
    assert found["settings"]["rounds"]["total"] == 7
    assert set(found["price"]) == {
        "dense_paper_bytes",
        "dense_plain_bytes",
        "download_bytes",
        "holder_download_bytes",
        "is_encrypted",
        "n_clients",
        "n_items",
        "n_rounds",
        "protection",
        "total_bytes",
        "upload_bytes",
    }
    assert found["price"]["n_items"] == 30


def test_people_see_where_values_come_from_and_what_they_cost(
    fedrec: Fedrec, settings_file: Path
) -> None:
    out = fedrec("check", settings_file).out
    assert "protection.name" in out
    assert "run.toml:" in out
    for words in ("upload", "security", "128 bits", "whole run", "warning: All clients hold"):
        assert words in out


def test_without_data_there_are_settings_but_no_price(fedrec: Fedrec, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("")
    assert fedrec("check", path, "--json").json["price"] is None
    assert "give --items N" in fedrec("check", path).out
    assert fedrec("check", path, "--items", 50, "--json").json["price"]["n_items"] == 50


def test_items_that_contradict_the_catalogue_are_refused(
    fedrec: Fedrec, settings_file: Path
) -> None:
    outcome = fedrec("check", settings_file, "--items", 31)
    assert outcome.code == 2
    assert "--items says 31, but data.catalogue has 30" in outcome.err


def test_explain(fedrec: Fedrec, settings_file: Path) -> None:
    assert "Training rounds to publish." in fedrec("check", "--explain", "rounds.total").out
    assert len(fedrec("check", "--explain", "--json").json["settings"]) == len(explain())
    unknown = fedrec("check", "--explain", "rounds.totl")
    assert unknown.code == 2
    assert "The nearest setting is rounds.total." in unknown.err


def test_a_file_must_be_named(fedrec: Fedrec) -> None:
    assert "fedrec init" in fedrec("check").err


def test_the_price_by_hand() -> None:
    plan = Plan.model_validate({"rounds": {"total": 8}})
    found = price(plan, n_items=100, n_clients=4)
    upload = PROTECTIONS["bfv"].plan(vector_spec(plan, 100)).message_bytes
    assert found.upload_bytes == upload
    assert found.n_rounds == 10
    assert found.dense_plain_bytes == 4 * 100 * 32
    assert found.holder_download_bytes == 3 * upload
    per_round = 4 * (upload + found.download_bytes) + 2 * 3 * upload
    assert found.total_bytes == 10 * per_round


def test_without_encryption_nobody_reveals() -> None:
    plan = Plan.model_validate({"protection": {"name": "none"}})
    found = price(plan, n_items=100)
    assert found.holder_download_bytes == 0
    assert found.n_clients == plan.rounds.minimum_clients
    assert found.upload_bytes == found.download_bytes


def test_warnings() -> None:
    settings = {
        "protection": {"name": "none"},
        "evaluation": {"protocol": "paper"},
        "federation": {"minimum_item_users": 1},
    }
    found = " ".join(warnings_for(Plan.model_validate(settings)))
    assert "reads every client's update" in found
    assert "leaks the held-out items" in found
    assert "minimum_item_users = 1" in found
    assert "2 must collude" in " ".join(warnings_for(Plan()))
