"""Store a follower's folder: the shared model's files, and one database with the other records.

Data files are written first, under names that follow from their content. One database transaction
then records the names. That is the only commit. If the process dies at any moment, the folder has
either the state before it or the state after it, never a mixture.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, cast

from fedrec.errors import StorageError
from fedrec.follower.database import ANEW, STATE_FILE, StateDatabase, damaged
from fedrec.follower.stored_state import (
    Content,
    FileRef,
    RunPin,
    StateT,
    StoredState,
    make_private_folder,
    read_checked,
    write_blob,
)
from fedrec.formats import drop_backup
from fedrec.ids import RoundId
from fedrec.state_folder import FolderLock
from fedrec.wire.messages import RevealStatement

_CATALOGUE = "catalogue.csv"
OWN_RECORDS = {"roster", "selection_secret"}
"""Names of the records that outlive runs."""


class FollowerStore(Generic[StateT]):
    """Keep one run's durable state in a folder that belongs to one process.

    Args:
        folder: the folder, created with mode 0700 if it is missing.
        read_only: take no lock and change nothing, to read while a process runs.
        setting: the setting that names the folder, for errors.

    Raises:
        FolderInUse: another process uses the folder.
        StorageError: its state is damaged.
        VersionMismatch: its state has a different format. Nothing was changed.
    """

    state_type: type[StateT]
    """The kind of party that the folder belongs to. Each kind of store has its own name."""

    def __init__(
        self, folder: Path, *, read_only: bool = False, setting: str = "client.state"
    ) -> None:
        self.folder = folder
        self._lock: FolderLock | None = None
        self._database = StateDatabase(folder)
        if not read_only:
            make_private_folder(folder)
            self._lock = FolderLock(folder, setting)
        try:
            if read_only:
                self._database.refuse_former()
            else:
                self._database.convert()
                self._database.claim(f"{setting} '{folder.absolute()}'")
            # Set before the database is read: the first read fills it.
            files = sorted(path.name for path in folder.glob("*.bin"))
            self._own = self._database.read("client")
            self._check_own()
            self._records = self._database.read("run")
            name = str(folder / STATE_FILE)
            self._state = (
                self.state_type.from_records(self._records, name) if self._records else None
            )
            if self._state is None and files:
                raise _lost(folder, files)
            if not read_only:
                self._check_files(files)
                self._collect_garbage()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and release the folder."""
        if self._lock is not None:
            self._database.release()
            self._lock.release()
            self._lock = None

    @property
    def is_bound(self) -> bool:
        """Whether the folder already belongs to a run."""
        return self._state is not None

    @property
    def state(self) -> StateT:
        """The last committed state.

        Raises:
            StorageError: the folder belongs to no run yet.
        """
        if self._state is None:
            raise StorageError(
                f"{self.folder} contains no run yet.", remedy="Run `fedrec client run` first."
            )
        return self._state

    @property
    def catalogue_path(self) -> Path:
        """The file of the federation's public catalogue."""
        return self.folder / _CATALOGUE

    def bind(self, pin: RunPin, epoch: int, *, new_run: bool = False, **known: Any) -> None:
        """Bind the folder to a run, or check that it is bound to this one.

        Args:
            pin: the values that must not change while the folder serves the run.
            epoch: the opened epoch, never lower than before.
            new_run: leave the present run for the coordinator's run, and delete its models.
            known: further fields of the state of a new run.

        Raises:
            PlanMismatch: the folder belongs to a different run, plan, catalogue or set of users.
            CoordinatorWentBack: the epoch is lower than before.
        """
        first = self.state_type(pin=pin, epoch=epoch, **known)
        before, state = self._state, first
        if before is not None:
            state = before.bound(first, new_run=new_run, folder=self.folder)
        if state is not before:
            self._commit(state)

    def read(self, ref: FileRef) -> bytes:
        """Return the content of one of the state's files after checking it."""
        return read_checked(self.folder, ref)

    def keep_file(self, kind: str, content: Content) -> FileRef:
        """Write a file for the next commit. Without that commit, the file is deleted."""
        return write_blob(self.folder, kind, content)

    def publish(
        self,
        round_id: RoundId,
        shared: Content,
        *,
        metrics: bytes,
        statement: RevealStatement | None = None,
    ) -> None:
        """Move to a published round.

        Args:
            round_id: the round, above the present version.
            shared: the model after the round.
            metrics: the round's metrics, as little-endian int64.
            statement: the key authority's statement on the round, if there is one.
        """
        self._move(round_id, shared, metrics, statement)

    def adopt(
        self, round_id: RoundId, shared: Content, *, statement: RevealStatement | None = None
    ) -> None:
        """Move to a later round with a snapshot."""
        self._move(round_id, shared, b"", statement)

    def _move(
        self,
        round_id: RoundId,
        shared: Content,
        metrics: bytes,
        statement: RevealStatement | None,
        **changes: Any,
    ) -> None:
        """Commit a later version of the model, and the fields that change with it."""
        self.change(
            version=round_id,
            shared=write_blob(self.folder, "shared", shared),
            is_of_epoch=True,
            metrics=metrics,
            statement=statement or self.state.statement,
            **changes,
        )
        drop_backup(self.folder)

    def own(self, name: str) -> bytes | None:
        """Return a record that outlives runs, or None if there is none."""
        return self._own.get(name)

    def keep_own(self, name: str, record: bytes) -> None:
        """Commit a record that outlives runs."""
        self._database.write("client", {name: record})
        self._own[name] = record

    def change(self, **changes: Any) -> None:
        """Commit new values for some of the state's fields."""
        self._commit(self.state.model_copy(update=changes))

    def _commit(self, state: StoredState) -> None:
        records = state.records()
        before = self._records
        changed = {name: one for name, one in records.items() if before.get(name) != one}
        self._database.write("run", changed)
        self._records, self._state = records, cast(StateT, state)
        self._collect_garbage()

    def _check_own(self) -> None:
        """Refuse a record under the wrong name. Records of a run are compared with its fields."""
        for name in self._own.keys() - OWN_RECORDS:
            raise damaged(self.folder / STATE_FILE, name)

    def _check_files(self, there: list[str]) -> None:
        """Refuse a folder that lacks files of its state, before other files are deleted.

        Raises:
            StorageError: a file is missing. The error names it.
        """
        lacking = set() if self._state is None else self._state.files().difference(there)
        if lacking:
            raise StorageError(
                f"{self.folder / min(lacking)} is missing, but {STATE_FILE} refers to it.",
                remedy="Nothing was changed or deleted. Restore the newest copy of the whole "
                "folder.",
            )

    def _collect_garbage(self) -> None:
        needed = set() if self._state is None else self._state.files()
        for pattern in ("*.bin", ".*.new"):
            for path in self.folder.glob(pattern):
                if path.name not in needed:
                    path.unlink(missing_ok=True)


def _lost(folder: Path, files: list[str]) -> StorageError:
    """Return the error for a folder with a run's files whose database has no such run."""
    return StorageError(
        f"{folder / STATE_FILE} is missing or records no run, but {len(files)} files of one exist, "
        f"such as {files[0]}.",
        remedy="Nothing was changed or deleted. Restore the whole folder from a backup. Or "
        f"{ANEW}.",
    )
