"""A state folder's records of its run, committed in one transaction, and the files they name.

The states of a client and of the key authority have further records. This module checks which run a
folder serves. The first use binds the folder to a run, and the folder leaves the run on request.
Files are named by their content, and are checked when they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedrec.data import UserSplit
from fedrec.durable import begin_writing_back, make_private, replacing, unwritten
from fedrec.errors import CoordinatorWentBack, PlanMismatch, StorageError
from fedrec.follower.database import ANEW, DAMAGED, Records
from fedrec.ids import RoundId, digest
from fedrec.wire.messages import RevealStatement

Content = bytes | Iterable[bytes]
"""The content of a file, as a whole or in parts."""

_PART_BYTES = 1 << 20

_UNWRITABLE = "Check that the folder is writable. Then start again."


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """The name of a file in the state folder and the digest of its content.

    Attributes:
        sha256: the hexadecimal digest of the content.
    """

    name: str
    length: int
    sha256: str


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner can open, or restrict an existing one."""
    try:
        make_private(folder)
        folder.chmod(0o700)
    except OSError as error:
        raise unwritten(folder, error, _UNWRITABLE) from error


def write_blob(folder: Path, kind: str, data: Content) -> FileRef:
    """Write `data` under a name that follows from its content, and return its reference.

    Raises:
        DiskFull: the disk is full. Existing files are intact.
        SettingsError: the folder isn't writable.
        StorageError: the file can't be written for another reason.
    """
    hashed, length = hashlib.sha256(), 0
    parts: Iterable[bytes | memoryview] = () if isinstance(data, bytes) else data
    if isinstance(data, bytes):
        whole = memoryview(data)
        parts = (whole[at : at + _PART_BYTES] for at in range(0, len(whole), _PART_BYTES))

    def name() -> str:
        return f"{kind}-{hashed.hexdigest()[:32]}.bin"

    try:
        with replacing(folder / kind, private=True, named=name) as file:
            for part in parts:
                file.write(part)
                # While the disk writes earlier parts, the rest is hashed.
                begin_writing_back(file.fileno(), length, len(part))
                hashed.update(part)
                length += len(part)
    except OSError as error:
        raise unwritten(folder / kind, error, _UNWRITABLE) from error
    return FileRef(name=name(), length=length, sha256=hashed.hexdigest())


def read_checked(folder: Path, ref: FileRef) -> bytes:
    """Return a file's content.

    Raises:
        StorageError: the file is missing, or its content changed.
    """
    path = folder / ref.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.", remedy=DAMAGED) from error
    _check_content(path, ref, len(data), hashlib.sha256(data).hexdigest())
    return data


def checked_path(folder: Path, ref: FileRef) -> Path:
    """Return the path of a file after checking its content without loading it into memory.

    Raises:
        StorageError: the file is missing, or its content changed.
    """
    path = folder / ref.name
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            length = file.tell()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.", remedy=DAMAGED) from error
    _check_content(path, ref, length, found)
    return path


def _check_content(path: Path, ref: FileRef, length: int, found: str) -> None:
    if length != ref.length or found != ref.sha256:
        raise StorageError(
            f"{path} is damaged: it has {length} bytes with SHA-256 {found}, but {ref.length} "
            f"bytes with {ref.sha256} were expected.",
            remedy=DAMAGED,
        )


_OTHERS = {
    *("provenance", "private", "staged", "best", "answered_round", "acknowledged"),
    *("unacknowledged", "acknowledged_header", "masking", "spent", "counted"),
    *("head", "opened", "revealed", "refused_sums", "paused", "cell_counts"),
}
"""Records of a client or of the key authority. Earlier releases wrote all of them in both folders.
"""
_EMPTY = {b"null", b"[]", b"0"}


def users_digest(users: UserSplit) -> str:
    """Return the digest that binds stored private vectors to their users."""
    return digest("fedrec client users v1", *users.user_ids).hex()


class Record(BaseModel):
    """A value that is stored as JSON, with bytes in hexadecimal."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex"
    )


class RunPin(Record):
    """The values that must never change while a state folder serves a run.

    Attributes:
        run: the run's id, which the coordinator drew.
        plan_json: the plan's canonical JSON.
        users: the hexadecimal digest of the users with private state, in their order.
    """

    federation: str
    run: str
    plan_json: str
    catalogue_fingerprint: str
    users: str


class StoredState(Record):
    """The state of one run that every follower keeps. Each commit replaces the one before.

    Attributes:
        version: the last published round in `shared`.
        shared: the shared model, or None at version 0, which follows from the plan.
        is_of_epoch: whether round `version` was read in the present epoch. If so, later ones can be
            read too.
        metrics: the metrics of round `version`, as little-endian int64. Empty at version 0 and
            after a snapshot.
        statement: the key authority's last known statement on a published round, as evidence that
            it was published.
        left_runs: earlier runs of this folder, to which it doesn't return.
    """

    pin: RunPin
    epoch: int
    version: RoundId = RoundId(0)
    shared: FileRef | None = None
    is_of_epoch: bool = False
    metrics: bytes = b""
    statement: RevealStatement | None = None
    left_runs: tuple[str, ...] = ()

    def files(self) -> set[str]:
        """Return the names of all files that this state needs, in any record."""
        found: set[str] = set()
        within: list[object] = [self]
        while within:
            match within.pop():
                case FileRef(name=name):
                    found.add(name)
                case Record() as record:
                    within += vars(record).values()
                case tuple() as several:
                    within += several
        return found

    def bound(self, first: Self, *, new_run: bool, folder: Path) -> Self:
        """Return the state for serving a run, unchanged if the folder already serves it.

        Args:
            first: the first state of the run, in the opened epoch.
            new_run: leave the present run for the coordinator's run, and delete its models.
            folder: the folder, for errors.

        Raises:
            PlanMismatch: the folder belongs to a different run, plan, catalogue or set of users.
            CoordinatorWentBack: the epoch is lower than before.
        """
        pin, epoch = first.pin, first.epoch
        if self.pin.run != pin.run:
            _check_leaving(self, pin, epoch, new_run=new_run, folder=folder)
            return self.left_for(first)
        changed = [
            name for name in RunPin.model_fields if getattr(self.pin, name) != getattr(pin, name)
        ]
        if changed:
            raise PlanMismatch(
                f"{folder} does not match run {pin.run}: {' and '.join(changed)} changed.",
                remedy="Check client.state (--state) and data.path (--data), and restore the data "
                "file's users, the catalogue or the plan. If the change is intended, it takes "
                "effect in the next run: once the coordinator has one, start with --new-run in "
                "this folder, which keeps what was sent about users.",
            )
        if epoch < self.epoch:
            raise epoch_went_back(self.epoch, epoch)
        return self if epoch == self.epoch else self.in_epoch(epoch)

    def in_epoch(self, epoch: int) -> Self:
        """Return the state of the same run at the start of a later key epoch."""
        return self.model_copy(update={"epoch": epoch, "is_of_epoch": False})

    def left_for(self, first: Self) -> Self:
        """Return the first state of another run, with the records that outlive this one.

        Args:
            first: the first state of the other run.
        """
        return first.model_copy(update={"left_runs": (*self.left_runs, self.pin.run)})

    def records(self) -> dict[str, bytes]:
        """Return the fields by name, each encoded as JSON."""
        fields = self.model_dump(mode="json")
        return {name: json.dumps(value).encode() for name, value in fields.items()}

    @classmethod
    def from_records(cls, records: Records, name: str) -> Self:
        """Read the fields that `records` returned.

        Args:
            name: the file's name, for errors.

        Raises:
            StorageError: the records don't form a state.
        """
        others = _OTHERS.difference(cls.model_fields)
        members = [
            json.dumps(field).encode() + b":" + value
            for field, value in records.items()
            if field not in others or value not in _EMPTY
        ]
        try:
            return cls.model_validate_json(b"{" + b",".join(members) + b"}")
        except ValidationError as error:
            first = error.errors()[0]
            raise StorageError(
                f"{name} isn't a valid state: {first['loc']}: {first['msg']}.",
                remedy=DAMAGED,
            ) from None


def epoch_went_back(known: int, served: int) -> CoordinatorWentBack:
    """Return the error for a coordinator whose key epoch is older than this client's epoch."""
    return CoordinatorWentBack(
        f"The coordinator went back from key epoch {known} to {served}. This client waits and "
        "keeps what it has."
    )


def _check_leaving(
    stored: StoredState, pin: RunPin, epoch: int, *, new_run: bool, folder: Path
) -> None:
    """Refuse to leave a run unasked, to return to an earlier run, or to go to an older epoch."""
    if pin.run in stored.left_runs:
        raise PlanMismatch(
            f"{folder} took part in run {pin.run} before and left it.",
            remedy="Connect to the coordinator of the new run, or ask its operator for another "
            f"one. Or {ANEW}.",
        )
    if epoch < stored.epoch:
        raise PlanMismatch(
            f"The coordinator's run is in key epoch {epoch}, but this client has seen "
            f"{stored.epoch}. Members may have been revoked since.",
            remedy="Ask the operator to install the newest epoch.",
        )
    if not new_run:
        raise PlanMismatch(
            f"{folder} belongs to run {stored.pin.run}, but the coordinator runs {pin.run}.",
            remedy="Give --new-run to leave the old run. It keeps this folder's keys and what was "
            "sent about users. A new state folder knows neither.",
        )


StateT = TypeVar("StateT", bound=StoredState, covariant=True)
