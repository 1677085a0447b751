"""A follower's one database: what it knows of its run, and what outlives runs.

Records by name, each with its digest, so that damage is noticed; what must change together changes
in one transaction. SQLite keeps its rollback journal, not a write-ahead log: a folder that is only
looked at stays as it is, and one flipped bit takes no commit along without a word.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal

from fedrec.durable import DiskFull, unwritten, write_whole
from fedrec.errors import StorageError
from fedrec.formats import check_format, format_number
from fedrec.state_folder import Highwater

STATE_FILE = "state.sqlite"
STATE_FORMAT = 11
OLDER_FILE = "state.json"
"""What formats up to 10 had in its place."""
Table = Literal["run", "client"]
"""`run` has the fields of a `StoredState`, `client` what outlives runs."""
Records = Mapping[str, bytes]

_ANEW = (
    "start with a new state folder, which knows neither the run nor what users' privacy has cost"
)
_DAMAGED = "Restore the state folder from a backup, or start again with an empty one."
_OLDER = (
    "Nothing was changed or deleted. Bring the newest folder back as a whole: a copy of its "
    f"{STATE_FILE} alone is not enough. Or start with a new state folder, which does not know what "
    "users' privacy has cost; a client needs a new place then (`fedrec keys replace`)."
)
_UNWRITABLE = "Check the disk and that the folder is writable, then start again."
_OLDER_NAME = "fedrec client state "
_SCHEMA = "".join(
    f"CREATE TABLE {table} (name TEXT PRIMARY KEY, value BLOB NOT NULL, sha256 BLOB NOT NULL) "
    "WITHOUT ROWID, STRICT;"
    for table in ("run", "client")
)
_BUSY_SECONDS = 60.0
"""Readers hold the database for milliseconds."""
# https://www.sqlite.org/fileformat2.html, section 1.3
_HEADER_BYTES, _MAGIC = 100, b"SQLite format 3\0"
_CHANGES, _VERSION = slice(24, 28), slice(60, 64)
_PASSES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY}
_UNDOING = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE}
"""What reading meets where a commit is to be undone and there is no space for that."""
_FATAL = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}


class StateDatabase:
    """The database of one state folder; it is made by the first commit.

    Args:
        folder: the state folder.

    Raises:
        VersionMismatch: it has another format; nothing was touched.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATE_FILE
        self._rows: sqlite3.Connection | None = None
        self._mark: Highwater | None = None
        with suppress(OSError), (folder / OLDER_FILE).open("rb") as file:
            check_older(file.readline(), str(folder / OLDER_FILE))
        header = _header(self._path)
        if header:
            number = int.from_bytes(header[_VERSION])
            check_format(number, STATE_FORMAT, str(self._path), anew=_ANEW)

    def claim(self, name: str) -> None:
        """Refuse a database that is older than it was, and mark from now on how far it has come.

        Comes before the first reading, which undoes what an interrupted commit left: of the newer
        database, where this is a copy of an older one.

        Args:
            name: of the folder, for errors.

        Raises:
            StateWentBack: it knows less than it once did.
            StorageError: the mark cannot be read.
        """
        self._mark = Highwater(self._path.parent, name, _OLDER)
        try:
            self._mark.check(self._commits(), may_be_missing=True)
        except OSError as error:
            raise unwritten(self._path.parent, error, _UNWRITABLE) from error

    def _commits(self) -> int | None:
        """Return what SQLite's own count of commits is; None where there is no database."""
        counter = change_counter(self._path.parent)
        return None if counter is None else int.from_bytes(counter)

    def _note(self) -> None:
        # A mark that stays behind refuses less, and never what is whole.
        with suppress(OSError):
            if self._mark is not None:
                self._mark.note(self._commits() or 0)

    def read(self, table: Table) -> dict[str, bytes]:
        """Return all records of a table; none where there is no database yet.

        Takes no lock for longer than that, and works beside the process that writes.

        Raises:
            DiskFull: a commit was interrupted, and there is no space to undo it.
            StorageError: the database is damaged, or cannot be read.
        """
        if not self._path.exists():
            return {}
        try:
            try:
                found = _select(self._path, table, "ro")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                    raise
                # A process was killed in a commit, and any reader may undo what it began.
                found = _select(self._path, table, "rw")
        except sqlite3.Error as error:
            message = f"{self._path} cannot be read: {error}."
            if error.sqlite_errorcode in _UNDOING:
                raise DiskFull(message) from error
            raise StorageError(message, remedy=_DAMAGED) from error
        for name, value, digest in found:
            if not isinstance(value, bytes) or sha256(value).digest() != digest:
                raise damaged(self._path, name)
        return {name: value for name, value, _ in found}

    def write(self, table: Table, records: Records) -> None:
        """Commit records in one transaction.

        Raises:
            DiskFull: there is no space; nothing was changed.
            StorageError: they cannot be written for another reason.
        """
        if not self._path.exists():
            write_whole(self._path, image_of({table: records}), private=True)
            self._note()
            return
        try:
            if self._rows is None:
                self._rows = sqlite3.connect(
                    self._path, _BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                # What is replaced may be a key, or about a user.
                self._rows.execute("PRAGMA secure_delete = ON")
                self._rows.execute("PRAGMA synchronous = EXTRA")
            self._rows.execute("BEGIN IMMEDIATE")
            _put(self._rows, table, records)
            self._rows.execute("COMMIT")
            self._note()
        except sqlite3.Error as error:
            # The next commit begins by undoing what this one left half done.
            self.close()
            message = f"{self._path} cannot be written: {error}."
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if code & 0xFF in _PASSES and code not in _FATAL:
                raise DiskFull(message) from error
            raise StorageError(message, remedy=_UNWRITABLE) from error

    def close(self) -> None:
        """Let go of the database."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def release(self) -> None:
        """Let go of the database and of its mark."""
        self.close()
        if self._mark is not None:
            self._mark.close()


def image_of(tables: Mapping[Table, Records]) -> bytes:
    """Return the bytes of a database file that holds these records."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as rows:
        rows.executescript(f"{_SCHEMA}PRAGMA user_version = {STATE_FORMAT};")
        for table, records in tables.items():
            _put(rows, table, records)
        return rows.serialize()


def damaged(path: Path, name: str) -> StorageError:
    """Return the error of a record that is not what was written, or not under its name."""
    return StorageError(
        f"{path} is damaged: its {name!r} is not what was written.", remedy=_DAMAGED
    )


def change_counter(folder: Path) -> bytes | None:
    """Return what changes with every commit, without opening the database; None without one."""
    header = _header(folder / STATE_FILE)
    return header[_CHANGES] if header else None


def check_older(first_line: bytes, name: str) -> None:
    """Refuse a state of the formats before SQLite.

    Args:
        first_line: of the file that it was in.
        name: the file, for errors.

    Raises:
        VersionMismatch: naming both numbers.
    """
    text = first_line.decode(errors="replace").strip()
    number = format_number(text.removeprefix(_OLDER_NAME))
    if text.startswith(_OLDER_NAME) and number is not None:
        check_format(number, STATE_FORMAT, name, anew=_ANEW)


def _header(path: Path) -> bytes:
    """Return the header of a database; empty where there is none."""
    try:
        with path.open("rb") as file:
            found = file.read(_HEADER_BYTES)
    except OSError:
        return b""
    return found if len(found) == _HEADER_BYTES and found.startswith(_MAGIC) else b""


def _select(path: Path, table: Table, mode: str) -> list[tuple[str, bytes, bytes]]:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    with closing(sqlite3.connect(uri, _BUSY_SECONDS, uri=True)) as rows:
        return rows.execute(f"SELECT name, value, sha256 FROM {table}").fetchall()


def _put(rows: sqlite3.Connection, table: Table, records: Records) -> None:
    rows.executemany(
        f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)",
        [(name, value, sha256(value).digest()) for name, value in records.items()],
    )
