"""The budget of approximate releases: durable, per key epoch, and refused when it is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec.errors import RefusedError, StorageError
from fedrec.ids import RoundId
from fedrec_client.releases import EXPORTS_PER_EPOCH, RELEASES_FILE, charge_release


def charge(folder: Path, *, epoch: int = 1, federation: str = "films") -> int:
    return charge_release(folder, federation=federation, epoch=epoch, version=RoundId(3))


def test_as_many_as_the_epoch_allows_and_then_none(tmp_path: Path) -> None:
    assert [charge(tmp_path) for _ in range(EXPORTS_PER_EPOCH)] == [1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(RefusedError, match="key epoch 1"):
            charge(tmp_path)
    assert charge(tmp_path, epoch=2) == 1
    assert charge(tmp_path, federation="books") == 1
    assert (tmp_path / RELEASES_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["{", "[]", '{"epoch": 1}', "\xff"])
def test_nothing_leaves_while_nobody_knows_what_left(tmp_path: Path, content: str) -> None:
    (tmp_path / RELEASES_FILE).write_text(content, encoding="latin-1")
    with pytest.raises(StorageError, match="Nothing is released"):
        charge(tmp_path)
