"""What a researcher imports: the README's ten lines, data and settings without files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fedrec
import fedrec_lab
from fedrec import FedrecError, load_data, load_settings
from fedrec.errors import DataError, SettingsError

README = Path(__file__).parents[2] / "README.md"


def test_the_ten_lines_of_the_readme(ml_100k, ml_100k_users, capsys):
    block = re.search(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[1]
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    said = capsys.readouterr().out
    # Popularity under this split, docs/explanation/evaluation.md.
    assert said.count("0.0764        0.0389") == 2
    ids, scores = names["ids"], names["scores"]
    assert len(ids) == 10
    assert (np.diff(scores) <= 0).all()
    user = ml_100k_users.user_ids.index("196")
    seen = {ml_100k.catalogue.item_ids[item] for item in ml_100k_users.train_of(user)}
    assert not seen & set(ids)


@pytest.mark.parametrize("package", [fedrec, fedrec_lab])
def test_every_public_name_is_there(package):
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_a_file_of_any_shape_is_read_with_the_settings_of_data(tmp_path):
    file = tmp_path / "ratings.csv"
    rows = ["user;item;rating", "a;x;5", "a;y;4", "a;z;1", "b;x;5", "b;y;5", "b;w;5"]
    file.write_text("\n".join(rows), encoding="utf-8")
    users, items = load_data(file, minimum_rating=4)
    assert users.user_ids == ("a", "b")
    assert sorted(items.item_ids) == ["w", "x", "y"]


def test_a_wrong_setting_of_reading_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"data\.minimum_ratings"):
        load_data(tmp_path / "ratings.csv", minimum_ratings=4)


def test_a_missing_file_and_a_missing_data_set_say_so(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"none\.csv"):
        load_data(tmp_path / "none.csv")
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path))
    with pytest.raises(DataError, match="fedrec data import ml-1m"):
        load_data("ml-1m")


def test_settings_need_no_file():
    found = load_settings(values={"rounds.total": "7", "algorithm.dim": 16}, environ={})
    assert (found.rounds.total, found.algorithm.dim) == (7, 16)
    assert found.data.path is None


def test_values_go_before_the_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[rounds]\ntotal = 3\n", encoding="utf-8")
    assert load_settings(file, {"rounds.total": 9}, environ={}).rounds.total == 9


def test_what_is_wrong_with_values_stands_in_the_message():
    with pytest.raises(FedrecError, match=r"values: .*rounds.totl"):
        load_settings(values={"rounds.totl": 3}, environ={})
