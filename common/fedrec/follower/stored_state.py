"""What a state folder says about its run: records in one transaction, and files that they name.

A client's and the key authority's states have further records. Whose run a folder serves is checked
here: it is tied to one at first use, and leaves it on request. Files are named by their content,
and checked when they are read.
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
from fedrec.follower.database import Records
from fedrec.ids import RoundId, digest
from fedrec.wire.messages import RevealStatement

Content = bytes | Iterable[bytes]
"""A file's, as a whole or in parts."""

_PART_BYTES = 1 << 20

_DAMAGED = "Restore the state folder from a backup, or start again with an empty one."
_UNWRITABLE = "Check that the folder is writable, then start again."


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """Names a file of the state folder and what it must contain.

    Attributes:
        sha256: hexadecimal digest of the content.
    """

    name: str
    length: int
    sha256: str


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner may enter; tighten it where it exists already."""
    try:
        make_private(folder)
        folder.chmod(0o700)
    except OSError as error:
        raise unwritten(folder, error, _UNWRITABLE) from error


def write_blob(folder: Path, kind: str, data: Content) -> FileRef:
    """Write `data` under a name that follows from its content, and return its reference.

    Raises:
        DiskFull: there is no space; what was there before is intact.
        SettingsError: nothing may be written there.
        StorageError: it cannot be written for another reason.
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
                # While the disk writes what is there, the rest is hashed.
                begin_writing_back(file.fileno(), length, len(part))
                hashed.update(part)
                length += len(part)
    except OSError as error:
        raise unwritten(folder / kind, error, _UNWRITABLE) from error
    return FileRef(name=name(), length=length, sha256=hashed.hexdigest())


def read_checked(folder: Path, ref: FileRef) -> bytes:
    """Return a file's content.

    Raises:
        StorageError: the file is missing, or is not what was written.
    """
    path = folder / ref.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.", remedy=_DAMAGED) from error
    _check_content(path, ref, len(data), hashlib.sha256(data).hexdigest())
    return data


def checked_path(folder: Path, ref: FileRef) -> Path:
    """Return where a file lies whose content was checked without holding it in memory.

    Raises:
        StorageError: the file is missing, or is not what was written.
    """
    path = folder / ref.name
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            length = file.tell()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.", remedy=_DAMAGED) from error
    _check_content(path, ref, length, found)
    return path


def _check_content(path: Path, ref: FileRef, length: int, found: str) -> None:
    if length != ref.length or found != ref.sha256:
        raise StorageError(
            f"{path} is damaged: it has {length} bytes with SHA-256 {found}, expected "
            f"{ref.length} bytes with {ref.sha256}.",
            remedy=_DAMAGED,
        )


_OTHERS = {
    *("provenance", "private", "staged", "best", "answered_round", "acknowledged"),
    *("unacknowledged", "acknowledged_header", "masking", "spent", "counted"),
    *("head", "opened", "revealed", "refused_sums", "paused", "cell_counts"),
}
"""Records of a client or the key authority. Earlier releases wrote all of them in both folders."""
_EMPTY = {b"null", b"[]", b"0"}


def users_digest(users: UserSplit) -> str:
    """Return what ties stored private vectors to the users they belong to."""
    return digest("fedrec client users v1", *users.user_ids).hex()


class Record(BaseModel):
    """A value that is kept as JSON, its bytes in hexadecimal."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex"
    )


class RunPin(Record):
    """What must never change under a state folder.

    Attributes:
        run: the run's id, drawn by the coordinator.
        plan_json: the plan's canonical JSON.
        users: hexadecimal digest of the users whose private state is kept, in their order.
    """

    federation: str
    run: str
    plan_json: str
    catalogue_fingerprint: str
    users: str


class StoredState(Record):
    """What every follower keeps about one run; it commits one after the other.

    Attributes:
        version: the last published round whose aggregate `shared` contains.
        shared: the shared model; None at version 0, where it follows from the plan.
        is_of_epoch: whether round `version` was read in the present epoch: later ones can be, too.
        metrics: what round `version` measured, little-endian int64; empty at version 0 and after a
            copy of the model.
        statement: the key authority's last word on a published round that is known here: evidence
            that the round was published.
        left_runs: runs that this folder took part in before, and does not return to.
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
        """Return the names of all files that this state needs, whatever record names them."""
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
        """Return the state of the folder as it serves a run; the same one where nothing changes.

        Args:
            first: the state of a folder that knows only the run, in the epoch that was opened.
            new_run: leave the present run for the coordinator's, and forget its models.
            folder: for people.

        Raises:
            PlanMismatch: the folder belongs to another run, plan, catalogue or set of users.
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
                f"{folder} was made with another {' and '.join(changed)} of run {pin.run}.",
                remedy="Check client.state (--state) and data.path (--data), restore what was "
                "changed (the data file's users, the catalogue or the plan), or start with a new "
                "state folder.",
            )
        if epoch < self.epoch:
            raise epoch_went_back(self.epoch, epoch)
        return self if epoch == self.epoch else self.in_epoch(epoch)

    def in_epoch(self, epoch: int) -> Self:
        """Return the state of the same run as a later key epoch begins."""
        return self.model_copy(update={"epoch": epoch, "is_of_epoch": False})

    def left_for(self, first: Self) -> Self:
        """Return the first state of another run, with what outlives this one.

        Args:
            first: the state of a folder that knows only the other run.
        """
        return first.model_copy(update={"left_runs": (*self.left_runs, self.pin.run)})

    def records(self) -> dict[str, bytes]:
        """Return the fields by name, each as JSON."""
        fields = self.model_dump(mode="json")
        return {name: json.dumps(value).encode() for name, value in fields.items()}

    @classmethod
    def from_records(cls, records: Records, name: str) -> Self:
        """Read what `records` returned.

        Args:
            name: where they were, for errors.

        Raises:
            StorageError: they are something else.
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
                f"{name} cannot be understood: {first['loc']}: {first['msg']}.",
                remedy="Restore the state folder from a backup, or start again with an empty one.",
            ) from None


def epoch_went_back(known: int, said: int) -> CoordinatorWentBack:
    """Return the error of a coordinator whose key epoch is older than this client's."""
    return CoordinatorWentBack(
        f"The coordinator went back from key epoch {known} to {said}. This client waits and keeps "
        "what it has."
    )


def _check_leaving(
    stored: StoredState, pin: RunPin, epoch: int, *, new_run: bool, folder: Path
) -> None:
    """Refuse to leave the present run for one that was left, is of an older epoch, or unasked."""
    if pin.run in stored.left_runs:
        raise PlanMismatch(
            f"{folder} took part in run {pin.run} before and left it.",
            remedy="Start with a new state folder, or call the coordinator of the new run.",
        )
    if epoch < stored.epoch:
        raise PlanMismatch(
            f"The coordinator's run is in key epoch {epoch}; this client knows {stored.epoch}, "
            "and members may have been revoked since.",
            remedy="Ask the operator to install the newest epoch.",
        )
    if not new_run:
        raise PlanMismatch(
            f"{folder} belongs to run {stored.pin.run}; the coordinator runs {pin.run}.",
            remedy="Start with a new state folder, or give --new-run to leave the old run.",
        )


StateT = TypeVar("StateT", bound=StoredState, covariant=True)
