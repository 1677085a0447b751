"""Format numbers of state folders and run folders, and the backup before a conversion.

A number changes if old content would be misread, or if training would continue differently from it:
parameters, trainer or accelerators. Former formats are converted at the first start, others are
refused untouched. Numbers of files inside are next to the code that writes them.

Before a conversion, the replaced content is kept in a file that no release starts: it isn't a
database. It has no secret of a key epoch, and goes when the next round is published.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from fedrec.durable import write_whole
from fedrec.errors import StorageError, VersionMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The formats of one kind of folder that this release reads.

    Attributes:
        own: the one that it writes.
        former: those that it converts at the first start.
    """

    own: int
    former: tuple[int, ...] = ()


COORDINATOR = Formats(own=11, former=(10,))
"""The coordinator's database. 11 has checksums of rows."""
FOLLOWER = Formats(own=11, former=(9, 10))
"""The states of clients and of the key authority. 11 is one database."""
RUN_FORMAT = 2
"""The format of run folders. Before 2 they had no number."""
BACKUP_FILE = "before-upgrade.bak"
_BACKUP = b"fedrec backup, made before an upgrade. It can't be started.\n"
ENVIRONMENT_NAME = "environment.json"
"""The file of a run folder that contains its format number."""
CHECKPOINT_FILE = "checkpoint/checkpoint.json"
"""The file of a stopped simulation in its run folder."""


def format_number(found: object) -> int | None:
    """Return a format number from 2, "2" or, in older files, "1.0", or else None."""
    text = str(found).partition(".")[0]
    return int(text) if isinstance(found, int | str) and text.isdecimal() else None


def check_format(found: int | None, own: int, what: str, *, anew: str) -> None:
    """Refuse any format number but this fedrec's own.

    Args:
        found: the number, or None if there is none.
        what: the thing, as the beginning of a sentence.
        anew: an alternative to reading it, such as "start a new run".

    Raises:
        VersionMismatch: the numbers differ. The message has both.
    """
    if found == own:
        return
    if found is not None and found > own:
        raise VersionMismatch(
            f"{what} has format {found}, made by a newer fedrec. This one reads format {own}. "
            "Nothing was changed.",
            remedy="Install the fedrec that wrote it, or a newer one.",
        )
    number = "no format number" if found is None else f"format {found}"
    raise VersionMismatch(
        f"{what} has {number}, made by an older fedrec. This one reads format {own}. Nothing was "
        "changed.",
        remedy=f"Install the fedrec that wrote it, or {anew}.",
    )


def keep_backup(folder: Path, content: bytes) -> None:
    """Keep content that a conversion is about to replace, until `drop_backup`.

    Args:
        content: without any secret of a key epoch.

    Raises:
        DiskFull: the disk is full. Nothing was converted.
        FedrecError: the file can't be written.
    """
    write_whole(folder / BACKUP_FILE, _BACKUP + content, private=True)


def refuse_backup(path: Path) -> None:
    """Refuse a backup that was put in the place of a database.

    Raises:
        StorageError: the file is such a backup.
    """
    try:
        with path.open("rb") as file:
            found = file.read(len(_BACKUP))
    except OSError:
        return
    if found == _BACKUP:
        raise StorageError(
            f"{path} is a backup from before an upgrade and can't be used. Rounds may have been "
            "published since. Nothing was changed.",
            remedy="Restore the newest copy of the whole folder, not single files.",
        )


def drop_backup(folder: Path) -> None:
    """Delete the backup of the last conversion: the converted folder has published a round."""
    with suppress(OSError):
        (folder / BACKUP_FILE).unlink(missing_ok=True)


def check_run_folder(folder: Path) -> None:
    """Refuse a run folder of another format.

    Raises:
        VersionMismatch: the folder has a different format number, or none.
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
    """Refuse a folder in which a run could not create its own. Nothing is created.

    Raises:
        StorageError: a file is in the way, or the folder is not writable.
    """
    path = base.absolute()
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        raise no_run_folder(base, f"{nearest} is not a folder")
    try:
        # A file without a name, if the system supports it, is invisible and leaves nothing behind.
        with TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        why = f"nothing can be written in {nearest} ({error.strerror or error})"
        raise no_run_folder(base, why) from error


def no_run_folder(base: Path, why: object) -> StorageError:
    """Return the error for a folder in which a run cannot create its own."""
    return StorageError(
        f"No run folder can be created in {base}: {why}.",
        remedy="Set output.runs to a writable folder with space.",
    )
