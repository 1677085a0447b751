"""The decisions of a step. The store writes all changes of one step in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import Report, RevealStatement, RoundKind, UploadHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOpened:
    """A round begins to collect updates."""

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    epoch: int
    at: float
    deadline_at: float
    asked: frozenset[ClientId]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientJoined:
    """A client that appeared later is offered the round too. This is not stored."""

    round: RoundId
    client_id: ClientId


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCounted:
    """An update belongs to the round's sum.

    Attributes:
        charged: whether the privacy ledger counts the round from this commit on.
    """

    header: UploadHeader
    at: float
    charged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyCounted:
    """The same update already counts, so there is nothing to store."""

    round: RoundId
    client_id: ClientId


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectingEnded:
    """The contribution list is final, and the sum can be computed.

    Attributes:
        left_out: clients whose updates start from a different model than most, or whose cell isn't
            complete.
    """

    round: RoundId
    counted: int
    at: float
    left_out: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesRefused:
    """A closed round proceeds without updates that no honest client sends."""

    round: RoundId
    left_out: frozenset[ClientId]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SumKept:
    """The coordinator's (encrypted) sum is durable.

    Attributes:
        charged: whether the privacy ledger counts the round from this commit on, before a client
            can be asked to open the sum.
    """

    round: RoundId
    total: Blob
    at: float
    charged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsPaused:
    """The key authority named cells whose members made a sum invalid.

    They sit out until the next roster.

    Attributes:
        cells: the newly paused cells.
        left_out: clients whose updates are therefore not in this round's sum.
    """

    round: RoundId
    epoch: int
    cells: tuple[int, ...]
    left_out: frozenset[ClientId]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKept:
    """A client's message for one step of a round is durable."""

    round: RoundId
    client_id: ClientId
    step: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """The messages that a step of a round collected are final.

    Attributes:
        phase: the phase that begins.
        brought_vectors: whether the step collected the vectors.
        left_out: clients that sent their message but drop out of the round.
        counted: clients that stay in the round.
        charged: whether the privacy ledger counts the round from this commit on, before a client
            can be asked for what opens the sum.
    """

    round: RoundId
    step: str
    phase: str
    brought_vectors: bool
    left_out: frozenset[ClientId]
    counted: int
    deadline_at: float
    at: float
    charged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPublished:
    """A round's result is final.

    Attributes:
        statement: the key authority's statement, if it opened the sum.
        blob: the published sum.
        metrics: the public metrics segment, little-endian int64, or empty until
            clients report it.
        rows: the item rows that vectors cover from now on, or None until clients report them.
        reports_until: when the run continues without clients' reports, or None if it awaits none.
    """

    round: RoundId
    kind: RoundKind
    blob: Blob
    counted: int
    bytes_received: int
    seconds: float
    at: float
    statement: RevealStatement | None = None
    metrics: bytes = b""
    rows: StatedRows | None = None
    reports_until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLearnt:
    """A recovered coordinator heard of a published round and continues from there.

    Attributes:
        base_round: the last round that was published here.
        last_round: the highest round number that any party reported.
        charged: the number of noisy sums that may have been opened.
    """

    statement: RevealStatement
    base_round: RoundId
    last_round: RoundId
    charged: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportKept:
    """A client's report on a published ciphertext sum is durable."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMeasured:
    """The run stops waiting for reports on a published ciphertext sum.

    Attributes:
        agreed: the content on which two clients agree, or None.
        reason: why there is no result, or empty.
        rows: the item rows that vectors cover from now on.
    """

    round: RoundId
    agreed: Report | None
    reason: str
    rows: StatedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAbandoned:
    """A round ends without a result. Its number is never used again.

    Attributes:
        pause_seconds: time before the next round opens, 0 until several in a row were abandoned.
    """

    round: RoundId
    kind: RoundKind
    reason: str
    counted: int
    at: float
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNoted:
    """The operator asked to end the run."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """A key epoch began. Rounds that open from now on belong to it."""

    epoch: int
    members: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run has ended. No round follows."""

    reason: str
    failed: bool
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """A failed or stopped run continues. Abandoned rounds no longer count."""

    after_round: RoundId
    at: float


Change = (
    RoundOpened
    | ClientJoined
    | UpdateCounted
    | AlreadyCounted
    | CollectingEnded
    | UpdatesRefused
    | SumKept
    | CellsPaused
    | StepKept
    | StepEnded
    | RoundPublished
    | RoundLearnt
    | ReportKept
    | RoundMeasured
    | RoundAbandoned
    | StopNoted
    | EpochBegan
    | RunFinished
    | RunResumed
)

VOLATILE = (ClientJoined, AlreadyCounted)
"""Changes that the store does not keep. After a restart they happen again."""
