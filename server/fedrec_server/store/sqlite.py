"""A coordinator's store: SQLite in WAL mode, with one writer and an fsync at every commit."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from fedrec.durable import FULL, DiskFull, require_writable
from fedrec.errors import SettingsError, StorageError
from fedrec.formats import COORDINATOR, drop_backup, keep_backup
from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId, RoundId
from fedrec.state_folder import FolderLock, Highwater
from fedrec.wire.messages import UploadHeader
from fedrec_server.rounds.changes import Change
from fedrec_server.rounds.state import Rules, State
from fedrec_server.store import reading, writing
from fedrec_server.store.durable_files import (
    FREE_SPACE,
    DurabilityLost,
    Failpoint,
    Spool,
    no_failpoint,
)
from fedrec_server.store.state_folder import (
    REMEDY,
    UNREADABLE,
    check_whole,
    code_of,
    damaged_database,
    lost,
)
from fedrec_server.store.store import (
    Applicant,
    Entry,
    EpochRecord,
    PublishedRecord,
    RunIdentity,
    SnapshotRecord,
    Store,
)
from fedrec_server.store.tables import (
    DATABASE,
    SCHEMA_VERSION,
    Row,
    backup_of,
    convert,
    insert,
    prepare,
    row_of,
    tables,
)

SHARED_BYTES = 64 << 10
"""The space that SQLite needs in addition to the log in its first step."""
BUSY_MILLISECONDS = 5_000

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore(Store):
    """A state folder with `coordinator.sqlite` and the files of the spool.

    Args:
        folder: the state folder, created if it is missing.
        identity: the identity of the run that owns the folder.

    Raises:
        FolderInUse: another process holds the folder.
        SettingsError: the folder belongs to a different run, or is not writable.
        StorageError: the disk is full, or the database is damaged or of a newer version.
    """

    def __init__(
        self,
        folder: Path,
        identity: RunIdentity,
        *,
        reserve_bytes: int = 0,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        require_writable(folder, "coordinator.state", DATABASE)
        self._lock = FolderLock(folder, "coordinator.state")
        self._folder, self._failpoint = folder, failpoint
        self._rows: sqlite3.Connection | None = None
        self._highwater = Highwater(folder, "coordinator.state", REMEDY)
        try:
            self.spool = Spool(folder, reserve_bytes=reserve_bytes, failpoint=failpoint)
            check_whole(folder, self.spool, self._highwater)
            self._rows = _connect(folder / DATABASE)
            self._fence = self._begin(identity)
            self.run = self._meta("run")
        except sqlite3.DatabaseError as error:
            self.close()
            if _is_disk_full(error, folder):
                message = f"There is no space for the database: {error}."
                raise DiskFull(message, remedy=FREE_SPACE) from error
            raise damaged_database(folder, error) from error
        except UNREADABLE as error:
            self.close()
            raise damaged_database(folder, f"rows cannot be read, {error}") from error
        except OSError as error:
            self.close()
            if error.errno not in FULL:
                raise
            message = f"There is no space in coordinator.state: {error.strerror}."
            raise DiskFull(message, remedy=FREE_SPACE) from error
        except BaseException:
            self.close()
            raise

    def load(self, rules: Rules, roster: frozenset[ClientId]) -> State:
        """Return the state after the last committed change.

        Raises:
            DamagedFile: rows are damaged.
        """
        try:
            return reading.load_state(self._connection, rules, roster)
        except (sqlite3.DatabaseError, *UNREADABLE) as error:
            raise damaged_database(self._folder, f"rows cannot be read, {error}") from error

    def commit(self, changes: Sequence[Change], entries: Sequence[Entry]) -> None:
        """Write the changes of one step in one transaction."""
        with self._transaction() as rows:
            for change in changes:
                writing.write_change(rows, change)
            for entry in entries:
                writing.write_entry(rows, entry)

    def settle(self) -> None:
        """Sync the mark and shorten the log, as `Store.settle` describes."""
        drop_backup(self._folder)
        try:
            self._highwater.sync()
        except OSError as error:
            raise _unmarked(error) from error
        try:
            # A separate connection. If it stops short of the newest writes, it blocks neither
            # readers nor the writer, whose connection belongs to the store's thread.
            with closing(sqlite3.connect(self._folder / DATABASE, isolation_level=None)) as rows:
                # A connection that has read nothing yet is unaware of the log.
                rows.execute("PRAGMA user_version").fetchone()
                rows.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            if (failed := lost(error, self._folder)) is not None:
                raise failed from error

    def counted(self, round_id: RoundId, client_id: ClientId) -> UploadHeader | None:
        """Return the counted update of a client in a round that was not abandoned."""
        return self._read(reading.counted, round_id, client_id)

    def counted_by_client(self) -> dict[ClientId, tuple[RoundId, int]]:
        """Return the last published round that counted each client, and its total bytes."""
        return self._read(reading.counted_by_client)

    def latest(self) -> dict[ClientId, tuple[RoundId, bytes]]:
        """Return the round and digest of every client's last acknowledged update."""
        return self._read(reading.latest)

    def latest_header(self, client_id: ClientId) -> UploadHeader | None:
        """Return the header of a client's last acknowledged update, even of an abandoned round."""
        return self._read(reading.latest_header, client_id)

    def keep_latest(self, header: UploadHeader) -> None:
        """Store a member's proof of its last update, unless a later one is stored."""
        with self._transaction() as rows:
            writing.keep_latest(rows, header)

    def former_revealers(self) -> tuple[PublicIdentity, ...]:
        """Return the key authority's earlier revealers."""
        return self._read(writing.former_revealers)

    def note_former(self, revealer: PublicIdentity) -> None:
        """Record permanently that a revealer was replaced."""
        with self._transaction() as rows:
            writing.note_former(rows, revealer)

    def begin_from(self, run: writing.RecoveredRun) -> None:
        """Fill a new folder with the key authority's knowledge of a run.

        Its files are already there.
        """
        with self._transaction() as rows:
            writing.write_recovered(rows, run)
        self.run = run.run
        self.settle()

    def next_published(self, after: RoundId) -> PublishedRecord | None:
        """Return the first round published after `after`."""
        return self._read(reading.next_published, after)

    def published(self, round_id: RoundId) -> PublishedRecord | None:
        """Return a published round."""
        record = self.next_published(RoundId(round_id - 1))
        return record if record is not None and record.round == round_id else None

    def bytes_after(self, after: RoundId) -> int:
        """Return how many bytes of aggregates a client at `after` must fetch."""
        query = "SELECT total(blob_length) FROM rounds WHERE phase = 'published' AND round > ?"
        return int(self._read(reading.number, query, after))

    def forget_sums(self, n_kept: int) -> list[str]:
        """Keep only the sums of the newest rounds, and return the files of the others."""
        last, names = self._read(reading.sums_before, n_kept)
        if not last:
            return []
        with self._transaction() as rows:
            rows.execute("UPDATE rounds SET blob_name = NULL WHERE round <= ?", (last,))
        return names

    def keep_snapshot(self, record: SnapshotRecord) -> SnapshotRecord | None:
        """Replace the snapshot and return the previous one."""
        before = self.snapshot()
        with self._transaction() as rows:
            rows.execute("DELETE FROM snapshots")
            row: Row = {"round": record.round, "epoch": record.epoch}
            row["length"] = record.blob.length
            insert(rows, "snapshots", {**row, "digest": record.blob.digest})
            rows.execute("DELETE FROM attestations")
            for report in record.reports:
                insert(rows, "attestations", row_of(report))
        return before

    def snapshot(self) -> SnapshotRecord | None:
        """Return the snapshot, if there is one."""
        return self._read(reading.snapshot)

    def keep_epoch(self, record: EpochRecord, entries: Sequence[Entry]) -> EpochRecord | None:
        """Replace the newest epoch and return the previous one."""
        before = self.installed_epoch()
        with self._transaction() as rows:
            rows.execute("DELETE FROM epochs")
            row: Row = {"epoch": record.epoch, "length": record.blob.length}
            insert(rows, "epochs", {**row, "digest": record.blob.digest})
            rows.execute("UPDATE meta SET value = ? WHERE name = 'epoch'", (str(record.epoch),))
            for entry in entries:
                writing.write_entry(rows, entry)
        return before

    def installed_epoch(self) -> EpochRecord | None:
        """Return the newest stored epoch, if there is one."""
        return self._read(reading.installed_epoch)

    def keep_applicant(self, applicant: Applicant) -> None:
        """Store an application, replacing the previous one with this invitation."""
        with self._transaction() as rows:
            row: Row = {name: getattr(applicant, name) for name in Applicant.__slots__}
            insert(rows, "applicants", row, verb="REPLACE")

    def applicants(self) -> list[Applicant]:
        """Return all applicants, in the order of their ids."""
        return self._read(reading.applicants)

    def entries(self, after: int, limit: int) -> list[Entry]:
        """Return journal entries in order."""
        return self._read(reading.entries, after, limit)

    def last_entry(self) -> int:
        """Return the sequence number of the last journal entry."""
        return self._read(reading.number, "SELECT max(sequence) FROM journal")

    def sweep(self) -> int:
        """Delete files that no row names, once all kept files match their rows.

        Raises:
            DamagedFile: a kept file does not match its row. Nothing was deleted.
        """
        for name, blob in self._read(lambda rows: list(reading.kept_files(rows))):
            self.spool.check(name, blob)
        return self.spool.sweep(*self._read(reading.named_files))

    def close(self) -> None:
        """Close the database and release the folder."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None
        self._highwater.close()
        self._lock.release()

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._rows is None:
            raise StorageError("The store is closed.")
        return self._rows

    def _read(
        self,
        reader: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a query and return its rows.

        Raises:
            DurabilityLost: the database is damaged. The next start tells how to recover.
            DamagedFile: a row does not match its checksum.
            StorageError: the database cannot be read now.
        """
        try:
            return reader(self._connection, *args, **kwargs)
        except UNREADABLE as error:
            raise damaged_database(self._folder, error) from error
        except sqlite3.DatabaseError as error:
            if (failed := lost(error, self._folder)) is not None:
                raise failed from error
            if not hasattr(error, "sqlite_errorcode"):
                # Invalid UTF-8 is an error from Python, not from SQLite.
                raise damaged_database(self._folder, error) from error
            raise StorageError(
                f"The database cannot be read: {error}.", remedy="Check the disk."
            ) from error

    @contextmanager
    def _transaction(self, *, fenced: bool = True) -> Iterator[sqlite3.Connection]:
        rows = self._connection
        try:
            self._failpoint("rows.begin")
            rows.execute("BEGIN IMMEDIATE")
            if fenced and self._meta("fence") != str(self._fence):
                raise DurabilityLost(
                    "Another coordinator took over the state folder. Stop one of the two."
                )
            yield rows
            self._commits = int(self._meta("commits")) + 1
            query = "UPDATE meta SET value = ? WHERE name = 'commits'"
            rows.execute(query, (str(self._commits),))
            self._failpoint("rows.commit")
            rows.execute("COMMIT")
            self._failpoint("rows.committed")
            self._mark()
        except sqlite3.Error as error:
            _roll_back(rows)
            if (failed := lost(error, self._folder)) is not None:
                raise failed from error
            message = f"The database rejected the change: {error}."
            if code_of(error) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise DiskFull(message, remedy=FREE_SPACE) from error
            raise StorageError(message, remedy="Check the disk.") from error
        except BaseException:
            _roll_back(rows)
            raise

    def _mark(self) -> None:
        """Write the database's progress to the mark."""
        try:
            self._highwater.note(self._commits)
        except OSError as error:
            raise _unmarked(error) from error

    def _begin(self, identity: RunIdentity) -> int:
        """Create or check the tables, and fence off an earlier coordinator."""
        rows = self._connection
        version = int(rows.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise StorageError(
                f"The database has schema {version}, this fedrec reads {SCHEMA_VERSION}.",
                remedy="Install the fedrec version that wrote it, or a later one.",
            )
        is_former = version in COORDINATOR.former
        if version not in (0, SCHEMA_VERSION) and not is_former:
            raise StorageError(
                f"The database has schema {version}, this fedrec reads {SCHEMA_VERSION}.",
                remedy="Finish the run with the fedrec version that began it, or choose another "
                "coordinator.state for a new run.",
            )
        if is_former:
            keep_backup(self._folder, backup_of(rows))
        with self._transaction(fenced=False):
            if version == 0:
                _create(rows, identity)
            elif is_former:
                convert(rows, version)
            fence = int(self._meta("fence")) + 1
            rows.execute("UPDATE meta SET value = ? WHERE name = 'fence'", (str(fence),))
            self._check_identity(identity)
        return fence

    def _check_identity(self, identity: RunIdentity) -> None:
        problems = [
            f"{name}: the folder has {self._meta(name)[:16]}, the settings {wanted[:16]}"
            for name, wanted in (
                ("federation", identity.federation),
                ("plan_fingerprint", identity.plan_fingerprint),
                ("catalogue_fingerprint", identity.catalogue_fingerprint),
            )
            if self._meta(name) != wanted
        ]
        installed = self.installed_epoch()
        epoch = max(identity.epoch, 0 if installed is None else installed.epoch)
        if epoch < int(self._meta("epoch")):
            problems.append(f"epoch {epoch} is older than {self._meta('epoch')}")
        if problems:
            raise SettingsError(
                f"coordinator.state belongs to a different run ({'; '.join(problems)}).",
                remedy="Choose another folder for a new run, or restore the old settings. If you "
                "changed none, start the fedrec release that began the run, because "
                "another one trains differently.",
                problems=tuple(problems),
            )
        # A newer epoch than the installed one may still be from another authority.
        if installed is None:
            update = "UPDATE meta SET value = ? WHERE name = 'epoch'"
            self._connection.execute(update, (str(epoch),))

    def _meta(self, name: str) -> str:
        return self._read(reading.meta_value, name)


def _unmarked(error: OSError) -> DurabilityLost:
    return DurabilityLost(f"The high-water mark cannot be written: {error}.")


def _is_disk_full(error: sqlite3.DatabaseError, folder: Path) -> bool:
    """Return whether the disk was full, which SQLite may report as an I/O error."""
    if code_of(error) == sqlite3.SQLITE_FULL:
        return True
    failed = code_of(error) & 0xFF == sqlite3.SQLITE_IOERR
    return failed and shutil.disk_usage(folder).free < SHARED_BYTES


def _connect(path: Path) -> sqlite3.Connection:
    # SQLite gives its journal files the mode of the database.
    path.touch(mode=0o600, exist_ok=True)
    rows = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    prepare(rows)
    rows.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    rows.execute("PRAGMA journal_mode = WAL")
    rows.execute("PRAGMA synchronous = FULL")
    # Shares of seeds and keys must not outlive their round in free pages.
    rows.execute("PRAGMA secure_delete = ON")
    return rows


def _create(rows: sqlite3.Connection, identity: RunIdentity) -> None:
    for statement in tables().values():
        rows.execute(statement)
    for name, value in (
        ("run", secrets.token_hex(8)),
        ("fence", "0"),
        ("federation", identity.federation),
        ("plan_fingerprint", identity.plan_fingerprint),
        ("catalogue_fingerprint", identity.catalogue_fingerprint),
        ("epoch", str(identity.epoch)),
        ("stop_asked", "0"),
        ("ended", ""),
        ("resumed_after", "0"),
        ("commits", "0"),
    ):
        insert(rows, "meta", {"name": name, "value": value})
    rows.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _roll_back(rows: sqlite3.Connection) -> None:
    if rows.in_transaction:
        rows.execute("ROLLBACK")
