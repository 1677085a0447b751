"""`fedrec audit` on data whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Fedrec


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    rows = {"anna": "ab", "ben": "ab", "cleo": "ac"}
    lines = [f"{user},{item}" for user, held in rows.items() for item in held]
    (tmp_path / "data.csv").write_text("\n".join(["user_id,item_id", *lines]) + "\n")
    path = tmp_path / "run.toml"
    path.write_text(
        '[federation]\nminimum_item_users = 1\n[algorithm]\nname = "ease"\n'
        '[update]\nstructure = "dense"\n[data]\npath = "data.csv"\n'
    )
    return path


def test_it_names_whom_the_sums_determine(fedrec: Fedrec, settings_file: Path) -> None:
    outcome = fedrec("audit", settings_file)
    assert outcome.code == 0, outcome.err
    assert "1 of 3 users are determined, at least." in outcome.out
    assert "  cleo\n" in outcome.out
    assert "Raise federation.minimum_item_users" in outcome.out
    found = fedrec("audit", settings_file, "--json").json
    assert found["determined"] == ["cleo"]
    assert found["findings"]["items_of_one_user"] == 1
    assert (found["users"], found["items"], found["active_items"]) == (3, 3, 3)


def test_the_setting_helps(fedrec: Fedrec, settings_file: Path) -> None:
    least = ("--set", "federation.minimum_item_users=2")
    found = fedrec("audit", settings_file, *least, "--json").json
    assert found["determined"] == []
    assert (found["active_items"], found["minimum_item_users"]) == (2, 2)
    assert "0 of 3 users are determined" in fedrec("audit", settings_file, *least).out


def test_other_algorithms_are_audited_by_rows(fedrec: Fedrec, settings_file: Path) -> None:
    found = fedrec("audit", settings_file, "--set", "algorithm.name=fedals", "--json").json
    assert found["algorithm"] == "fedals"
    assert found["determined"] == ["cleo"]
    assert found["findings"]["users_alone_with_an_item"] == 1


def test_it_needs_data(fedrec: Fedrec, tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    refused = fedrec("audit", path)
    assert refused.code == 2
    assert "data.path is missing: an audit needs a file" in refused.err
