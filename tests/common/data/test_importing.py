"""Public data sets that the user downloaded: checked, normalised, kept."""

from __future__ import annotations

import hashlib
import json
import pwd
import zipfile
from pathlib import Path

import pytest

from fedrec.cli import doctor
from fedrec.data import PUBLIC, READERS, Reading, import_public, read_interactions
from fedrec.data.public import (
    Counts,
    KnownCopy,
    PublicDataset,
    cached_path,
    find,
    require_if_public,
)
from fedrec.data.reading import DataSettings
from fedrec.data.source import read_source
from fedrec.errors import DataError, SettingsError
from fedrec.settings.validation import load_settings

# Three users; a repeats a pair, which counts once at its later time; c has one item only.
_TEXT = "a::1::5::30\na::1::4::40\na::2::3::20\nb::2::1::10\nb::3::1::11\nc::3::2::5\n"
_COUNTS = Counts(minimum=2, users=2, items=3, interactions=4)


def _dataset(sha256: str | None, counts: Counts = _COUNTS) -> PublicDataset:
    copy = KnownCopy(file="ratings.dat", layout="ratings.dat", sha256=sha256, counts=counts)
    return PublicDataset(
        title="Tiny", source="https://example.org/tiny", licence="Free.", citation="Nobody.",
        copies=(copy,), get="fedrec data import tiny tiny.zip",
    )  # fmt: skip


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The known copy of a data set called tiny; the cache is the test's own."""
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "ratings.dat"
    path.write_text(_TEXT)
    _register(monkeypatch, _dataset(hashlib.sha256(_TEXT.encode()).hexdigest()))
    return path


def _register(monkeypatch: pytest.MonkeyPatch, dataset: PublicDataset) -> None:
    registry = {**PUBLIC, "tiny": dataset}
    for module in ("fedrec.data.public", "fedrec.data.fetching", "fedrec.settings.validation"):
        monkeypatch.setattr(f"{module}.PUBLIC", registry)


def test_the_known_copy_is_kept_without_a_warning(file):
    imported = import_public("tiny", file, strict=True)
    assert imported.warnings == ()
    assert imported.counts == _COUNTS
    lines = imported.interactions_path.read_text().splitlines()
    assert lines == ["user_id,item_id,timestamp", "a,1,40", "a,2,20", "b,2,10", "b,3,11", "c,3,5"]
    origin = json.loads((imported.interactions_path.parent / "origin.json").read_text())
    assert origin["sha256"] == hashlib.sha256(_TEXT.encode()).hexdigest()
    assert find("tiny") == imported.interactions_path


def test_a_folder_and_an_archive_are_searched(file, tmp_path):
    inner = tmp_path / "unpacked" / "tiny"
    inner.mkdir(parents=True)
    (inner / "ratings.dat").write_text(_TEXT)
    (inner / "README").write_text("hello")
    archive = tmp_path / "tiny.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.write(inner / "ratings.dat", "tiny/ratings.dat")
    for path in (tmp_path / "unpacked", archive):
        assert import_public("tiny", path, strict=True).source_file == "ratings.dat"
    (inner / "ratings.dat").unlink()
    with pytest.raises(DataError, match=r"holds no ratings\.dat"):
        import_public("tiny", tmp_path / "unpacked")


def test_another_file_is_imported_with_warnings_or_refused(file):
    file.write_text(_TEXT.replace("b::2", "b::7") + "broken\n")
    sums, counts, rows = import_public("tiny", file).warnings
    assert "Its SHA-256 is" in sums
    assert "4 interactions of 2 users with 4 items" in counts
    assert "expected 4 interactions of 2 users with 3 items" in counts
    assert rows == "1 of 7 rows was left out."
    with pytest.raises(DataError, match="bad"):
        import_public("tiny", file, strict=True)
    file.write_text(_TEXT.replace("b::2", "b::7"))
    with pytest.raises(DataError, match="not the known copy"):
        import_public("tiny", file, strict=True)


def test_the_known_copy_in_the_cache_is_not_replaced_unasked(file, tmp_path):
    kept = import_public("tiny", file).interactions_path
    before = kept.read_bytes()
    other = tmp_path / "other" / "ratings.dat"
    other.parent.mkdir()
    other.write_text(_TEXT.replace("b::2", "b::7"))
    with pytest.raises(DataError, match="Nothing was replaced") as refused:
        import_public("tiny", other)
    assert "--force" in refused.value.remedy
    assert kept.read_bytes() == before
    assert import_public("tiny", file).warnings == ()
    assert import_public("tiny", other, force=True).warnings
    assert kept.read_bytes() != before
    # What differs is no known copy; it may be replaced by another such file.
    assert import_public("tiny", other).warnings


def test_a_file_without_a_user_that_counts_is_no_copy(file):
    file.write_text("a::1::5::30\nb::2::4::40\n")
    with pytest.raises(DataError, match="is not Tiny: it has 0 interactions of 0 users"):
        import_public("tiny", file, force=True)
    assert not cached_path("tiny").exists()


def test_an_account_without_a_home_reads_its_own_files(file, monkeypatch):
    for name in ("FEDREC_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", homeless)
    require_if_public(str(file))
    with pytest.raises(SettingsError, match="no home folder") as refused:
        find("tiny")
    assert "FEDREC_CACHE" in refused.value.remedy
    (checked,) = doctor._cache()
    assert (checked.verdict, checked.remedy) == ("warn", refused.value.remedy)


def test_without_a_known_sum_the_counts_decide(file, monkeypatch):
    _register(monkeypatch, _dataset(None))
    assert import_public("tiny", file, strict=True).warnings == ()
    _register(monkeypatch, _dataset(None, Counts(minimum=1, users=9, items=9, interactions=9)))
    with pytest.raises(DataError, match="expected 9 interactions of 9 users"):
        import_public("tiny", file, strict=True)


def test_settings_name_a_public_data_set(file, tmp_path):
    settings_file = tmp_path / "run.toml"
    settings_file.write_text('[data]\npath = "tiny"\n')
    data = load_settings(settings_file, environ={}).data
    with pytest.raises(DataError, match="Tiny") as missing:
        read_source(data, reader="a test")
    assert missing.value.remedy is not None
    assert "fedrec data import tiny" in missing.value.remedy
    import_public("tiny", file)
    assert len(read_source(data, reader="a test")) == 5
    # A file of that name is what is meant where there is one.
    (tmp_path / "tiny").write_text("user_id,item_id\na,1\n")
    assert load_settings(settings_file, environ={}).data.path == str(tmp_path / "tiny")


def test_unknown_and_missing_are_said(file):
    with pytest.raises(DataError, match="no public data set 'netflix'"):
        import_public("netflix", file)
    with pytest.raises(DataError, match="no public data set 'netflix'"):
        find("netflix")
    with pytest.raises(DataError, match="is not there"):
        import_public("tiny", file.with_name("absent.dat"))
    with pytest.raises(DataError, match="absent"):
        read_source(DataSettings(path=str(file.with_name("absent"))), reader="a test")


def test_the_registry_is_complete():
    for name, dataset in PUBLIC.items():
        assert dataset.source.startswith("http")
        assert dataset.licence and dataset.citation and f" {name}" in dataset.get
        for copy in dataset.copies:
            assert copy.layout in READERS
            assert copy.sha256 is None or len(bytes.fromhex(copy.sha256)) == 32
        assert cached_path(name, "somewhere").parent == Path("somewhere") / name


def test_an_implicit_file_without_times(tmp_path):
    """The layout of MovieLens-1M's implicit variant: a header `user,item`, no times."""
    path = tmp_path / "interactions.csv"
    path.write_text("user,item\n0,1104\n0,639\n")
    found, _ = read_interactions(path, Reading(strict=True))
    assert found.timestamps is None
    assert found.item_ids.tolist() == ["1104", "639"]
