"""What a step decided: the store writes the changes of one step in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import Report, RevealStatement, RoundKind, UploadHeader
from fedrec_server.rounds.state import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOpened:
    """A round collects updates from now on."""

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    epoch: int
    at: float
    deadline_at: float
    asked: frozenset[ClientId]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientJoined:
    """A client that appeared later is offered the round also; not worth storing."""

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
    """The same update is counted already; nothing to store."""

    round: RoundId
    client_id: ClientId


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectingEnded:
    """The contribution list is final; the sum can be made.

    Attributes:
        left_out: clients whose updates start from another model than most, or that are only summed
            with others whose updates are not here.
    """

    round: RoundId
    counted: int
    at: float
    left_out: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesRefused:
    """A closed round goes on without updates that hold what no honest client sends."""

    round: RoundId
    left_out: frozenset[ClientId]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SumKept:
    """The coordinator's (encrypted) sum is durable.

    Attributes:
        charged: whether the privacy ledger counts the round from this commit on, before
            anybody can be asked to open the sum.
    """

    round: RoundId
    total: Blob
    at: float
    charged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsPaused:
    """The key authority named cells whose members made a sum unfit; it waits for its next roster.

    Attributes:
        cells: that were not paused before.
        left_out: clients whose updates of this round are not in its sum.
    """

    round: RoundId
    epoch: int
    cells: tuple[int, ...]
    left_out: frozenset[ClientId]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKept:
    """A client's message of one step of a round is durable."""

    round: RoundId
    client_id: ClientId
    step: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """What a step of a round collected is final.

    Attributes:
        phase: the one that begins.
        brought_vectors: whether it was the step of the vectors.
        left_out: clients that the round goes on without, though their message is here.
        counted: clients that it goes on with.
        charged: whether the privacy ledger counts the round from this commit on, before anybody
            can be asked for what opens the sum.
    """

    round: RoundId
    step: str
    phase: Phase
    brought_vectors: bool
    left_out: frozenset[ClientId]
    counted: int
    deadline_at: float
    at: float
    charged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPublished:
    """A round's result is fixed.

    Attributes:
        statement: the key authority's, where it opened the sum.
        blob: the published sum.
        metrics: the public metrics segment, little-endian int64; empty where clients have yet to
            say it.
        rows: the item rows that vectors cover from now on; None where clients have yet to say.
        reports_until: when the run goes on without clients' reports; None where none are awaited.
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
    """A coordinator that was recovered heard of a round that is published, and goes on from there.

    Attributes:
        base_round: what was published last here.
        last_round: the last number that anybody heard of.
        charged: noisy sums that anybody may have opened.
    """

    statement: RevealStatement
    base_round: RoundId
    last_round: RoundId
    charged: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportKept:
    """A client's word on a published ciphertext sum is durable."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMeasured:
    """Nobody waits for further reports on a published ciphertext sum.

    Attributes:
        agreed: what two clients say alike; None where no two do.
        reason: why there is nothing to show; else empty.
        rows: the item rows that vectors cover from now on.
    """

    round: RoundId
    agreed: Report | None
    reason: str
    rows: StatedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAbandoned:
    """A round ends without a result; its number is never used again.

    Attributes:
        pause_seconds: before the next one opens; 0 until several in a row were given up.
    """

    round: RoundId
    kind: RoundKind
    reason: str
    counted: int
    at: float
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNoted:
    """The operator asked for the run's end."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """Rounds that open from now on are of another key epoch."""

    epoch: int
    members: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """No round follows."""

    reason: str
    failed: bool
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """A failed or stopped run goes on; earlier abandoned rounds are forgiven."""

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
"""What the store does not keep: after a restart it happens again."""
