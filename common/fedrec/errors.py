"""Every error that fedrec raises on purpose, on one page.

::

    FedrecError                      code                  exit  gRPC status
    |- SettingsError                 settings               2    INVALID_ARGUMENT
    |- DataError                     data                   2    INVALID_ARGUMENT
    |- KeysError                     keys                   5    FAILED_PRECONDITION
    |  `- CertificateExpired         certificate_expired    5    FAILED_PRECONDITION
    |- ProtocolError                 protocol               1    INVALID_ARGUMENT
    |  |- VersionMismatch            version_mismatch       5    FAILED_PRECONDITION
    |  |- CatalogueMismatch          catalogue_mismatch     5    FAILED_PRECONDITION
    |  |- PlanMismatch               plan_mismatch          5    FAILED_PRECONDITION
    |  |- MalformedUpdate            malformed_update       1    INVALID_ARGUMENT
    |  |- CorruptUpload              corrupt_upload         1    DATA_LOSS
    |  `- TooLarge                   too_large              1    RESOURCE_EXHAUSTED
    |- RefusedError                  refused                5    PERMISSION_DENIED
    |  |- NotInRoster                not_a_member           5    PERMISSION_DENIED
    |  |- WrongIdentity              wrong_identity         5    PERMISSION_DENIED
    |  |- InvitationUsed             invitation_used        5    PERMISSION_DENIED
    |  |- BadSignature               bad_signature          5    PERMISSION_DENIED
    |  |- RosterBreaksCells          roster_breaks_cells    5    FAILED_PRECONDITION
    |  |- PartialCell                partial_cell           5    FAILED_PRECONDITION
    |  |- RevealRefused              reveal_refused         5    FAILED_PRECONDITION
    |  |  |- WrongTags               wrong_tags             5    FAILED_PRECONDITION
    |  |  `- SplitView               split_view             5    FAILED_PRECONDITION
    |  |- SumOutOfBounds             sum_out_of_bounds      5    FAILED_PRECONDITION
    |  |- FolderIsOld                folder_is_old_or_copied  5  PERMISSION_DENIED
    |  |  `- SecondCopy              second_copy            5    PERMISSION_DENIED
    |  |- AuthorityIsOld             authority_is_old       5    PERMISSION_DENIED
    |  `- CoordinatorWentBack        coordinator_went_back  5    PERMISSION_DENIED
    |- RoundError                    round                  1    FAILED_PRECONDITION
    |  |- RoundClosed                round_closed           1    FAILED_PRECONDITION
    |  `- ConflictingUpload          conflicting_upload     1    ALREADY_EXISTS
    |- TrainingError                 training               1    INTERNAL
    |- PrivacyBudgetSpent            privacy_budget_spent   4    FAILED_PRECONDITION
    |- StorageError                  storage                1    RESOURCE_EXHAUSTED
    |  |- DamagedFile                damaged_file           1    DATA_LOSS
    |  |- FolderInUse                folder_in_use          1    RESOURCE_EXHAUSTED
    |  |- OutputLost                 output                 1    RESOURCE_EXHAUSTED
    |  `- StateWentBack              state_went_back        1    DATA_LOSS
    |- Unreachable                   unreachable            3    UNAVAILABLE
    |  `- CoordinatorStopping        stopping               3    UNAVAILABLE
    `- InternalError                 internal               1    INTERNAL

``code`` is stable: it crosses the wire and is compared by scripts. ``public`` is the only
sentence that a peer gets; the full message, which names what was found, what was expected and
what to do next, stays in the process that raised it unless the error is about the peer's own
input (``safe = True``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

__all__ = [
    "ERRORS",
    "AuthorityIsOld",
    "BadSignature",
    "CatalogueMismatch",
    "CertificateExpired",
    "ConflictingUpload",
    "CoordinatorStopping",
    "CoordinatorWentBack",
    "CorruptUpload",
    "DamagedFile",
    "DataError",
    "FedrecError",
    "FolderInUse",
    "FolderIsOld",
    "InternalError",
    "InvitationUsed",
    "KeysError",
    "MalformedUpdate",
    "NotInRoster",
    "OutputLost",
    "PartialCell",
    "PlanMismatch",
    "PrivacyBudgetSpent",
    "ProtocolError",
    "RefusedError",
    "RevealRefused",
    "RosterBreaksCells",
    "RoundClosed",
    "RoundError",
    "SecondCopy",
    "SettingsError",
    "SplitView",
    "StateWentBack",
    "StorageError",
    "SumOutOfBounds",
    "TooLarge",
    "TrainingError",
    "Unreachable",
    "VersionMismatch",
    "WrongIdentity",
    "WrongTags",
]


class FedrecError(Exception):
    """An error with a stable code, a public sentence and a remedy.

    Args:
        message: what was found and what was expected, in one or more sentences.
        remedy: what the reader should do next.

    Attributes:
        incident: under which a peer's log has more, as the message says; another one each time.
    """

    code: ClassVar[str] = "error"
    public: ClassVar[str] = "The request failed."
    exit_code: ClassVar[int] = 1
    grpc_status: ClassVar[str] = "INTERNAL"
    safe: ClassVar[bool] = False

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.incident = ""

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class SettingsError(FedrecError):
    """Settings that cannot be used; carries every problem found, not only the first."""

    code = "settings"
    public = "The settings cannot be used."
    exit_code = 2
    grpc_status = "INVALID_ARGUMENT"
    safe = True

    def __init__(self, message: str, *, remedy: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, remedy=remedy)
        self.problems = problems

    def __str__(self) -> str:
        return "\n- ".join((super().__str__(), *self.problems))


class DataError(FedrecError):
    """Interaction data or a catalogue that cannot be used.

    Args:
        options: settings of the section ``data`` with which the same command would work, None for
            one to be left out; a command that fails shows them as its own flags.
        readings: such settings for each reading that is possible; with one, they are the options.

    Attributes:
        first_rows: of each reading, where there are several and the file was read so.
        file: what could not be read so; empty where that isn't about a file.
    """

    code = "data"
    public = "The data cannot be used."
    exit_code = 2
    grpc_status = "INVALID_ARGUMENT"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        options: Mapping[str, str | None] | None = None,
        readings: Sequence[Mapping[str, str | None]] = (),
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.options: Mapping[str, str | None] = options or {}
        self.readings = readings
        self.first_rows: Sequence[Sequence[str]] = ()
        self.file = ""
        if len(readings) == 1:
            self.options, self.readings = readings[0], ()


class KeysError(FedrecError):
    """Keys, rosters or epochs that are missing, foreign or malformed."""

    code = "keys"
    public = "The keys of this federation do not fit."
    exit_code = 5
    grpc_status = "FAILED_PRECONDITION"


class CertificateExpired(KeysError):
    """A certificate outside its dates, or a clock that is."""

    code = "certificate_expired"
    public = "The certificate is not valid at this time."


class ProtocolError(FedrecError):
    """A peer said something that the protocol does not allow."""

    code = "protocol"
    public = "The message does not follow the protocol."
    grpc_status = "INVALID_ARGUMENT"
    safe = True


class VersionMismatch(ProtocolError):
    """The peer speaks another major version of the protocol."""

    code = "version_mismatch"
    public = "The peer speaks another protocol version; install the same fedrec on both sides."
    exit_code = 5
    grpc_status = "FAILED_PRECONDITION"


class CatalogueMismatch(ProtocolError):
    """The peer counts items by another catalogue."""

    code = "catalogue_mismatch"
    public = "The catalogue differs from the federation's; fetch the federation's catalogue."
    exit_code = 5
    grpc_status = "FAILED_PRECONDITION"


class PlanMismatch(ProtocolError):
    """The peer runs with other settings than the federation."""

    code = "plan_mismatch"
    public = "The settings differ from the federation's."
    exit_code = 5
    grpc_status = "FAILED_PRECONDITION"


class MalformedUpdate(ProtocolError):
    """An update of the wrong shape, length, parameters or values."""

    code = "malformed_update"
    public = "The update is malformed and was not counted."


class CorruptUpload(ProtocolError):
    """Bytes whose length, order or digest is not what the header announced."""

    code = "corrupt_upload"
    public = "The bytes do not match their header; send them again."
    grpc_status = "DATA_LOSS"


class TooLarge(ProtocolError):
    """A length, count or rate above its limit."""

    code = "too_large"
    public = "The message is larger than allowed."
    grpc_status = "RESOURCE_EXHAUSTED"


class RefusedError(FedrecError):
    """The peer may not do this."""

    code = "refused"
    public = "Refused."
    exit_code = 5
    grpc_status = "PERMISSION_DENIED"


class NotInRoster(RefusedError):
    """A client's key that isn't in the key authority's roster.

    Attributes:
        epoch: the key epoch of the roster that was searched; 0 where the refusal named none.
    """

    code = "not_a_member"
    public = "This key belongs to no member: it is not in the federation's roster."
    epoch = 0


class WrongIdentity(RefusedError):
    """A message names another client than the one whose certificate brought it."""

    code = "wrong_identity"
    public = "The message names another client than the one that sends it."


class InvitationUsed(RefusedError):
    """An invitation with which somebody else applied before."""

    code = "invitation_used"
    public = "This invitation was used already."


class BadSignature(RefusedError):
    """A signature that does not verify."""

    code = "bad_signature"
    public = "The signature does not verify."


class RosterBreaksCells(RefusedError):
    """A roster under which combined sums could isolate fewer clients than a cell has."""

    code = "roster_breaks_cells"
    public = "The roster does not keep the cells of the one before."
    grpc_status = "FAILED_PRECONDITION"


class PartialCell(RefusedError):
    """A sum over part of those who are always summed together."""

    code = "partial_cell"
    public = "The sum is not over everybody who is always summed together."
    grpc_status = "FAILED_PRECONDITION"


class RevealRefused(RefusedError):
    """The key holder declines to open what it was given."""

    code = "reveal_refused"
    public = "This sum is not opened."
    grpc_status = "FAILED_PRECONDITION"


class WrongTags(RevealRefused):
    """A sum is not that of the messages whose tags it should have."""

    code = "wrong_tags"


class SplitView(RevealRefused):
    """The coordinator told clients of one round different things."""

    code = "split_view"
    public = "The coordinator told clients of a round different things."


class SumOutOfBounds(RefusedError):
    """An opened sum holds what its contributors' users cannot add up to."""

    code = "sum_out_of_bounds"
    public = "The round's sum holds what no honest clients add up to."
    grpc_status = "FAILED_PRECONDITION"


class RoundError(FedrecError):
    """Something that the round's present state does not allow."""

    code = "round"
    public = "The round does not allow this now."
    grpc_status = "FAILED_PRECONDITION"
    safe = True


class RoundClosed(RoundError):
    """An upload for a round that no longer collects."""

    code = "round_closed"
    public = "The round is closed; the update was not counted."


class ConflictingUpload(RoundError):
    """A second, different update of one client for one round."""

    code = "conflicting_upload"
    public = "Another update of this client is already counted in this round."
    grpc_status = "ALREADY_EXISTS"


class FolderIsOld(RefusedError):
    """A client's folder ends before what its client sent: an older copy, or one of two."""

    code = "folder_is_old_or_copied"
    public = "The client's folder is older than the client."


class SecondCopy(FolderIsOld):
    """Two copies of one client's folder answered the same round."""

    code = "second_copy"


class AuthorityIsOld(RefusedError):
    """A key authority's folder ends before what the federation knows of it."""

    code = "authority_is_old"
    public = "The key authority's folder is older than the federation."


class CoordinatorWentBack(RefusedError):
    """A coordinator does not know what it once acknowledged or published."""

    code = "coordinator_went_back"
    public = "The coordinator knows less than it did."


class TrainingError(FedrecError):
    """Training diverged or cannot start."""

    code = "training"
    public = "Training failed."


class PrivacyBudgetSpent(FedrecError):
    """Another release would exceed what was promised to the users."""

    code = "privacy_budget_spent"
    public = "The privacy budget is spent."
    exit_code = 4
    grpc_status = "FAILED_PRECONDITION"


class StorageError(FedrecError):
    """The disk is full or a stored file is damaged."""

    code = "storage"
    public = "Storage is unavailable; try again later."
    grpc_status = "RESOURCE_EXHAUSTED"


class DamagedFile(StorageError):
    """A stored file is missing or is not what its row says."""

    code = "damaged_file"
    public = "A stored file is damaged; the operator of its machine has to bring it back."
    grpc_status = "DATA_LOSS"


class FolderInUse(StorageError):
    """A folder that belongs to one process at a time, and another one has it."""

    code = "folder_in_use"
    public = "Another process uses the folder."


class OutputLost(StorageError):
    """Standard output is closed, or its disk is full, or its reader has left.

    Attributes:
        reader_left: as `head` does, which no one needs to be told.
    """

    code = "output"
    public = "The output cannot be written."
    reader_left = False


class StateWentBack(StorageError):
    """A state folder knows less than it once did."""

    code = "state_went_back"
    public = "The state folder is older than it was."
    grpc_status = "DATA_LOSS"


class Unreachable(FedrecError):
    """Nobody answers at the address."""

    code = "unreachable"
    public = "The peer cannot be reached."
    exit_code = 3
    grpc_status = "UNAVAILABLE"


class CoordinatorStopping(Unreachable):
    """The coordinator is about to end and takes no more calls."""

    code = "stopping"
    public = "The coordinator is stopping."
    safe = True


class InternalError(FedrecError):
    """A defect: the log has the details under the incident id."""

    code = "internal"
    public = "An internal error occurred; the log has the details."


def _tree(root: type[FedrecError]) -> list[type[FedrecError]]:
    found = []
    for kind in root.__subclasses__():
        found.append(kind)
        found.extend(_tree(kind))
    return found


ERRORS: dict[str, type[FedrecError]] = {kind.code: kind for kind in _tree(FedrecError)}
