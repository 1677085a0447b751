"""The folder in which every run makes one of its own; `output.runs` names it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

from fedrec.errors import StorageError


def check_runs_folder(base: Path) -> None:
    """Refuse a folder in which no run can make its own; it need not be there, and is not made.

    Raises:
        StorageError: something that is no folder is in the way, or nothing can be written there.
    """
    path = base.absolute()
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        raise no_run_folder(base, f"{nearest} is no folder")
    try:
        # Without a name, where the system can do that: nobody sees it, and nothing is left.
        with TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        why = f"nothing can be written in {nearest} ({error.strerror or error})"
        raise no_run_folder(base, why) from error


def no_run_folder(base: Path, why: object) -> StorageError:
    """Return the error for a folder in which no run can make its own."""
    return StorageError(
        f"No run folder can be made in {base}: {why}.",
        remedy="Set output.runs to a writable folder with space.",
    )
