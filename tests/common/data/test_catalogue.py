"""The catalogue's rows, versions, fingerprint and file."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.data import Catalogue, Interactions
from fedrec.errors import CatalogueMismatch, DataError, StorageError

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)


def test_rows_and_ids_are_inverse():
    catalogue = Catalogue.of(["b", "a", "c"], ["Bee", "", "Sea"])
    assert catalogue.rows_of(["c", "b", "c"]).tolist() == [2, 0, 2]
    assert catalogue.ids_of(np.array([2, 0])) == ["c", "b"]
    assert (catalogue.title_of("c"), catalogue.title_of("a")) == ("Sea", "a")
    assert len(catalogue) == catalogue.n_items == 3
    assert "a" in catalogue
    assert "d" not in catalogue
    assert catalogue.rows_of([]).shape == (0,)


def test_appending_keeps_old_rows():
    first = Catalogue.of(["b", "a"])
    second = first.append(["z", "c"], ["Zed", "Sea"])
    assert (first.version, second.version) == (1, 2)
    assert second.item_ids == ("b", "a", "z", "c")
    assert second.titles == ("", "", "Zed", "Sea")
    with pytest.raises(DataError, match="already in the catalogue: 'a'"):
        second.append(["d", "a"])


def test_fingerprint_is_sha256_of_the_items_in_order():
    def prefixed(text: str) -> bytes:
        return len(text.encode()).to_bytes(8, "big") + text.encode()

    expected = sha256(b"".join(map(prefixed, ["fedrec catalogue", "a", "bé"]))).hexdigest()
    catalogue = Catalogue.of(["a", "bé"])
    assert catalogue.fingerprint() == expected
    assert Catalogue.of(["a", "bé"], ["title", ""], version=9).fingerprint() == expected
    assert Catalogue.of(["a"]).append(["bé"]).fingerprint() == expected
    assert Catalogue.of(["bé", "a"]).fingerprint() != expected
    assert Catalogue.of(["ab", "é"]).fingerprint() != expected


def test_unknown_items_are_named():
    with pytest.raises(CatalogueMismatch, match=r"2 items .* 'x', 'y'") as caught:
        Catalogue.of(["a"]).rows_of(["y", "a", "x", "y"])
    assert caught.value.remedy
    with pytest.raises(CatalogueMismatch, match="and 3 more"):
        Catalogue.of(["a"]).rows_of("bcdefghi")


@pytest.mark.parametrize("row", [-1, 1])
def test_rows_outside_are_refused(row):
    with pytest.raises(CatalogueMismatch, match=f"Row {row} "):
        Catalogue.of(["a"]).ids_of([row])


def test_all_problems_are_reported_together():
    with pytest.raises(DataError, match=r"twice: 'a'; .* empty id; there are 1 titles .* is 0"):
        Catalogue.of(["a", "a", ""], ["one"], version=0)
    with pytest.raises(DataError, match="not Unicode"):
        Catalogue.of(["\ud800"])


def test_items_of_interactions_are_ordered_as_numbers():
    interactions = Interactions.from_arrays(["u"] * 3, ["10", "9", "100"])
    assert Catalogue.from_interactions(interactions).item_ids == ("9", "10", "100")


def test_ml_100k_has_the_same_rows_from_its_titles_and_from_its_interactions(
    ml_100k, ml_100k_shuffled
):
    counted = Catalogue.from_interactions(ml_100k_shuffled)
    assert counted.fingerprint() == ml_100k.catalogue.fingerprint()


@pytest.mark.slow
@settings(deadline=None)
@given(items=st.lists(TEXT.filter(bool), unique=True, max_size=8), data=st.data())
def test_the_file_gives_back_any_catalogue(tmp_path_factory, items, data):
    titles = data.draw(st.lists(TEXT, min_size=len(items), max_size=len(items)))
    catalogue = Catalogue.of(items, titles, version=3)
    path = tmp_path_factory.mktemp("catalogue") / "catalogue.csv"
    catalogue.save(path)
    assert Catalogue.load(path) == catalogue


def test_titles_may_be_edited_in_the_file(tmp_path):
    path = tmp_path / "catalogue.csv"
    Catalogue.of(["a", "b"], ["Wrong", "B"]).save(path)
    # Spreadsheets add a byte order mark.
    path.write_text(path.read_text().replace("Wrong", "Right"), encoding="utf-8-sig")
    assert Catalogue.load(path).titles == ("Right", "B")
    assert [entry.name for entry in tmp_path.iterdir()] == ["catalogue.csv"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("catalogue,1.0", "catalogue,2.0", r"format 2\.0\. This fedrec reads 1\.x"),
        ("fedrec-catalogue", "item_id", "is not a catalogue"),
        ("a,\n", "c,\n", "fingerprint"),
        ("a,\n", "a\n", "first record 3"),
        ("a,\n", "", "fingerprint"),
        (",1,", ",one,", "is damaged"),
        (",1,", f",{'9' * 5000},", "is damaged"),
        ("item_id,title", "title,item_id", "is damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path, old, new, message):
    path = tmp_path / "catalogue.csv"
    Catalogue.of(["a", "b"]).save(path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=message) as caught:
        Catalogue.load(path)
    assert caught.value.remedy


def test_a_later_minor_format_is_read(tmp_path):
    path = tmp_path / "catalogue.csv"
    Catalogue.of(["a"]).save(path)
    path.write_text(path.read_text().replace("catalogue,1.0", "catalogue,1.7"))
    assert Catalogue.load(path).item_ids == ("a",)


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        Catalogue.load(tmp_path / "absent.csv")
    with pytest.raises(StorageError, match="cannot be written"):
        Catalogue.of(["a"]).save(tmp_path / "absent" / "catalogue.csv")
