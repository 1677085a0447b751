"""A state folder from outside: reading without opening, checks of completeness, and copies."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedrec.durable import make_private, sync, unwritten
from fedrec.errors import DamagedFile, SettingsError, StateWentBack, StorageError
from fedrec.formats import COORDINATOR, refuse_backup
from fedrec.ids import RoundId
from fedrec.state_folder import FILE, Highwater, record
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import UploadHeader
from fedrec_server.store import reading
from fedrec_server.store.durable_files import DurabilityLost, Spool, damaged, epoch_name
from fedrec_server.store.tables import (
    DATABASE,
    SCHEMA_VERSION,
    from_row,
    prepare,
    table_names,
    tables,
)
from fedrec_server.store.writing import read_recovered


def installed_bundle(folder: Path) -> bytes | None:
    """Return the public bundle of the last installed epoch, or None if no epoch was installed.

    The folder is only read. Problems of the database are reported by the process that opens it.

    Raises:
        DamagedFile: the bundle is missing or does not match its row.
    """
    database = folder / DATABASE
    if not database.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as rows:
            rows.row_factory = sqlite3.Row
            record = reading.installed_epoch(rows)
    except sqlite3.DatabaseError:
        return None
    if record is None:
        return None
    name = epoch_name(record.epoch, record.blob)
    path = folder / name
    raw = path.read_bytes() if path.is_file() else b""
    if Blob.of(raw) != record.blob:
        raise damaged(name)
    return raw


NO_ROUND = RoundId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerFolder:
    """The readable content of a former state folder.

    Attributes:
        plan_fingerprint: the plan's, in the form of the release that began the run.
        charged: the number of noisy sums that it counted.
        latest: the headers of members' last updates.
    """

    run: str = ""
    plan_fingerprint: str = ""
    published: RoundId = NO_ROUND
    last_round: RoundId = NO_ROUND
    charged: int = 0
    latest: tuple[UploadHeader, ...] = ()


def read_former_folder(state: Path) -> FormerFolder:
    """Return the content of an existing folder, or nothing if it cannot be read."""
    if not (state / DATABASE).is_file():
        return FormerFolder()
    uri = f"{(state / DATABASE).absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as rows:
            prepare(rows)
            version = int(rows.execute("PRAGMA user_version").fetchone()[0])
            if version not in (*COORDINATOR.former, SCHEMA_VERSION):
                return FormerFolder()
            return _read(rows)
    except (sqlite3.DatabaseError, ArithmeticError, LookupError, TypeError, ValueError):
        return FormerFolder()


def _read(rows: sqlite3.Connection) -> FormerFolder:
    before = read_recovered(rows)
    run = reading.meta_value(rows, "run")
    query = "SELECT coalesce(max(round), 0) FROM rounds WHERE phase = 'published'"
    published = RoundId(rows.execute(query).fetchone()[0])
    charged = int(rows.execute("SELECT count(*) FROM ledger").fetchone()[0])
    last = reading.last_round(rows)
    if before is not None:
        last, charged = max(last, before.last_round), charged + before.charged
    return FormerFolder(
        run=run,
        plan_fingerprint=reading.meta_value(rows, "plan_fingerprint"),
        published=published,
        last_round=last,
        charged=charged,
        latest=tuple(from_row(UploadHeader, row) for row in rows.execute("SELECT * FROM latest")),
    )


WAY_BACK = (
    "Restore the whole folder from a backup (`fedrec coordinator backup` makes one), check the "
    "disk, and keep this folder as evidence. Without a backup, and if the key authority opens "
    "sums, use `fedrec coordinator recover`. A new run needs an empty folder."
)
REMEDY = f"Nothing was changed or deleted. {WAY_BACK}"
UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError)
"""Errors from rows that do not match what was written."""
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNSYNCED = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}
_LOG = f"{DATABASE}-wal"


def check_whole(folder: Path, spool: Spool, highwater: Highwater) -> None:
    """Refuse a folder that lost data, before changing anything in it.

    When opened for writing, SQLite would discard the unreadable part of its log.

    Raises:
        StateWentBack: the database lost commits, or it is missing but its files are there.
        DamagedFile: the database is damaged.
        sqlite3.DatabaseError: the database cannot be read.
    """
    database = folder / DATABASE
    refuse_backup(database)
    if not _has_bytes(database):
        _check_nothing_left(folder, spool)
        highwater.check(None)
        return
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as rows:
        prepare(rows)
        version = int(rows.execute("PRAGMA user_version").fetchone()[0])
        if version not in (0, *COORDINATOR.former, SCHEMA_VERSION):
            # The reader of versions reports it.
            return
        if not version:
            _check_nothing_left(folder, spool)
            highwater.check(0)
            return
        highwater.check(reading.commits(rows))
        found = rows.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found == "ok" and _columns(rows) != _columns_of_schema():
            found = "its tables differ from those that were created"
        if found != "ok":
            raise damaged_database(folder, found)
        _check_rows(folder, rows)
        last, later = reading.last_round(rows), spool.last_round()
        if later > last:
            raise StateWentBack(
                f"coordinator.state has files of round {later}, but its database ends with round "
                f"{last}.",
                remedy=REMEDY,
            )


def _check_rows(folder: Path, rows: sqlite3.Connection) -> None:
    """Read every row once, because partial reads skip the checksums."""
    for name in table_names(rows):
        try:
            with closing(rows.execute(f"SELECT * FROM {name}")) as found:
                for _ in found:
                    pass
        except UNREADABLE as error:
            raise damaged_database(folder, f"in its table {name!r} {error}") from error


def damaged_database(folder: Path, why: object) -> DamagedFile:
    """Return the error for a damaged database, found by SQLite or by a reader of its rows."""
    return DamagedFile(f"{folder / DATABASE} is damaged: {why}.", remedy=WAY_BACK)


def code_of(error: sqlite3.Error) -> int:
    """Return SQLite's code of an error. Errors from Python's own part have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)


def lost(error: sqlite3.Error, folder: Path) -> DurabilityLost | None:
    """Return the error that ends the process because the database is no longer reliable."""
    code = code_of(error)
    if code & 0xFF in _CORRUPT:
        return DurabilityLost(str(damaged_database(folder, error)))
    return DurabilityLost(f"The database failed: {error}.") if code in _UNSYNCED else None


def _check_nothing_left(folder: Path, spool: Spool) -> None:
    """Refuse to begin a run among another one's files, which would all be deleted."""
    found = [f"{count} in {kind}/" for kind, count in spool.counts().items() if count]
    found += [_LOG] if _has_bytes(folder / _LOG) else []
    if found:
        raise StateWentBack(
            f"coordinator.state is {str(folder)!r}, and its database {DATABASE} is missing or "
            f"empty. Files that belong to it are still there: {', '.join(found)}.",
            remedy=REMEDY,
        )


def _columns(rows: sqlite3.Connection) -> list[tuple[str | int, ...]]:
    query = "SELECT name, type, pk FROM pragma_table_info(?) ORDER BY cid"
    return [
        (table, *column)
        for table in sorted(table_names(rows))
        for column in rows.execute(query, (table,))
    ]


def _columns_of_schema() -> list[tuple[str | int, ...]]:
    with closing(sqlite3.connect(":memory:")) as rows:
        prepare(rows)
        for statement in tables().values():
            rows.execute(statement)
        return _columns(rows)


def _has_bytes(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


_TRIES = 10
"""If a round ends meanwhile, its files are deleted, and the copy begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUp:
    """A summary of a backup."""

    last_round: RoundId
    n_files: int
    n_bytes: int


def back_up(state: Path, into: Path) -> BackedUp:
    """Copy a state folder so that a coordinator can start from the copy.

    The database is copied as of a commit, then the files that its rows name, each checked against
    its digest. The copy appears in full or not at all.

    Raises:
        SettingsError: there is no state to copy, the target exists, or its folder is not writable.
        DamagedFile: a file does not match its row.
        StorageError: writing the copy or reading the database failed.
    """
    if not (state / DATABASE).is_file():
        raise SettingsError(
            f"coordinator.state: {str(state)!r} holds no {DATABASE}.",
            remedy="Use the settings file with which the coordinator was started.",
        )
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise SettingsError(
            f"{str(into)!r} already exists.",
            remedy="Choose a new folder. A backup never replaces an older one.",
        )
    draft = into.parent / f".{into.name}-{secrets.token_hex(8)}"
    try:
        make_private(into.parent)
        found = _copied(state, draft)
        os.replace(draft, into)
        sync(into.parent)
    except OSError as error:
        raise unwritten(
            into, error, "Choose another folder. No part of the copy was kept."
        ) from error
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
            # A round that ended meanwhile deleted its files, but a damaged file stays.
            if not left:
                raise
    raise StorageError("No copy was attempted.")


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
        paths = (path for name in reading.own_models(rows) for path in state.glob(f"{name}-*"))
        models = [str(path.relative_to(state)) for path in paths]
        last, commits = reading.last_round(rows), reading.commits(rows)
    spool = Spool(draft)
    for name in (*files, *models):
        try:
            shutil.copyfile(state / name, draft / name)
        except FileNotFoundError:
            raise DamagedFile(
                f"The stored file {name} is missing.",
                remedy=f"Restore {name} of coordinator.state from an earlier backup.",
            ) from None
        if name in files:
            spool.check(name, files[name])
    copied = [draft / name for name in (*files, *models)]
    (draft / FILE).write_bytes(record(commits))
    for path in [*copied, draft / DATABASE, draft / FILE]:
        path.chmod(0o600)
        sync(path)
    for folder in [draft, *(path for path in draft.iterdir() if path.is_dir())]:
        sync(folder)
    n_bytes = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
    return BackedUp(last_round=last, n_files=len(copied), n_bytes=n_bytes)
