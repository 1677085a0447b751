"""Fetching MovieLens 100K: from the index, from the cache, damaged, offline and forged."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from fedrec.data import DATASETS, cache_folder, fetch_ml_100k
from fedrec.data.source import load_data
from fedrec.errors import DataError

pytestmark = pytest.mark.slow


@pytest.fixture
def offline(monkeypatch):
    """Leave pip no index and no folder to find anything in."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def filled(tmp_path, ml_100k):
    """A cache of one's own that has the data."""
    shutil.copytree(ml_100k.interactions_path.parent, tmp_path / "cache" / "ml-100k")
    return tmp_path / "cache"


def test_titles_carry_the_year(ml_100k):
    catalogue = ml_100k.catalogue
    assert catalogue.n_items == 1682
    assert catalogue.title_of("1") == "Toy Story (1995)"
    assert catalogue.title_of("543") == "Misérables, Les (1995)"
    assert catalogue.title_of("267") == "unknown"
    assert catalogue.title_of("1412").endswith("Great Giving (1995)")
    assert "GroupLens" in ml_100k.licence
    assert DATASETS[ml_100k.name] is fetch_ml_100k


def test_fetching_fills_an_empty_cache_and_leaves_nothing_else(tmp_path):
    dataset = fetch_ml_100k(tmp_path / "new" / "cache")
    assert len(dataset.read()[0]) == 100_000
    names = sorted(entry.name for entry in dataset.interactions_path.parent.iterdir())
    assert names == ["ml-100k.inter", "ml-100k.item"]


@pytest.mark.usefixtures("offline")
def test_a_filled_cache_needs_no_index(filled):
    assert fetch_ml_100k(filled).interactions_path == filled / "ml-100k" / "ml-100k.inter"


def test_a_damaged_cache_is_fetched_again(filled):
    damaged = filled / "ml-100k" / "ml-100k.inter"
    intact = damaged.read_bytes()
    damaged.write_bytes(intact[:-1])
    assert fetch_ml_100k(filled).interactions_path.read_bytes() == intact


@pytest.mark.usefixtures("offline")
def test_a_damaged_cache_is_not_used_offline(filled):
    (filled / "ml-100k" / "ml-100k.item").unlink()
    with pytest.raises(DataError, match="could not download"):
        fetch_ml_100k(filled)


@pytest.mark.usefixtures("offline")
def test_offline_is_told_soon_with_a_remedy(tmp_path):
    start = time.monotonic()
    with pytest.raises(DataError, match=r"could not download recbole==1\.2\.1") as caught:
        fetch_ml_100k(tmp_path)
    assert time.monotonic() - start < 60
    assert "FEDREC_CACHE" in caught.value.remedy


@pytest.mark.usefixtures("offline")
def test_force_fetches_although_it_is_cached(filled):
    with pytest.raises(DataError, match="could not download"):
        fetch_ml_100k(filled, force=True)
    assert fetch_ml_100k(filled).catalogue.n_items == 1682


def forge(folder: Path, *, with_data: bool) -> None:
    """Write a wheel of the right name that does not have the right data."""
    with zipfile.ZipFile(folder / "recbole-1.2.1-py3-none-any.whl", "w") as wheel:
        info = "recbole-1.2.1.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: recbole\nVersion: 1.2.1\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
        if with_data:
            wheel.writestr("recbole/dataset_example/ml-100k/ml-100k.inter", "forged")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("with_data", "message"), [(True, "has the SHA-256"), (False, "has no readable")]
)
def test_a_wheel_with_other_data_is_refused(tmp_path, monkeypatch, with_data, message):
    forge(tmp_path, with_data=with_data)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DataError, match=message):
        fetch_ml_100k(tmp_path / "cache")
    assert list((tmp_path / "cache" / "ml-100k").iterdir()) == []


def test_a_download_that_hangs_is_given_up(tmp_path, monkeypatch):
    def hang(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(DataError, match="longer than 120 seconds"):
        fetch_ml_100k(tmp_path)


def test_a_cache_that_cannot_be_written_is_explained(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot be written") as caught:
        fetch_ml_100k(tmp_path / "cache")
    assert "FEDREC_CACHE" in caught.value.remedy


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("FEDREC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "fedrec"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache" / "fedrec"


def test_it_is_read_with_its_titles(ml_100k):
    _, items = load_data("ml-100k")
    assert items.titles == ml_100k.catalogue.titles
    assert items.fingerprint() == ml_100k.catalogue.fingerprint()
