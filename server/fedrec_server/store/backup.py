"""A copy of a coordinator's state folder, made while the coordinator runs or while it does not."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedrec.durable import make_private, sync, unwritten
from fedrec.errors import DamagedFile, SettingsError, StorageError
from fedrec.highwater import FILE, record
from fedrec.ids import RoundId
from fedrec_server.store import reading
from fedrec_server.store.durable_files import Spool
from fedrec_server.store.tables import DATABASE, SCHEMA_VERSION, prepare

_TRIES = 10
"""Files of a round that ends meanwhile are deleted: then the copy begins anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUp:
    """What a copy holds."""

    last_round: RoundId
    n_files: int
    n_bytes: int


def back_up(state: Path, into: Path) -> BackedUp:
    """Copy a state folder so that a coordinator can start from the copy.

    The database is copied as it is between two commits, then the files that its rows name, each
    compared with its digest. The copy is there whole, or not at all.

    Raises:
        SettingsError: there is no state to copy, something is there already, or nothing may be
            written there.
        DamagedFile: a file is not what its row says.
        StorageError: the copy cannot be written, or the database not be read.
    """
    if not (state / DATABASE).is_file():
        raise SettingsError(
            f"coordinator.state: {str(state)!r} holds no {DATABASE}.",
            remedy="Name the settings with which the coordinator was started.",
        )
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise SettingsError(
            f"{str(into)!r} is there already.",
            remedy="Name a new folder: a backup never replaces an older one.",
        )
    draft = into.parent / f".{into.name}-{secrets.token_hex(8)}"
    try:
        make_private(into.parent)
        found = _copied(state, draft)
        os.replace(draft, into)
        sync(into.parent)
    except OSError as error:
        raise unwritten(into, error, "Name another folder; nothing of it was kept.") from error
    except sqlite3.DatabaseError as error:
        raise StorageError(f"The database cannot be copied: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return found


def _copied(state: Path, draft: Path) -> BackedUp:
    for left in reversed(range(_TRIES)):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        Spool(draft)
        try:
            return _copy(state, draft)
        except DamagedFile:
            # A round that ended meanwhile took its files along; what is damaged stays so.
            if not left:
                raise
    raise StorageError("No copy was tried.")


def _copy(state: Path, draft: Path) -> BackedUp:
    uri = f"{(state / DATABASE).absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(uri, uri=True)) as source,
        closing(sqlite3.connect(draft / DATABASE)) as rows,
    ):
        source.backup(rows)
        prepare(rows)
        version = int(rows.execute("PRAGMA user_version").fetchone()[0])
        if version != SCHEMA_VERSION:
            raise StorageError(
                f"The database has schema {version}, this fedrec copies {SCHEMA_VERSION}.",
                remedy="Use the fedrec version that the coordinator runs.",
            )
        files = dict(reading.files(rows))
        last, commits = reading.last_round(rows), reading.commits(rows)
    spool = Spool(draft)
    for name, blob in files.items():
        try:
            shutil.copyfile(state / name, draft / name)
        except FileNotFoundError:
            raise DamagedFile(
                f"The stored file {name} is missing.",
                remedy=f"Bring {name} of coordinator.state back from an earlier backup.",
            ) from None
        spool.check(name, blob)
    (draft / FILE).write_bytes(record(commits))
    for path in [*(draft / name for name in files), draft / DATABASE, draft / FILE]:
        path.chmod(0o600)
        sync(path)
    for folder in [draft, *(path for path in draft.iterdir() if path.is_dir())]:
        sync(folder)
    n_bytes = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
    return BackedUp(last_round=last, n_files=len(files), n_bytes=n_bytes)
