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
    |  |- TaskRefused                task_refused           5    FAILED_PRECONDITION
    |  |- SumOutOfBounds             sum_out_of_bounds      5    FAILED_PRECONDITION
    |  |- FolderIsOld                folder_is_old_or_copied  5  PERMISSION_DENIED
    |  |  `- SecondCopy              second_copy            5    PERMISSION_DENIED
    |  |- AuthorityIsOld             authority_is_old       5    PERMISSION_DENIED
    |  `- CoordinatorWentBack        coordinator_went_back  5    PERMISSION_DENIED
    |- RoundError                    round                  1    FAILED_PRECONDITION
    |  |- RoundClosed                round_closed           1    FAILED_PRECONDITION
    |  `- ConflictingUpload          conflicting_upload     1    ALREADY_EXISTS
    |- TrainingError                 training               1    INTERNAL
    |  `- NoInformation              no_information         1    FAILED_PRECONDITION
    |- PrivacyBudgetSpent            privacy_budget_spent   4    FAILED_PRECONDITION
    |- StorageError                  storage                1    RESOURCE_EXHAUSTED
    |  |- DamagedFile                damaged_file           1    DATA_LOSS
    |  |- FolderInUse                folder_in_use          1    RESOURCE_EXHAUSTED
    |  |- OutputLost                 output                 1    RESOURCE_EXHAUSTED
    |  `- StateWentBack              state_went_back        1    DATA_LOSS
    |- Unreachable                   unreachable            3    UNAVAILABLE
    |  `- CoordinatorStopping        stopping               3    UNAVAILABLE
    `- InternalError                 internal               1    INTERNAL

``code`` is stable: it crosses the wire, and scripts compare it. ``public`` is the only sentence
that a peer gets. The full message names what was found, what was expected and a remedy. It stays in
the process that raised it, unless the error is about the peer's own input (``safe = True``).
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
    "NoInformation",
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
    "TaskRefused",
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
        remedy: the reader's next step.

    Attributes:
        incident: a fresh id under which a peer's log has details.
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
    """Invalid settings, with every problem that was found."""

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
    """Invalid interaction data, or an invalid catalogue.

    Args:
        options: settings of the section ``data`` with which the same command would work, or None
            for one to omit. A failed command shows them as its own flags.
        readings: such settings for each possible reading. A single reading is the same as options.

    Attributes:
        first_rows: the first rows of each reading, if there are several and the file was read with
            them.
        file: the file that could not be read, or empty if the error is not about a file.
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
    """Missing, foreign or malformed keys, rosters or epochs."""

    code = "keys"
    public = "The keys do not belong to this federation."
    exit_code = 5
    grpc_status = "FAILED_PRECONDITION"


class CertificateExpired(KeysError):
    """A certificate outside its validity period, or a wrong clock."""

    code = "certificate_expired"
    public = "The certificate is not valid at this time."


class ProtocolError(FedrecError):
    """A message that the protocol does not allow."""

    code = "protocol"
    public = "The message does not follow the protocol."
    grpc_status = "INVALID_ARGUMENT"
    safe = True


class VersionMismatch(ProtocolError):
    """A peer with another major version of the protocol."""

    code = "version_mismatch"
    public = "The peer uses another protocol version. Install the same fedrec on both machines."
    exit_code = 5
    grpc_status = "FAILED_PRECONDITION"


class CatalogueMismatch(ProtocolError):
    """A peer with another catalogue of items."""

    code = "catalogue_mismatch"
    public = "The catalogue isn't that of the federation. Fetch the federation's catalogue."
    exit_code = 5
    grpc_status = "FAILED_PRECONDITION"


class PlanMismatch(ProtocolError):
    """A peer whose settings, users or state folder don't match the run."""

    code = "plan_mismatch"
    public = "The settings, the users or the state folder don't match the run."
    exit_code = 5
    grpc_status = "FAILED_PRECONDITION"


class MalformedUpdate(ProtocolError):
    """An update with a wrong shape, length, parameters or values."""

    code = "malformed_update"
    public = "The update is malformed and was not counted."


class CorruptUpload(ProtocolError):
    """Bytes whose length, order or digest does not match the header."""

    code = "corrupt_upload"
    public = "The bytes do not match their header. Send them again."
    grpc_status = "DATA_LOSS"


class TooLarge(ProtocolError):
    """A length, count or rate above its limit."""

    code = "too_large"
    public = "The message is larger than allowed."
    grpc_status = "RESOURCE_EXHAUSTED"


class RefusedError(FedrecError):
    """A request that the peer may not make."""

    code = "refused"
    public = "Refused."
    exit_code = 5
    grpc_status = "PERMISSION_DENIED"


class NotInRoster(RefusedError):
    """A key that is not in the key authority's roster.

    Attributes:
        epoch: the key epoch of the searched roster, or 0 if the refusal named none.
    """

    code = "not_a_member"
    public = "This key belongs to no member: it is not in the federation's roster."
    epoch = 0


class WrongIdentity(RefusedError):
    """A message that names a different client from its certificate."""

    code = "wrong_identity"
    public = "The message names a different client from its sender."


class InvitationUsed(RefusedError):
    """An invitation that another party has used."""

    code = "invitation_used"
    public = "This invitation was used already."


class BadSignature(RefusedError):
    """A signature that does not verify."""

    code = "bad_signature"
    public = "The signature does not verify."


class RosterBreaksCells(RefusedError):
    """A roster with which combined sums could isolate fewer clients than a cell has."""

    code = "roster_breaks_cells"
    public = "The roster does not keep the previous roster's cells."
    grpc_status = "FAILED_PRECONDITION"


class PartialCell(RefusedError):
    """A sum over only a part of a cell."""

    code = "partial_cell"
    public = "The sum does not cover all clients that are always summed together."
    grpc_status = "FAILED_PRECONDITION"


class RevealRefused(RefusedError):
    """A sum that the key holder refuses to open."""

    code = "reveal_refused"
    public = "This sum is not opened."
    grpc_status = "FAILED_PRECONDITION"


class WrongTags(RevealRefused):
    """A sum whose tags do not match its messages."""

    code = "wrong_tags"


class SplitView(RevealRefused):
    """Different statements from the coordinator to clients of one round."""

    code = "split_view"
    public = "The coordinator made different statements to clients of a round."


class TaskRefused(RefusedError):
    """A task that a client must not do: it would reveal more than its users agreed to."""

    code = "task_refused"
    public = "The client does not do this task."
    grpc_status = "FAILED_PRECONDITION"


class SumOutOfBounds(RefusedError):
    """An opened sum with values that its contributors' users cannot reach."""

    code = "sum_out_of_bounds"
    public = "The round's sum has values that honest clients cannot reach."
    grpc_status = "FAILED_PRECONDITION"


class RoundError(FedrecError):
    """A request that the round's current state does not allow."""

    code = "round"
    public = "The round does not allow this now."
    grpc_status = "FAILED_PRECONDITION"
    safe = True


class RoundClosed(RoundError):
    """An upload for a round that no longer collects updates."""

    code = "round_closed"
    public = "The round is closed. The update was not counted."


class ConflictingUpload(RoundError):
    """A second, different update from one client for the same round."""

    code = "conflicting_upload"
    public = "Another update from this client is already counted in this round."
    grpc_status = "ALREADY_EXISTS"


class FolderIsOld(RefusedError):
    """A client's folder that lacks messages which the client sent: an older copy, or one of two."""

    code = "folder_is_old_or_copied"
    public = "The client's folder is older than its last message."


class SecondCopy(FolderIsOld):
    """Two copies of a client's folder that answered the same round."""

    code = "second_copy"


class AuthorityIsOld(RefusedError):
    """A key authority's folder that lacks what the federation knows about it."""

    code = "authority_is_old"
    public = "The key authority's folder is older than the federation's record of it."


class CoordinatorWentBack(RefusedError):
    """A coordinator that lost data which it had acknowledged or published."""

    code = "coordinator_went_back"
    public = "The coordinator lost data that it had acknowledged."


class TrainingError(FedrecError):
    """Training that diverged or cannot start."""

    code = "training"
    public = "Training failed."


class NoInformation(TrainingError):
    """A model that gives all items the same score, for every user."""

    code = "no_information"
    public = "The model has no information about items."
    grpc_status = "FAILED_PRECONDITION"


class PrivacyBudgetSpent(FedrecError):
    """A release that would exceed the privacy promised to users."""

    code = "privacy_budget_spent"
    public = "The privacy budget is spent."
    exit_code = 4
    grpc_status = "FAILED_PRECONDITION"


class StorageError(FedrecError):
    """A full disk or a damaged file."""

    code = "storage"
    public = "Storage is unavailable. Try again later."
    grpc_status = "RESOURCE_EXHAUSTED"


class DamagedFile(StorageError):
    """A stored file that is missing or does not match its record."""

    code = "damaged_file"
    public = "A stored file is damaged. The operator of its machine must restore it."
    grpc_status = "DATA_LOSS"


class FolderInUse(StorageError):
    """A folder for one process at a time that another process has."""

    code = "folder_in_use"
    public = "Another process uses the folder."


class OutputLost(StorageError):
    """Standard output that is closed, on a full disk, or without a reader.

    Attributes:
        reader_left: whether the reader closed it, as `head` does, which is no reason for a message.
    """

    code = "output"
    public = "The output cannot be written."
    reader_left = False


class StateWentBack(StorageError):
    """A state folder that lost data."""

    code = "state_went_back"
    public = "The state folder is older than its last change."
    grpc_status = "DATA_LOSS"


class Unreachable(FedrecError):
    """No answer at the address."""

    code = "unreachable"
    public = "The peer cannot be reached."
    exit_code = 3
    grpc_status = "UNAVAILABLE"


class CoordinatorStopping(Unreachable):
    """A coordinator that is about to end and accepts no more calls."""

    code = "stopping"
    public = "The coordinator is stopping."
    safe = True


class InternalError(FedrecError):
    """A defect. The log has the details under the incident id."""

    code = "internal"
    public = "An internal error occurred. The log has the details."


def _tree(root: type[FedrecError]) -> list[type[FedrecError]]:
    found = []
    for kind in root.__subclasses__():
        found.append(kind)
        found.extend(_tree(kind))
    return found


ERRORS: dict[str, type[FedrecError]] = {kind.code: kind for kind in _tree(FedrecError)}
