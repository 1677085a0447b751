"""`fedrec init` writes what works, and overwrites nothing."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedrec.extras import install_command
from fedrec.settings.validation import load_settings


def test_it_never_replaces_a_file_unasked(fedrec, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("# mine\n")
    outcome = fedrec("init", path)
    assert outcome.code == 2
    assert "already exists" in outcome.err
    assert path.read_text() == "# mine\n"
    assert fedrec("init", path, "--force").code == 0
    assert load_settings(path, environ={}).protection.name == "bfv"


@pytest.mark.parametrize("name", ["run.toml", "x.toml", "my run.toml"])
def test_the_comments_at_the_head_are_aligned(fedrec, tmp_path, name):
    path = tmp_path / name
    assert fedrec("init", path).code == 0
    first, second = [line for line in path.read_text().splitlines() if "#   fedrec" in line]
    assert shlex.join(["fedrec", "check", name]) in first
    assert first.index("what a run costs") == second.index("every setting")


def test_data_sets_paths_and_leaves_room(fedrec, tmp_path, interactions_file):
    path = tmp_path / "settings" / "run.toml"
    found = fedrec("init", path, "--data", interactions_file, "--clients", 3, "--json").json
    assert found["n_users"] == 24
    check, simulate, kits = found["next"]
    assert (check, simulate) == (f"fedrec check {path}", f"fedrec simulate {path}")
    assert kits.startswith(f"fedrec provision {path} --address HOST:PORT ")
    settings = load_settings(path, environ={})
    assert settings.federation.maximum_users == 64
    assert settings.federation.name == "settings"
    assert 'path = "../data/interactions.csv"' in path.read_text()
    assert settings.data.catalogue is not None
    assert Path(settings.data.catalogue).samefile(interactions_file.parent / "catalogue.csv")


def test_without_a_catalogue_it_says_how_to_make_one(fedrec, tmp_path, interactions_file):
    (interactions_file.parent / "catalogue.csv").unlink()
    out = fedrec("init", tmp_path / "run.toml", "--data", interactions_file).out
    assert f"fedrec data catalogue {interactions_file} --out" in out


def test_the_catalogue_of_other_data_is_refused_before_a_file_is_written(
    fedrec, tmp_path, interactions_file
):
    own = interactions_file.with_name("own.csv")
    own.write_text("user_id,item_id,timestamp\na,x,1\na,y,2\nb,x,3\n")
    outcome = fedrec("init", tmp_path / "run.toml", "--data", own)
    assert outcome.code == 5 and "is not the catalogue of these data" in outcome.err
    assert not (tmp_path / "run.toml").exists()


def test_an_address_stands_in_one_place(fedrec, tmp_path):
    """Kits have every client's own sections; by hand they follow the address."""
    kits, by_hand = tmp_path / "kits.toml", tmp_path / "by-hand.toml"
    address = "fedrec.example:27447"
    out = fedrec("init", kits, "--clients", "a,b,c", "--address", address).out
    assert f"  fedrec provision {kits}   #" in out and "HOST:PORT" not in out
    text = kits.read_text()
    assert text.count("7447") == 1
    assert "keys/" not in text and "\n[coordinator]" not in text and "\n[client]" not in text
    assert "provision" not in fedrec("init", by_hand, "--address", address).out
    settings = load_settings(by_hand, environ={})
    assert settings.client.coordinator == settings.parties.address == address
    assert (settings.coordinator.host, settings.coordinator.port) == ("0.0.0.0", 27447)


@pytest.mark.parametrize("protection", ["bfv", "ckks", "paillier", "masks", "none"])
def test_protections(fedrec, tmp_path, protection):
    path = tmp_path / "run.toml"
    assert fedrec("init", path, "--protection", protection, "--name", "trial").code == 0
    settings = load_settings(path, environ={})
    assert (settings.protection.name, settings.federation.name) == (protection, "trial")


def test_exposing_clients_takes_a_word(fedrec, tmp_path):
    path = tmp_path / "run.toml"
    ease = ("init", path, "--algorithm", "ease", "--protection", "none")
    refused = fedrec(*ease)
    assert refused.code == 5
    assert "the coordinator would read which pairs of items" in refused.err
    assert "--accept-exposure" in refused.err
    assert not path.exists()
    found = fedrec(*ease, "--accept-exposure", "--json").json
    assert found["next"][-1] == f"fedrec simulate {path} --accept-exposure"
    assert load_settings(path, environ={}).algorithm.name == "ease"


def test_impossible_wishes_are_refused(fedrec, tmp_path):
    path = tmp_path / "run.toml"
    assert fedrec("init", path, "--clients", 2).code == 2
    name = fedrec("init", path, "--name", "no spaces")
    assert name.code == 2
    assert "expected 1 to 64 letters, digits and" in name.err
    assert fedrec("init", path, "--protection", "rot13").code == 2
    assert "'a' is named twice" in fedrec("init", path, "--clients", "a,b,a").err
    assert not path.exists()


@pytest.fixture
def on_validation(monkeypatch):
    """Stands in for the study. `tests/lab/tuning/test_first_choice.py` has that one."""
    found = SimpleNamespace(values={"client.tail": True}, reasons=("Validation has shown it.",))
    monkeypatch.setattr(
        "fedrec.cli.lazy.beside_verb", lambda verb, name: lambda *given, **named: found
    )


def test_auto_proposes_from_the_datas_shape_and_says_why(
    fedrec, tmp_path, on_validation, monkeypatch
):
    data = tmp_path / "interactions.csv"
    # 40 users, each with the same 12 items: 12 rows, 12 interactions for the mean user.
    rows = [f"u{user},i{item},{item}" for user in range(40) for item in range(12)]
    data.write_text("\n".join(["user_id,item_id,timestamp", *rows]) + "\n", encoding="utf-8")
    path = tmp_path / "run.toml"
    found = fedrec("init", path, "--auto", data, "--json").json
    assert found["algorithm"] == "sketch"
    assert "12.0 interactions" in found["reasons"][0]
    text = path.read_text(encoding="utf-8")
    assert "dim = 8" in text
    assert "# 12 of 12 items have enough users" in text
    assert found["reasons"][-1] == "Validation has shown it."
    assert load_settings(path, environ={}).client.tail
    accepted = fedrec("init", path, "--auto", data, "--force", "--accept-exposure", "--json").json
    assert accepted["algorithm"] == "ease"
    assert load_settings(path, environ={}).algorithm.name == "ease"
    monkeypatch.setattr("fedrec.extras.is_missing", lambda name: name == "torch")
    untrained = fedrec("init", path, "--auto", data, "--force", "--json").json
    assert install_command("client") in untrained["reasons"][-1]
    both = fedrec("init", tmp_path / "b.toml", "--auto", data, "--algorithm", "fedmf")
    assert both.code == 2 and "--auto" in both.err


def test_auto_refuses_data_without_a_row(fedrec, tmp_path):
    data = tmp_path / "interactions.csv"
    data.write_text("user_id,item_id\nu1,i1\nu1,i2\nu2,i1\n", encoding="utf-8")
    outcome = fedrec("init", tmp_path / "run.toml", "--auto", data)
    assert outcome.code == 2
    assert "minimum_item_users" in outcome.err
