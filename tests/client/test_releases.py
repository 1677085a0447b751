"""The budget of approximate releases: durable, over all key epochs, refused when it is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec.errors import RefusedError, StorageError
from fedrec.ids import RoundId
from fedrec_client.releases import MOST_EXPORTS, RELEASES_FILE, charge_release


def charge(folder: Path, *, epoch: int = 1, federation: str = "films") -> int:
    return charge_release(folder, federation=federation, epoch=epoch, version=RoundId(3))


def test_as_many_as_the_noise_is_made_for_and_then_none(tmp_path: Path) -> None:
    assert [charge(tmp_path) for _ in range(MOST_EXPORTS)] == [1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(RefusedError, match="federation 'films'"):
            charge(tmp_path)
    assert charge(tmp_path, federation="books") == 1
    assert (tmp_path / RELEASES_FILE).stat().st_mode & 0o777 == 0o600


def test_a_new_key_epoch_gives_no_new_budget(tmp_path: Path) -> None:
    """A version holds the sums of every epoch before it: the first key counts all releases."""
    assert [charge(tmp_path, epoch=number) for number in (1, 1, 2, 3)] == [1, 2, 3, 4]
    for number in (1, 2, 3, 4):
        with pytest.raises(RefusedError, match="new keys do not change that"):
            charge(tmp_path, epoch=number)


@pytest.mark.parametrize("content", ["{", "[]", '{"epoch": 1}', "\xff"])
def test_nothing_leaves_while_nobody_knows_what_left(tmp_path: Path, content: str) -> None:
    (tmp_path / RELEASES_FILE).write_text(content, encoding="latin-1")
    with pytest.raises(StorageError, match="Nothing is released"):
        charge(tmp_path)
