"""A folder that belongs to one process at a time."""

from __future__ import annotations

import os
import re

import pytest

from fedrec import state_folder
from fedrec.errors import FolderInUse, StorageError
from fedrec.state_folder import FolderLock


class Time:
    """A clock that advances when a process waits. At the third wait, the first one unlocks."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, 0
        self.first: FolderLock | None = None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waits += 1
        if self.waits == 3 and self.first is not None:
            self.first.release()


@pytest.fixture
def time(monkeypatch):
    made = Time()
    monkeypatch.setattr(state_folder, "time", made)
    return made


def test_a_second_one_is_refused_at_once_by_the_whole_path(tmp_path, time):
    text = re.escape(f"x.state: the folder '{tmp_path}' is in use by process {os.getpid()} on ")
    with FolderLock(tmp_path, "x.state"), pytest.raises(FolderInUse, match=text) as seen:
        FolderLock(tmp_path, "x.state")
    assert isinstance(seen.value, StorageError) and seen.value.code == "folder_in_use"
    assert time.waits == 0
    FolderLock(tmp_path, "x.state").release()


def test_two_names_are_two_locks(tmp_path):
    with FolderLock(tmp_path, "x", name="one"), FolderLock(tmp_path, "x", name="two"):
        assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


def test_who_waits_has_it_when_it_is_free(tmp_path, time):
    time.first = FolderLock(tmp_path, "x")
    FolderLock(tmp_path, "x", wait_seconds=9.0).release()
    assert time.waits == 3


def test_who_waited_in_vain_is_told_how_long(tmp_path, time):
    with FolderLock(tmp_path, "x"), pytest.raises(FolderInUse, match=r"after waiting 2\.5 s\."):
        FolderLock(tmp_path, "x", wait_seconds=2.5)
    assert 2.5 <= time.now < 2.6
