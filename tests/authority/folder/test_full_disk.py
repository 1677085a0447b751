"""A disk that is full at each write of each change of an authority's folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from authority.folder.test_folder_changes import is_one_chain
from filling_disk import FAR, Disk
from world.federation import change

from fedrec.durable import DiskFull
from fedrec.identity.identity import Identity
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.folder_changes import FolderChanges

pytestmark = pytest.mark.slow

NOW = 1_800_000_000


CHANGES: dict[str, Callable[[FolderChanges, list[Identity]], object]] = {
    "rotate": lambda folder, people: folder.rotate(),
    "remove": lambda folder, people: folder.keep(
        folder.membership.without_member(people[0].client_id, NOW)
    ),
    "invite": lambda folder, people: folder.invite("hospital", confirm=False, now=NOW),
    "applicants": lambda folder, people: folder.keep_applicants([(people[3].public, b"")]),
    "operator": lambda folder, people: folder.make_operator(),
    "serve": lambda folder, people: folder.serve_at(["host.example"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_finds_no_space_is_made_by_the_next_call(folder, people, tmp_path, name):
    def attempt(path: Path, good: int) -> Disk:
        shutil.copytree(folder.path, path)
        disk, copy = Disk(path, [good], refusals=FAR), AuthorityFolder(path)
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch)
            if good == FAR:
                change(copy, lambda keys: CHANGES[name](keys, people))
                return disk
            with pytest.raises(DiskFull, match=f"{path}.*No space left on device"):
                change(copy, lambda keys: CHANGES[name](keys, people))
            # What was there is whole, and is read without space.
            assert copy.newest is not None and copy.membership.present
        change(copy, lambda keys: CHANGES[name](keys, people))
        return disk

    n_writes = attempt(tmp_path / "undisturbed", FAR).writes
    assert n_writes > 3
    whole = files(tmp_path / "undisturbed")
    for good in range(n_writes):
        path = tmp_path / f"full-{good}"
        attempt(path, good)
        found = AuthorityFolder(path)
        assert is_one_chain(found, found.last_epoch)
        assert files(path) == whole


def files(folder: Path) -> set[str]:
    """Return the names of all files but rosters: a change that failed may leave one more."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if "/rosters/" not in name}
