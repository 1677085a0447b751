"""A key authority's folder that lost its keys, its record or its rosters is not begun anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from authority.folder.fake_coordinator import PASSPHRASE, PLAN
from changed_keys import change, keep, rotate

from fedrec.errors import KeysError
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.backup import back_up, restore

pytestmark = pytest.mark.slow

KEYS = ("authority/authority.key", "authority.pub.json")
RECORD = "authority/membership.json"
ROSTERS = "authority/rosters"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("lock")
    }


@pytest.mark.parametrize(
    "lost",
    [
        KEYS,
        (*KEYS, RECORD),
        (*KEYS, "epoch.json"),
        (*KEYS, RECORD, ROSTERS),
        (ROSTERS,),
        (ROSTERS, "epoch.json"),
        ("authority/rosters/00000001.json",),
    ],
    ids="+".join,
)
def test_what_is_left_is_not_made_into_another_federation(
    folder: AuthorityFolder, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    back_up(folder, tmp_path / "backup", PASSPHRASE)
    for name in lost:
        path = folder.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = contents(folder.path)
    with pytest.raises(KeysError) as refused:
        # What `fedrec provision` does with a folder.
        change(folder, lambda keys: keys.load_or_create())
        keep(folder, folder.begin(PLAN, 12))
        rotate(folder)
    assert str(folder.path) in refused.value.message
    assert "fedrec keys restore" in refused.value.remedy
    assert contents(folder.path) == before
    again = AuthorityFolder(tmp_path / "restored")
    restore(tmp_path / "backup", again, PASSPHRASE)
    assert rotate(again).roster.epoch == 2


def test_a_lost_record_names_the_way_back(folder: AuthorityFolder) -> None:
    (folder.path / RECORD).unlink()
    with pytest.raises(KeysError, match=r"membership\.json") as refused:
        rotate(folder)
    assert "fedrec keys restore" in refused.value.remedy
