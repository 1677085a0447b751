"""`fedrec check` resolves, explains and prices."""

import pytest

from fedrec.plan.price import price
from fedrec.plan.schema import Plan
from fedrec.protection import PROTECTIONS
from fedrec.settings.explain import all_settings, explain

KEPT = ("--set", "federation.minimum_item_users=2")
"""24 users hold no item ten times, so that a simulation would be refused."""


def test_the_keys_of_its_json_are_stable(fedrec, settings_file, monkeypatch):
    monkeypatch.setenv("FEDREC_EVALUATION__AT", "5")
    outcome = fedrec("check", settings_file, "--json", "--set", "rounds.total=7", *KEPT)
    found = outcome.json
    assert outcome.err == ""
    assert set(found) == {
        "path",
        "plan_fingerprint",
        "settings",
        "sources",
        "users",
        "price",
        "cells",
        "sets",
        "privacy",
        "proposal",
        "ray",
        "own_floor",
        "private",
        "sizing",
        "warnings",
        "refusals",
    }
    assert set(found["sources"]) == set(all_settings("fedmf", "bfv"))
    assert found["sources"]["rounds.total"]["kind"] == "flag"
    assert found["sources"]["evaluation.at"]["where"] == "environment FEDREC_EVALUATION__AT"
    assert found["settings"]["rounds"]["total"] == 7
    assert set(found["price"]) == {
        "authority_download_bytes",
        "dense_paper_bytes",
        "dense_plain_bytes",
        "download_bytes",
        "is_encrypted",
        "n_clients",
        "n_items",
        "n_rounds",
        "n_rows",
        "count_download_bytes",
        "count_upload_bytes",
        "expected",
        "masks",
        "opening",
        "paper_link_minutes",
        "paper_numbers",
        "protection",
        "total_bytes",
        "upload_bytes",
    }
    assert found["price"]["n_items"] == 30


def test_people_see_where_values_come_from_and_what_they_cost(fedrec, settings_file):
    out = fedrec("check", settings_file).out
    assert "protection.name" in out
    assert "run.toml:" in out
    for words in ("upload", "security", "128 bits", "whole run", "The key authority alone holds"):
        assert words in out


def test_every_parameter_set_is_listed_and_the_chosen_one_marked(fedrec, settings_file):
    sets = fedrec("check", settings_file, "--json").json["sets"]
    known = {(name, preset) for name, kind in PROTECTIONS.items() for preset in kind.presets}
    assert {(entry["protection"], entry["preset"]) for entry in sets} == known
    (chosen,) = (entry for entry in sets if entry["chosen"])
    assert (chosen["protection"], chosen["preset"]) == ("bfv", "default")
    price = fedrec("check", settings_file, "--json").json["price"]
    assert chosen["message_bytes"] == price["upload_bytes"]
    for entry in sets:
        if entry["key_bits"]:
            # NIST SP 800-57 part 1, table 2; the default's 128 bits come first.
            strength = {3072: 128, 2048: 112}[entry["key_bits"]]
            assert (entry["protection"], entry["security_bits"]) == ("paillier", strength)
        elif entry["modulus_bits"]:
            assert entry["security_bits"] >= 128
            assert entry["modulus_bits"] <= entry["most_modulus_bits"]
            assert entry["headroom_bits"] >= 6
        else:
            assert entry["protection"] in ("none", "masks")
    out = fedrec("check", settings_file, "--set", "protection.preset=wide").out
    lines = out.partition("All parameter sets")[2].splitlines()
    (marked,) = (line for line in lines if line.startswith("*"))
    assert "bfv, wide" in marked
    assert "of at most 218 bits" in marked


def test_users_are_counted_where_the_data_is(fedrec, settings_file):
    found = fedrec("check", settings_file, "--json").json
    assert found["users"] == 24
    assert not [text for text in found["warnings"] if "maximum_users" in text]
    assert "24 in data.path" in fedrec("check", settings_file).out
    small = fedrec("check", settings_file, "--json", "--set", "federation.maximum_users=20").json
    (warning,) = (text for text in small["warnings"] if "maximum_users" in text)
    assert "maximum_users = 20, but data.path has 24 users" in warning
    assert "Set it to 64" in warning
    few = ("--set", "federation.maximum_users=20", "--set", "data.minimum_interactions=1000")
    none_left = fedrec("check", settings_file, "--json", *few)
    assert none_left.code == 2
    assert "none reach 1000 interactions" in none_left.json["message"]


def test_data_on_another_machine_is_a_warning(fedrec, settings_file, interactions_file):
    interactions_file.unlink()
    found = fedrec("check", settings_file, "--json")
    assert found.code == 0
    assert found.json["users"] is None
    (warning,) = (text for text in found.json["warnings"] if "isn't on this machine" in text)
    assert "data.path" in warning


def test_without_data_there_are_settings_but_no_price(fedrec, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("")
    assert fedrec("check", path, "--json").json["price"] is None
    assert "give --items N" in fedrec("check", path).out
    assert fedrec("check", path, "--items", 50, "--json").json["price"]["n_items"] == 50


def test_where_nothing_that_is_trained_is_shared_there_is_no_dense_upload(
    fedrec, tmp_path, interactions_file
):
    path = tmp_path / "run.toml"
    path.write_text(
        '[algorithm]\nname = "fedrap"\n[update]\nstructure = "dense"\n'
        f'[federation]\nminimum_item_users = 2\n[data]\npath = "{interactions_file}"\n'
    )
    shared = fedrec("check", path)
    private = fedrec("check", path, "--set", "algorithm.tables=private")
    assert shared.code == private.code == 0
    assert "upload, dense plain" in shared.out and "upload, dense plain" not in private.out


def test_items_that_contradict_the_catalogue_are_refused(fedrec, settings_file):
    outcome = fedrec("check", settings_file, "--items", 31)
    assert outcome.code == 2
    assert "--items is 31, but data.catalogue has 30" in outcome.err


def test_explain(fedrec, settings_file):
    assert (
        "Number of training rounds to publish." in fedrec("check", "--explain", "rounds.total").out
    )
    assert len(fedrec("check", "--explain", "--json").json["settings"]) == len(explain())
    unknown = fedrec("check", "--explain", "rounds.totl")
    assert unknown.code == 2
    assert "The nearest setting is rounds.total." in unknown.err


def test_a_file_must_be_named(fedrec):
    assert "fedrec init" in fedrec("check").err


def test_the_papers_sizes_and_its_link(fedrec, tmp_path):
    choices = {
        "algorithm": {"dim": 64},
        "update": {"structure": "dense"},
        "rounds": {"total": 1000},
    }
    found = price(Plan.model_validate(choices), n_items=3706)
    assert found.facts["paper_link_minutes"] == pytest.approx(80.43, abs=0.005)
    assert found.facts["paper_numbers"].upload == 3706 * 64
    solved = {"algorithm": {"name": "fedals"}, "update": {"structure": "dense"}}
    other = price(Plan.model_validate(solved), n_items=50)
    assert (other.facts["paper_numbers"], other.facts["paper_link_minutes"]) == (None, None)
    path = tmp_path / "run.toml"
    path.write_text('[algorithm]\ndim = 64\n[update]\nstructure = "topk"\nratio = 0.25\n')
    out = fedrec("check", path, "--items", 3706, "--set", "rounds.total=1000").out
    assert "time by the paper's link model" in out
    assert "40.21 min" in out
    assert "118592 numbers up" in out


def test_the_key_authority_is_explained(fedrec, settings_file):
    asked = ("check", settings_file, "--set", "protection.key_holder=authority")
    bfv = fedrec(*asked, "--set", "protection.name=bfv", "--clients", "5", "--json").json
    warned = " ".join(bfv["warnings"])
    assert "The key authority alone holds the secret key" in warned
    assert "Every closed round waits for" in warned
    assert "same secret key" not in warned
    # It fetches all five updates.
    price = bfv["price"]
    assert price["authority_download_bytes"] == 5 * price["protection"]["message_bytes"]
    members = ("--set", "protection.key_holder=members")
    shared = " ".join(fedrec("check", settings_file, *members, "--json").json["warnings"])
    assert "honest but curious" in shared and "may differ by one client's update" in shared
    masked = " ".join(fedrec(*asked, "--set", "protection.name=masks", "--json").json["warnings"])
    assert "key authority alone" not in masked and "same secret key" not in masked
    seen = fedrec("check", "--explain", "protection.key_holder").out
    assert "members" in seen and "authority" in seen
