"""Numbers of stored formats, and folders for runs: what does not fit is refused untouched.

A number changes when what lies in a folder would be misread, or when training goes on otherwise
from it: parameters, trainer or accelerators. There is one number for each kind of thing: for run
folders it stands here, for the others beside what writes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryFile

from fedrec.errors import StorageError, VersionMismatch

RUN_FORMAT = 2
"""Of run folders; before 2 they had no number."""
ENVIRONMENT_NAME = "environment.json"
"""The file of a run folder that has its number."""
CHECKPOINT_FILE = "checkpoint/checkpoint.json"
"""Of a simulation that was stopped, in its run folder."""


def format_number(found: object) -> int | None:
    """Return a number as it was written: 2, "2", or "1.0" in older files; else None."""
    text = str(found).partition(".")[0]
    return int(text) if isinstance(found, int | str) and text.isdecimal() else None


def check_format(found: int | None, own: int, what: str, *, anew: str) -> None:
    """Refuse what has another number than this fedrec's.

    Args:
        found: None where there is no number.
        what: the thing, at the beginning of a sentence.
        anew: what to do in place of reading it, as in "start a new run".

    Raises:
        VersionMismatch: naming both numbers.
    """
    if found == own:
        return
    if found is not None and found > own:
        raise VersionMismatch(
            f"{what} has format {found}, made by a newer fedrec; this one reads format {own}. "
            "Nothing was changed.",
            remedy="Install the fedrec that wrote it, or a newer one.",
        )
    number = "no format number" if found is None else f"format {found}"
    raise VersionMismatch(
        f"{what} has {number}, made by an older fedrec; this one reads format {own}. "
        "Nothing was changed.",
        remedy=f"Install the fedrec that wrote it, or {anew}.",
    )


def check_run_folder(folder: Path) -> None:
    """Refuse a run folder of another format.

    Raises:
        VersionMismatch: it has another number, or none.
        StorageError: its environment.json is damaged.
    """
    path = folder / ENVIRONMENT_NAME
    try:
        found = json.loads(path.read_bytes())["format"]
    except (FileNotFoundError, KeyError):
        found = None
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(
            f"{path} cannot be read: {error}.", remedy="Restore the folder from a backup."
        ) from error
    check_format(format_number(found), RUN_FORMAT, f"The run folder {folder}", anew="run it anew")


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
