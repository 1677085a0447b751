"""The events of a run. They are the only source of time."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import Report, RevealStatement, StepMessage, UploadHeader
from fedrec_server.rounds.state import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happened:
    """An event with its time."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(_Happened):
    """Time passed.

    Attributes:
        live: roster clients that called recently. Ignored while a round is in progress.
        gone: clients that said goodbye and did not come back at once.
    """

    live: frozenset[ClientId]
    gone: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled(_Happened):
    """A roster client asks for a task.

    Attributes:
        live: the present clients, if there are cells. The asking client is always one of them.
    """

    client_id: ClientId
    live: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded(_Happened):
    """An admitted update is complete and durable in the spool."""

    header: UploadHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed(_Happened):
    """The sum of a closed round is durable in the store.

    Attributes:
        metrics: set if the coordinator can read the sum.
        rows: the item rows that vectors cover from now on, if a count round's sum is readable.
    """

    round: RoundId
    total: Blob
    metrics: bytes = b""
    rows: StatedRows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementReceived(_Happened):
    """A statement of the key authority was admitted, and its sealed sum is durable in the store."""

    statement: RevealStatement
    blob: Blob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementShown(_Happened):
    """A member showed the key authority's statement on a published round that is unknown here."""

    statement: RevealStatement


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReceived(_Happened):
    """A client's report on a published ciphertext sum was admitted."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHeard(_Happened):
    """A message of a step was admitted. It fits what its client sent before."""

    message: StepMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClosed(_Happened):
    """A step of a round is over, and enough messages arrived to continue.

    Attributes:
        left_out: clients that drop out of the round: they start from another model, or their cells
            are incomplete.
    """

    round: RoundId
    phase: str
    left_out: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_Happened):
    """The round in progress cannot continue, for instance because a stored update is damaged."""

    round: RoundId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesUnfit(_Happened):
    """Updates of a closed round, each readable here, have values that no honest client sends."""

    round: RoundId
    clients: frozenset[ClientId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Untrainable(_Happened):
    """After the count nothing can be trained. `reason` explains it to people."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(_Happened):
    """The operator ends the run, after the round in progress or `at_once`."""

    at_once: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted(_Happened):
    """The coordinator restarted. No client is blamed for its absence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(_Happened):
    """The operator resumes a failed or stopped run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochInstalled(_Happened):
    """A newer key epoch is durable. It begins once no round must be finished first."""

    rules: Rules
    roster: frozenset[ClientId]


Event = (
    Tick
    | Polled
    | Uploaded
    | Summed
    | StatementReceived
    | StatementShown
    | ReportReceived
    | StepHeard
    | StepClosed
    | Failed
    | UpdatesUnfit
    | Untrainable
    | StopRequested
    | Restarted
    | Resumed
    | EpochInstalled
)
