"""A user's history is found where a run's settings name data on this machine, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec.data.reading import DataSettings
from fedrec.errors import DataError
from fedrec.recommender.histories import find_history


@pytest.fixture
def run(tmp_path):
    """The folder of a run whose settings name a file outside it."""
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    write(tmp_path / "data.csv", "anna,a\nanna,b\nanna,a\nben,c\n")
    (folder / "resolved.toml").write_text('[data]\npath = "../../data.csv"\n')
    return folder


def write(path: Path, rows: str) -> None:
    path.write_text(f"user_id,item_id\n{rows}")


def test_every_item_once(run):
    found = find_history(run, "anna")
    assert found.item_ids == ("a", "b")
    assert found.source.samefile(run.parent.parent / "data.csv")


def test_a_demos_clients_are_asked_too(run):
    own = run / "clients" / "2"
    own.mkdir(parents=True)
    write(own / "interactions.csv", "cleo,x\n")
    (own / "client.toml").write_text('[data]\npath = "interactions.csv"\n')
    assert find_history(run, "cleo").item_ids == ("x",)
    assert find_history(run, "ben").item_ids == ("c",)


def test_a_file_that_is_given_counts_alone(run, tmp_path):
    write(tmp_path / "other.csv", "anna,z\n")
    assert find_history(run, "anna", DataSettings(path=str(tmp_path / "other.csv"))).item_ids == (
        "z",
    )
    with pytest.raises(DataError, match="'ben' has no history here"):
        find_history(run, "ben", DataSettings(path=str(tmp_path / "other.csv")))
    with pytest.raises(DataError, match="not there"):
        find_history(run, "ben", DataSettings(path=str(tmp_path / "missing.csv")))


def test_an_unknown_user_is_told_whom_to_ask(run, monkeypatch):
    with pytest.raises(DataError, match=r"'dora' has no history here.*data\.csv") as error:
        find_history(run, "dora")
    assert "fedrec recommend" in error.value.remedy
    (run.parent.parent / "data.csv").unlink()
    # What the environment says is not what the run read.
    monkeypatch.setenv("FEDREC_DATA__PATH", __file__)
    with pytest.raises(DataError, match="Files searched: none"):
        find_history(run, "anna")
