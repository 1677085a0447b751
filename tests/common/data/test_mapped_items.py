"""Files of training items: as an array, on a full disk, in a changed folder."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.mapped_items import MappedItems
from fedrec.durable import DiskFull
from fedrec.errors import StorageError


@pytest.mark.parametrize("n_items", [1_100, 20_000], ids=["in the last buffer", "before it"])
def test_a_full_disk_is_noticed_and_leaves_nothing(n_items, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(DiskFull):
            MappedItems.written([np.arange(10), np.arange(n_items) % 256], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(tmp_path.iterdir())


def test_items_are_found_and_removed_from_another_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = MappedItems.written([np.arange(10)], Path("runs"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert found[2:4].tolist() == [2, 3]
    del found
    gc.collect()
    assert not any((tmp_path / "runs").iterdir())


@pytest.fixture
def items(tmp_path):
    return MappedItems.written([np.arange(5), np.arange(300, 305)], tmp_path)


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m[np.array([3, 9], dtype=np.uint8)],
        lambda m: m[np.array([-2, 9], dtype=np.int16)],
        lambda m: m[np.zeros((0, 2), dtype=np.int64)],
        lambda m: m[[]],
        lambda m: m[...],
        lambda m: m[None],
        lambda m: m[3,],
        lambda m: m[2:8, None],
        lambda m: m.sum(),
        lambda m: m.max(initial=7),
        lambda m: m.reshape(2, 5),
        lambda m: m.tolist(),
        lambda m: list(m),
        lambda m: 301 in m,
        lambda m: np.sum(m, dtype=np.float64),
        lambda m: np.add(m, 1, out=np.zeros(10, dtype=np.int64)),
        lambda m: pickle.loads(pickle.dumps(m)),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_items_do_what_an_array_does(items, use):
    array = np.asarray(items)
    found, expected = use(items), use(array)
    del items
    gc.collect()
    assert type(found) is type(expected)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.sort(),
        lambda m: np.add(m, 1, out=m),
        lambda m: m.__iadd__(1),
    ],
)
def test_changes_of_items_are_refused(items, change):
    with pytest.raises(ValueError, match="read-only"):
        change(items)


@pytest.mark.parametrize(("number", "blamed"), [(errno.ENOENT, True), (errno.EMFILE, False)])
def test_only_a_missing_file_blames_a_program(items, monkeypatch, number, blamed):
    def refuse(*args, **named):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(StorageError) as caught:
        items[:3]
    assert ("Another program" in str(caught.value)) == blamed
