"""What a `[data]` section names is read in one place, whoever needs it."""

import pytest

from fedrec.data import Catalogue
from fedrec.data.reading import DataSettings
from fedrec.data.source import read_source, read_users
from fedrec.errors import CatalogueMismatch, DataError, SettingsError


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("who,what\nanna,a\nanna,b\nanna,c\nben,a\n")
    return DataSettings(path=str(path), user_column="who", item_column="what")


def test_every_key_of_the_section_counts(data):
    assert read_source(data, reader="a test").n_items == 3
    changed = data.model_copy(update={"user_column": "what", "item_column": "who"})
    assert read_source(changed, reader="a test").n_items == 2
    users, _ = read_users(data.model_copy(update={"minimum_interactions": 2}), reader="a test")
    assert users.user_ids == ("anna",)


def test_the_catalogue_is_given_named_or_made(data, tmp_path):
    assert read_users(data, reader="a test")[1].item_ids == ("a", "b", "c")
    Catalogue.of(["c", "b", "a", "z"]).save(tmp_path / "catalogue.csv")
    named = data.model_copy(update={"catalogue": str(tmp_path / "catalogue.csv")})
    assert read_users(named, reader="a test")[1].item_ids == ("c", "b", "a", "z")
    given = Catalogue.of(["b", "a", "c"])
    assert read_users(named, given, reader="a test")[1] is given


def test_errors_say_who_needs_what(data, tmp_path):
    with pytest.raises(SettingsError, match=r"data\.path is missing: a test needs"):
        read_source(DataSettings(), reader="a test")
    with pytest.raises(DataError, match="not there"):
        read_source(DataSettings(path=str(tmp_path / "none.csv")), reader="a test")
    with pytest.raises(CatalogueMismatch):
        read_users(data, Catalogue.of(["a"]), reader="a test")
