"""The client's folder: private vectors, the shared model, the update in progress, what was opened.

Data files are written first, under names that follow from their content; then the database names
them, in one transaction. That is the only commit, so whatever moment the process dies at, the
folder holds the state before or the state after, never a mixture.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from fedrec.errors import RefusedError, StorageError
from fedrec.folder_lock import FolderLock
from fedrec.follower.database import STATE_FILE, StateDatabase, damaged
from fedrec.follower.files import (
    Content,
    FileRef,
    checked_path,
    make_private_folder,
    read_checked,
    write_blob,
)
from fedrec.follower.run_binding import bound
from fedrec.follower.stored_state import (
    BestModel,
    RunPin,
    SentUpdate,
    StagedRound,
    SteppedRound,
    StoredState,
)
from fedrec.ids import RoundId
from fedrec.model.block_folder import BlockFolder
from fedrec.model.state import PrivateState
from fedrec.model.tables import BLOCKS, names_in, read_manifest
from fedrec.provenance import Provenance
from fedrec.wire.messages import RevealStatement, UploadHeader

_CATALOGUE = "catalogue.csv"
OWN_RECORDS = {"roster", "selection_secret"}
"""Names of records that outlive runs."""


class PrivateStore:
    """One run's durable state in a folder that belongs to one process.

    Args:
        folder: created with mode 0700 where it is missing.
        read_only: take no lock and change nothing, to look beside a running client.
        setting: what names the folder, for errors.

    Raises:
        FolderInUse: another process uses the folder.
        StorageError: its state is damaged.
        VersionMismatch: its state has another format; nothing was touched.
    """

    def __init__(
        self, folder: Path, *, read_only: bool = False, setting: str = "client.state"
    ) -> None:
        self.folder = folder
        self._lock: FolderLock | None = None
        self._blocks = BlockFolder.at(folder / BLOCKS)
        self._database = StateDatabase(folder)
        if not read_only:
            make_private_folder(folder)
            self._lock = FolderLock(folder, setting)
        try:
            if not read_only:
                self._database.claim(f"{setting} '{folder.absolute()}'")
            # Before the database is read: there are none until it says whose they are.
            files = sorted(path.name for path in folder.glob("*.bin"))
            self._own = self._database.read("client")
            self._check_own()
            self._records = self._database.read("run")
            name = str(folder / STATE_FILE)
            self._state = StoredState.from_records(self._records, name) if self._records else None
            if self._state is None and files:
                raise _lost(folder, files)
            if not read_only:
                self._check_files(files)
                self._check_lists()
                self._collect_garbage()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PrivateStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._blocks.close()
            self._database.release()
            self._lock.release()
            self._lock = None

    @property
    def is_bound(self) -> bool:
        """Whether the folder belongs to a run already."""
        return self._state is not None

    @property
    def state(self) -> StoredState:
        """The state as last committed.

        Raises:
            StorageError: the folder belongs to no run yet.
        """
        if self._state is None:
            raise StorageError(
                f"{self.folder} holds no run yet.", remedy="Run `fedrec client run` first."
            )
        return self._state

    @property
    def catalogue_path(self) -> Path:
        """Where the federation's public catalogue is kept."""
        return self.folder / _CATALOGUE

    def bind(
        self,
        pin: RunPin,
        epoch: int,
        *,
        new_run: bool = False,
        provenance: Provenance | None = None,
    ) -> None:
        """Tie the folder to a run, or check that it is tied to this one.

        Args:
            pin: what must be equal for as long as the folder serves the run.
            epoch: the epoch that was opened; never lower than before.
            new_run: leave the present run for the coordinator's, and forget its models.
            provenance: what trains a run that begins here; see `go_on` for one that does not.

        Raises:
            PlanMismatch: the folder belongs to another run, plan, catalogue or set of users.
            CoordinatorWentBack: the epoch is lower than before.
        """
        state = bound(
            self._state, pin, epoch, new_run=new_run, provenance=provenance, folder=self.folder
        )
        if state is not self._state:
            self._commit(state)

    def go_on(self, present: Provenance, *, accepted: bool, now: float) -> None:
        """Check that what trains is what trained the run so far, or write down that it changed.

        Before the first answer there is nothing whose bits could differ.

        Args:
            accepted: whether somebody accepted another path or arithmetic.
            now: unix seconds.

        Raises:
            RefusedError: it differs, and nobody accepted that, or another release made it.
        """
        found = self.state.provenance
        if found is None or self.state.answered_round == 0:
            kept = present
        elif found.is_of_another_release(present):
            # Headers name what trains a plan on processors: each further update would be refused.
            raise RefusedError(
                f"The run in {self.folder} began under {found.path}; this release of fedrec has "
                f"{present.path}. Releases that train otherwise can't share a run. "
                "Nothing was changed.",
                remedy="End the run with the release that began it. Upgrade all parties before "
                "the next run.",
            )
        else:
            kept = found.continued(
                present,
                what=f"The state folder {self.folder}",
                round_id=self.state.answered_round,
                now=now,
                accepted=accepted,
            )
        if kept != found:
            self.change(provenance=kept)

    def read(self, ref: FileRef) -> bytes:
        """Return the content of one of the state's files, checked."""
        return read_checked(self.folder, ref)

    def read_private(self, ref: FileRef) -> PrivateState:
        """Return a private state, of which nothing is read as yet but to check it."""
        return PrivateState.open(checked_path(self.folder, ref), self._blocks)

    def stage(
        self,
        header: UploadHeader,
        update: bytes,
        private: Content,
        *,
        spent: bytes | None = None,
    ) -> None:
        """Keep an update and the private state that follows from it, before anything is sent.

        Args:
            spent: what users' privacy has cost with this update; it is charged in the same
                commit, and never taken back, even if the round is abandoned.

        Raises:
            StorageError: there was an update of this or a later round already.
        """
        if self.state.answered_round >= header.round:
            raise StorageError(
                f"Round {self.state.answered_round} was answered; an update of round "
                f"{header.round} would be a second answer.",
                remedy="This is a defect of fedrec; please report it.",
            )
        charged = self.state.spent if spent is None else write_blob(self.folder, "spent", spent)
        self.change(
            answered_round=header.round,
            spent=charged,
            unacknowledged=(*self.state.unacknowledged, _sent(header)),
            staged=StagedRound(
                header=header,
                update=write_blob(self.folder, "update", update),
                private=write_blob(self.folder, "private", private),
            ),
        )

    @property
    def in_progress(self) -> RoundId | None:
        """The round that this client answered and whose end it does not know, or None."""
        staged, masking = self.state.staged, self.state.masking
        if masking is not None:
            return masking.round
        return None if staged is None else staged.header.round

    def keep_file(self, kind: str, content: Content) -> FileRef:
        """Write a file that the next commit names; without one it is swept."""
        return write_blob(self.folder, kind, content)

    def keep_counted(self, content: bytes) -> None:
        """Keep for good what this client is about to send of its users' data."""
        self.change(counted=self.keep_file("counted", content))

    def keep_masking(
        self,
        masking: SteppedRound,
        staged: StagedRound | None = None,
        *,
        spent: FileRef | None = None,
    ) -> None:
        """Keep a step of a round under masks, its message with it, before anything is sent.

        Args:
            masking: the round after the step.
            staged: the masked vector, in the step that makes it.
            spent: what users' privacy has cost with that vector: charged in the same commit, and
                never taken back. Before that step nothing about users has left the client.

        Raises:
            StorageError: the round is new, and this or a later one was answered already.
        """
        before = self.state.masking
        begins = before is None or before.round != masking.round
        if begins and self.state.answered_round >= masking.round:
            raise StorageError(
                f"Round {self.state.answered_round} was answered; keys for round "
                f"{masking.round} would be a second answer.",
                remedy="This is a defect of fedrec; please report it.",
            )
        sent = () if staged is None else (_sent(staged.header),)
        self.change(
            masking=masking,
            answered_round=max(self.state.answered_round, masking.round),
            staged=staged or self.state.staged,
            unacknowledged=(*self.state.unacknowledged, *sent),
            spent=spent or self.state.spent,
        )

    def mark_staged(self, *, acknowledged: bool = False, closed: bool = False) -> None:
        """Note what the coordinator answered to the staged update."""
        staged = self.state.staged
        if staged is None or (staged.acknowledged >= acknowledged and staged.closed >= closed):
            return
        known = _known(self.state, staged.header) if acknowledged else {}
        self.change(
            staged=staged.model_copy(
                update={
                    "acknowledged": staged.acknowledged or acknowledged,
                    "closed": staged.closed or closed,
                }
            ),
            **known,
        )

    def acknowledge(self, header: UploadHeader) -> None:
        """Note that the coordinator holds an update, whose receipt may have been lost."""
        self.change(**_known(self.state, header))

    def take_back(self, latest: UploadHeader | None) -> None:
        """Note that the coordinator lost updates after `latest`, whose rounds are not published."""
        state = self.state
        before = () if state.acknowledged is None else (state.acknowledged,)
        staged = state.staged
        if staged is not None:
            staged = staged.model_copy(update={"acknowledged": False, "closed": False})
        self.change(
            acknowledged=None if latest is None else _sent(latest),
            acknowledged_header=latest,
            unacknowledged=(*before, *state.unacknowledged),
            staged=staged,
        )

    def roll_back(self) -> None:
        """Forget the staged round: the committed private state is the present one."""
        if self.state.staged is not None or self.state.masking is not None:
            self.change(staged=None, masking=None)

    def publish(
        self,
        round_id: RoundId,
        shared: Content,
        *,
        metrics: bytes,
        counted: bool,
        best: BestModel | None = None,
        statement: RevealStatement | None = None,
    ) -> None:
        """Move to a published round, and commit or drop the staged private state with it.

        Args:
            round_id: the round, above the present version.
            shared: the model after the round.
            metrics: what the round measured, little-endian int64.
            counted: whether the staged update is among them.
            best: replaces the best model where given.
            statement: the key authority's word on the round, where there is one.
        """
        state = self.state
        staged = state.staged
        # A published list names it: the coordinator holds it, whether its receipt came or not.
        known = _known(state, staged.header) if counted and staged is not None else {}
        private = staged.private if counted and staged is not None else state.private
        waiting = staged if staged is not None and staged.header.round > round_id else None
        if waiting is not None:
            private = state.private
        masking = state.masking
        if masking is not None and masking.round <= round_id:
            # Shares of others and keys serve one round.
            masking = None
        self.change(
            version=round_id,
            shared=write_blob(self.folder, "shared", shared),
            private=private,
            staged=waiting,
            masking=masking,
            best=best or state.best,
            is_of_epoch=True,
            metrics=metrics,
            statement=statement or state.statement,
            revealed=tuple(entry for entry in state.revealed if entry.round > round_id),
            **known,
        )

    def adopt(
        self, round_id: RoundId, shared: Content, *, statement: RevealStatement | None = None
    ) -> None:
        """Move to a later round by a snapshot; the committed private state stays."""
        self.change(
            version=round_id,
            shared=write_blob(self.folder, "shared", shared),
            staged=None,
            masking=None,
            is_of_epoch=True,
            metrics=b"",
            statement=statement or self.state.statement,
            revealed=tuple(entry for entry in self.state.revealed if entry.round > round_id),
        )

    def own(self, name: str) -> bytes | None:
        """Return a record that outlives runs, or None."""
        return self._own.get(name)

    def keep_own(self, name: str, record: bytes) -> None:
        """Keep a record that outlives runs."""
        self._database.write("client", {name: record})
        self._own[name] = record

    def change(self, **changes: Any) -> None:
        """Commit other values of some of the state's fields."""
        self._commit(self.state.model_copy(update=changes))

    def _commit(self, state: StoredState) -> None:
        records = state.records()
        before = self._records
        changed = {name: one for name, one in records.items() if before.get(name) != one}
        self._database.write("run", changed)
        self._records, self._state = records, state
        self._collect_garbage()

    def _check_own(self) -> None:
        """Refuse a record under another name: those of a run are compared with its fields."""
        for name in self._own.keys() - OWN_RECORDS:
            raise damaged(self.folder / STATE_FILE, name)

    def _check_files(self, there: list[str]) -> None:
        """Refuse a folder that lacks files of its state, before others are deleted.

        Raises:
            StorageError: naming one.
        """
        lacking = set() if self._state is None else self._state.files().difference(there)
        if lacking:
            raise StorageError(
                f"{self.folder / min(lacking)} is missing, which {STATE_FILE} names.",
                remedy="Nothing was changed or deleted. Bring the newest folder back as a whole.",
            )

    def _check_lists(self) -> None:
        """Refuse a folder whose lists of private tables are damaged, before a table is deleted.

        Raises:
            StorageError: naming the list.
        """
        if self._state is not None and any((self.folder / BLOCKS).glob("*.bin")):
            for ref in self._state.private_files():
                checked_path(self.folder, ref)

    def _collect_garbage(self) -> None:
        needed = set() if self._state is None else self._state.files()
        blocks: set[str] = set()
        for ref in () if self._state is None else self._state.private_files():
            blocks |= names_in(read_manifest(self.folder / ref.name) or {})
        for pattern in ("*.bin", ".*.new"):
            for path in self.folder.glob(pattern):
                if path.name not in needed:
                    path.unlink(missing_ok=True)
        self._blocks.keep(blocks)


def _lost(folder: Path, files: list[str]) -> StorageError:
    """Return the error of a folder whose files belong to a run that its database does not know."""
    return StorageError(
        f"{folder / STATE_FILE} is missing, or knows of no run, and {len(files)} files of one are "
        f"there, as {files[0]}.",
        remedy="Nothing was changed or deleted. Bring the whole folder back from a backup; or "
        "start with a new state folder, which does not know what users' privacy has cost.",
    )


def _sent(header: UploadHeader) -> SentUpdate:
    return SentUpdate(round=header.round, digest=header.digest)


def _known(state: StoredState, header: UploadHeader) -> dict[str, Any]:
    """Return what changes where the coordinator is known to hold an update."""
    found = _sent(header)
    before = state.acknowledged
    later = tuple(sent for sent in state.unacknowledged if sent.round > found.round)
    if before is not None and before.round >= found.round:
        return {}
    return {"acknowledged": found, "acknowledged_header": header, "unacknowledged": later}
