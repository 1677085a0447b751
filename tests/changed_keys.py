"""Changes of an authority's folder, each on its own, as commands make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedrec.identity.epoch import KeyEpoch
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.folder_changes import FolderChanges, changing
from fedrec_authority.members.register import MemberRegister

T = TypeVar("T")


def change(folder: AuthorityFolder, what: Callable[[FolderChanges], T]) -> T:
    """Make one change, in a folder that may be new."""
    with changing(folder, new=True) as keys:
        return what(keys)


def keep(folder: AuthorityFolder, membership: MemberRegister) -> None:
    """Keep the record of members."""
    change(folder, lambda keys: keys.keep(membership))


def rotate(folder: AuthorityFolder, *, number: int = 0, resume: int = 0) -> KeyEpoch:
    """Make an epoch."""
    return change(folder, lambda keys: keys.rotate(number=number, resume=resume))
