"""What can happen to a run; time comes only from here."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import Report, RevealStatement, StepMessage, UploadHeader
from fedrec_server.rounds.state import Phase, Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happened:
    """Something that happened at a time."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(_Happened):
    """Time passed.

    Attributes:
        live: roster clients that were heard of lately; not asked for while a round is in progress.
        gone: those that said goodbye and did not come back at once.
    """

    live: frozenset[ClientId]
    gone: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled(_Happened):
    """A roster client asks for something to do.

    Attributes:
        live: who is here, where clients are summed with others only; the asking one always is.
    """

    client_id: ClientId
    live: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded(_Happened):
    """An admitted update lies complete and durable in the spool."""

    header: UploadHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed(_Happened):
    """The sum of a closed round lies durable in the store.

    Attributes:
        metrics: where the sum is readable here.
        rows: the item rows that vectors cover from now on, where a count round's is.
    """

    round: RoundId
    total: Blob
    metrics: bytes = b""
    rows: StatedRows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementReceived(_Happened):
    """An admitted statement of the key authority, its sealed sum durable in the store."""

    statement: RevealStatement
    blob: Blob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementShown(_Happened):
    """The key authority's word on a published round that is not known here, from a member."""

    statement: RevealStatement


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReceived(_Happened):
    """An admitted report of a client on a published ciphertext sum."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHeard(_Happened):
    """An admitted message of a step, which fits what was sent before it."""

    message: StepMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClosed(_Happened):
    """A step of a round is over, and enough arrived to go on.

    Attributes:
        left_out: clients that the round goes on without: they start from another model, or their
            cells are not whole.
    """

    round: RoundId
    phase: Phase
    left_out: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_Happened):
    """The round in progress cannot go on, for instance because a stored update is damaged."""

    round: RoundId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesUnfit(_Happened):
    """Updates of a closed round, read here one by one, hold what no honest client sends."""

    round: RoundId
    clients: frozenset[ClientId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Untrainable(_Happened):
    """After the count nothing can be trained; `reason` says why, for people."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(_Happened):
    """The operator ends the run: after the round in progress, or `at_once`."""

    at_once: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted(_Happened):
    """The coordinator came back: nobody is blamed for the time it was away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(_Happened):
    """The operator lets a failed or stopped run go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochInstalled(_Happened):
    """A newer key epoch is durable; it begins where no round has to be finished before."""

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
