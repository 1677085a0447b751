"""Files of training items: on a full disk, and after the process changed its folder."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.mapped_items import MappedItems
from fedrec.durable import DiskFull


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
