"""At most one coordinator on a state folder."""

from __future__ import annotations

from pathlib import Path

from fedrec.errors import SettingsError
from fedrec.folder_lock import FolderLock

__all__ = ["lock_state"]


def lock_state(folder: Path) -> FolderLock:
    """Take a coordinator's folder.

    Raises:
        SettingsError: naming the process that holds it.
    """

    def in_use(holder: str) -> SettingsError:
        return SettingsError(
            f"coordinator.state: the folder {folder.name!r} is in use by process {holder}.",
            remedy="Stop that coordinator first, or choose another folder.",
        )

    return FolderLock(folder, in_use)
