"""A key authority's folder that lost its keys, its record or its rosters is not begun anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authority.folder.fake_coordinator import PASSPHRASE, PLAN
from world.federation import change, keep, rotate

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
def test_what_is_left_is_not_made_into_another_federation(folder, tmp_path, lost):
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


def test_a_lost_record_names_the_way_back(folder):
    (folder.path / RECORD).unlink()
    with pytest.raises(KeysError, match=r"membership\.json") as refused:
        rotate(folder)
    assert "fedrec keys restore" in refused.value.remedy


def leaves(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each value that has no parts."""
    if not isinstance(value, dict | list):
        yield path
        return
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(part, *path, name)


@pytest.mark.parametrize("name", ["membership", "invitations", "applicants"])
def test_another_value_in_any_field_of_a_record_is_noticed(folder, people, name):
    change(folder, lambda keys: keys.invite("hospital", confirm=False, now=1_800_000_000))
    change(folder, lambda keys: keys.keep_applicants([(people[3].public, b"")]))
    path = folder.private / f"{name}.json"
    raw = path.read_bytes()
    every = list(leaves(json.loads(raw)))
    assert len(every) > 4
    for *way, last in every:
        content = inner = json.loads(raw)
        for step in way:
            inner = inner[step]
        found = inner[last]
        inner[last] = found + 1 if isinstance(found, int) else f"{found}A"
        path.write_text(json.dumps(content))
        with pytest.raises(KeysError, match=str(path)) as refused:
            assert folder.membership and folder.invitations.unused(0) and folder.applicants()
        assert "estore" in refused.value.remedy or last in ("kind", "version")
    # Of an earlier release, which wrote no digest.
    path.write_text(json.dumps({k: v for k, v in json.loads(raw).items() if k != "sha256"}))
    assert folder.membership and folder.applicants()
