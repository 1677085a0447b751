"""Keep a follower's records in one database: the state of its run, and records that outlive runs.

Each record has a name and a digest, so damage is detected. Values that must change together change
in one transaction. SQLite uses its rollback journal, not a write-ahead log. Reading therefore
leaves the folder unchanged, and a flipped bit can't silently discard a commit.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal

from fedrec.durable import DiskFull, unwritten, write_whole
from fedrec.errors import StorageError, VersionMismatch
from fedrec.formats import (
    BACKUP_FILE,
    FOLLOWER,
    check_format,
    format_number,
    keep_backup,
    refuse_backup,
)
from fedrec.state_folder import Highwater

STATE_FILE = "state.sqlite"
STATE_FORMAT = FOLLOWER.own
OLDER_FILE = "state.json"
"""The file that formats up to 10 used instead."""
_OLDER_OWN = {"roster": "roster.json", "selection_secret": "coin.key"}
"""The files that format 10 used for records that outlive runs."""
_SECRET_BYTES = 32
Table = Literal["run", "client"]
"""`run` has the fields of a `StoredState`. `client` has the records that outlive runs."""
Records = Mapping[str, bytes]

ANEW = (
    "start with a new state folder. It has no record of the privacy that users have spent, or of "
    "earlier counts, whose difference from its own can be one user's data"
)
DAMAGED = f"Restore the state folder from a backup, or {ANEW}."
_OLDER = (
    f"Nothing was changed or deleted. Restore the newest copy of the whole folder, as {STATE_FILE} "
    f"alone isn't enough. Or {ANEW}. A client then also needs to be replaced (`fedrec keys "
    "replace`)."
)
_UNWRITABLE = "Check the disk and that the folder is writable. Then start again."
_OLDER_NAME = "fedrec client state "
_SCHEMA = "".join(
    f"CREATE TABLE {table} (name TEXT PRIMARY KEY, value BLOB NOT NULL, sha256 BLOB NOT NULL) "
    "WITHOUT ROWID, STRICT;"
    for table in ("run", "client")
)
_BUSY_SECONDS = 60.0
"""Readers hold the database for milliseconds only."""
# https://www.sqlite.org/fileformat2.html, section 1.3
_HEADER_BYTES, _MAGIC = 100, b"SQLite format 3\0"
_CHANGES, _VERSION = slice(24, 28), slice(60, 64)
_PASSES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY}
_UNDOING = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE}
"""The SQLite errors of a read that has to undo a commit when the disk is full."""
_FATAL = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}


class StateDatabase:
    """Store records of one state folder. The first commit creates the database.

    Args:
        folder: the state folder.

    Raises:
        VersionMismatch: the database has a different format. Nothing was changed.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATE_FILE
        self._rows: sqlite3.Connection | None = None
        self._mark: Highwater | None = None
        for path in (self._path, folder / OLDER_FILE):
            refuse_backup(path)
        with suppress(OSError), (folder / OLDER_FILE).open("rb") as file:
            name = str(folder / OLDER_FILE)
            check_older(file.readline(), name, former=FOLLOWER.former)
        header = _header(self._path)
        if header:
            check_format(database_version(self._path), STATE_FORMAT, str(self._path), anew=ANEW)

    def convert(self) -> None:
        """Make the database from the files of a former format, if there are any.

        The database is written whole, so an interrupted conversion begins again, or only deletes
        the files.

        Raises:
            DiskFull: the disk is full. Nothing was converted.
            StorageError: the files are damaged.
        """
        folder = self._path.parent
        older = folder / OLDER_FILE
        if not older.exists():
            return
        if not self._path.exists():
            raw = older.read_bytes()
            tables = _older_tables(folder, raw)
            # It has names and digests, but no secret: those are in other files.
            keep_backup(folder, raw)
            write_whole(self._path, image_of(tables), private=True)
        elif not (folder / BACKUP_FILE).exists():
            raise StorageError(
                f"{folder} has both {STATE_FILE} and {OLDER_FILE}, and no backup of a conversion.",
                remedy="Nothing was changed. Restore the newest copy of the whole folder.",
            )
        for name in (*_OLDER_OWN.values(), OLDER_FILE):
            (folder / name).unlink(missing_ok=True)

    def refuse_former(self) -> None:
        """Refuse to read a former format, which the folder's own process converts.

        Raises:
            VersionMismatch: the folder has a former format.
        """
        if not self._path.exists() and (self._path.parent / OLDER_FILE).exists():
            raise VersionMismatch(
                f"{self._path.parent} has a former format, which this command doesn't convert. "
                "Nothing was changed.",
                remedy="Start the client or the key authority once, which converts it.",
            )

    def claim(self, name: str) -> None:
        """Refuse a database that is older than before, and record how far this one has come.

        Call this before the first read. In a copy of an older database, the first read would use
        the newer one's journal to undo an interrupted commit.

        Args:
            name: the folder's name, for errors.

        Raises:
            StateWentBack: the database is older than the one that was here before.
            StorageError: the mark can't be read.
        """
        self._mark = Highwater(self._path.parent, name, _OLDER)
        try:
            self._mark.check(self._commits(), may_be_missing=True)
        except OSError as error:
            raise unwritten(self._path.parent, error, _UNWRITABLE) from error

    def _commits(self) -> int | None:
        """Return SQLite's own count of commits, or None if there is no database."""
        counter = change_counter(self._path.parent)
        return None if counter is None else int.from_bytes(counter)

    def _note(self) -> None:
        # A mark that lags behind refuses fewer databases, but never an intact one.
        with suppress(OSError):
            if self._mark is not None:
                self._mark.note(self._commits() or 0)

    def read(self, table: Table) -> dict[str, bytes]:
        """Return all records of a table, or none before the first commit.

        Locks the database for the read only, and works while another process writes.

        Raises:
            DiskFull: a commit was interrupted, and the disk has no space to undo it.
            StorageError: the database is damaged or can't be read.
        """
        if not self._path.exists():
            return {}
        try:
            try:
                found = _select(self._path, table, "ro")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                    raise
                # If a process was killed during a commit, any reader may undo it.
                found = _select(self._path, table, "rw")
        except sqlite3.Error as error:
            message = f"{self._path} cannot be read: {error}."
            if error.sqlite_errorcode in _UNDOING:
                raise DiskFull(message) from error
            raise StorageError(message, remedy=DAMAGED) from error
        for name, value, digest in found:
            if not isinstance(value, bytes) or sha256(value).digest() != digest:
                raise damaged(self._path, name)
        return {name: value for name, value, _ in found}

    def write(self, table: Table, records: Records) -> None:
        """Commit records in one transaction.

        Raises:
            DiskFull: the disk is full. Nothing was changed.
            StorageError: the records can't be written for another reason.
        """
        if not self._path.exists():
            write_whole(self._path, image_of({table: records}), private=True)
            self._note()
            return
        try:
            if self._rows is None:
                self._rows = sqlite3.connect(
                    self._path,
                    timeout=_BUSY_SECONDS,
                    isolation_level=None,
                    check_same_thread=False,
                )
                # Replaced records may hold a key or a user's data.
                self._rows.execute("PRAGMA secure_delete = ON")
                self._rows.execute("PRAGMA synchronous = EXTRA")
            self._rows.execute("BEGIN IMMEDIATE")
            _put(self._rows, table, records)
            self._rows.execute("COMMIT")
            self._note()
        except sqlite3.Error as error:
            # The next commit begins by undoing this unfinished one.
            self.close()
            message = f"{self._path} cannot be written: {error}."
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if code & 0xFF in _PASSES and code not in _FATAL:
                raise DiskFull(message) from error
            raise StorageError(message, remedy=_UNWRITABLE) from error

    def close(self) -> None:
        """Close the connection. The next read or write opens a new one."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def release(self) -> None:
        """Close the database and its mark."""
        self.close()
        if self._mark is not None:
            self._mark.close()


def image_of(tables: Mapping[Table, Records]) -> bytes:
    """Return the bytes of a database file with these records."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as rows:
        rows.executescript(f"{_SCHEMA}PRAGMA user_version = {STATE_FORMAT};")
        for table, records in tables.items():
            _put(rows, table, records)
        return rows.serialize()


def damaged(path: Path, name: str) -> StorageError:
    """Return the error for a record whose content or name doesn't match its digest."""
    return StorageError(
        f"{path} is damaged: the record {name!r} doesn't match its digest.", remedy=DAMAGED
    )


def change_counter(folder: Path) -> bytes | None:
    """Return the file's change counter without opening the database, or None if it has none."""
    header = _header(folder / STATE_FILE)
    return header[_CHANGES] if header else None


def check_older(first_line: bytes, name: str, *, former: tuple[int, ...] = ()) -> None:
    """Refuse a state folder in a format from before SQLite.

    Args:
        first_line: the first line of the state file.
        name: the file's name, for errors.
        former: formats that are converted.

    Raises:
        VersionMismatch: the folder has an older format. The error names both numbers.
    """
    number = _older_number(first_line)
    if number is not None and number not in former:
        check_format(number, STATE_FORMAT, name, anew=ANEW)


def _older_number(first_line: bytes) -> int | None:
    text = first_line.decode(errors="replace").strip()
    named = text.startswith(_OLDER_NAME)
    return format_number(text.removeprefix(_OLDER_NAME)) if named else None


def records_in(folder: Path) -> tuple[int, Mapping[Table, Records]]:
    """Return the format and the records of a folder that no process uses. Change nothing.

    Raises:
        VersionMismatch: the folder has a format that this release neither reads nor converts.
        StorageError: its files are damaged.
    """
    database, older = StateDatabase(folder), folder / OLDER_FILE
    if (folder / STATE_FILE).exists():
        return STATE_FORMAT, {"run": database.read("run"), "client": database.read("client")}
    raw = older.read_bytes()
    return _older_number(raw.partition(b"\n")[0]) or 0, _older_tables(folder, raw)


def _older_tables(folder: Path, raw: bytes) -> Mapping[Table, Records]:
    return {"run": _older_run(folder / OLDER_FILE, raw), "client": _older_own(folder)}


def _older_run(path: Path, raw: bytes) -> Records:
    """Return the records of format 9 or 10, from a number, a JSON object and a checksum."""
    lines = raw.split(b"\n")
    body = b"\n".join(lines[:2]) + b"\n"
    if len(lines) != 4 or lines[2] != sha256(body).hexdigest().encode():
        raise damaged(path, OLDER_FILE)
    fields = json.loads(lines[1])
    if _older_number(lines[0]) == 9:
        # It is signed in the form of wire protocol 7, so no peer can verify it. The run can't
        # continue, and spent privacy, counted data and left runs go into the next one.
        fields["statement"] = None
    if fields.get("best") and "score" in fields["best"]:
        # Its rates were not stored. The next version that is measured begins the comparison.
        fields["best"] = None
    return {name: json.dumps(value).encode() for name, value in fields.items()}


def _older_own(folder: Path) -> Records:
    """Return the records that outlive runs from the files of format 10."""
    found = {
        name: (folder / file).read_bytes()
        for name, file in _OLDER_OWN.items()
        if (folder / file).exists()
    }
    if "selection_secret" in found:
        secret = found["selection_secret"]
        found["selection_secret"], checksum = secret[:_SECRET_BYTES], secret[_SECRET_BYTES:]
        if sha256(found["selection_secret"]).digest() != checksum:
            raise damaged(folder / _OLDER_OWN["selection_secret"], "selection_secret")
    return found


def database_version(path: Path) -> int:
    """Return the version of a database without opening it.

    A process that runs or was killed may have left the version in the write-ahead log alone. That
    is read from a copy. Without a copy, if the process just ended or there is no space, the version
    is the database's own.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists():
        with suppress(sqlite3.Error, OSError), tempfile.TemporaryDirectory() as folder:
            copied = [Path(shutil.copy(one, folder)) for one in (path, log)]
            with closing(sqlite3.connect(copied[0])) as rows:
                return int(rows.execute("PRAGMA user_version").fetchone()[0])
    return int.from_bytes(_header(path)[_VERSION])


def is_database(path: Path) -> bool:
    """Return whether a file has the header of a database."""
    return bool(_header(path))


def _header(path: Path) -> bytes:
    """Return the header of a database, or empty if there is no database."""
    try:
        with path.open("rb") as file:
            found = file.read(_HEADER_BYTES)
    except OSError:
        return b""
    return found if len(found) == _HEADER_BYTES and found.startswith(_MAGIC) else b""


def _select(path: Path, table: Table, mode: str) -> list[tuple[str, bytes, bytes]]:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    with closing(sqlite3.connect(uri, timeout=_BUSY_SECONDS, uri=True)) as rows:
        return rows.execute(f"SELECT name, value, sha256 FROM {table}").fetchall()


def _put(rows: sqlite3.Connection, table: Table, records: Records) -> None:
    rows.executemany(
        f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)",
        [(name, value, sha256(value).digest()) for name, value in records.items()],
    )
