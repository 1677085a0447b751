"""What travels, as plain values; `convert` turns them into protocol buffers at the edge."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from fedrec.ids import RoundId, canonical, digest
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import (
    PROTOCOL_VERSION,
    UNSAID,
    BehindIt,
    Cells,
    Client,
    Digest,
    Document,
    DocumentPart,
    Kind,
    MaybeDigest,
    Metrics,
    Name,
    Nonce,
    Number,
    Reason,
    Refusal,
    Round,
    RoundKind,
    RowCount,
    Seconds,
    Signature,
    StatedRows,
    StepBody,
    StepName,
    Version,
    check_contributions,
    check_reports,
)

__all__ = [
    "NOTHING",
    "PROTOCOL_VERSION",
    "UNSAID",
    "Application",
    "FederationInfo",
    "Finished",
    "Latest",
    "MakeSnapshot",
    "PublishedRound",
    "Remembered",
    "Report",
    "Reveal",
    "RevealStatement",
    "RoundKind",
    "Signed",
    "Snapshot",
    "StepMessage",
    "StepTask",
    "Task",
    "Train",
    "UploadHeader",
    "UploadStatus",
    "Wait",
    "manifest_digest",
]

NO_ROUND = RoundId(0)


class Signed:
    """What one party says under its Ed25519 key: the signature covers every field but itself.

    Attributes:
        DOMAIN: says what is signed, so that a signature over one kind is none over another.
    """

    __slots__ = ()

    DOMAIN: ClassVar[str]

    def statement(self) -> bytes:
        """Return the bytes that the signature covers."""
        names = (field.name for field in fields(self))  # type: ignore[arg-type]  # a dataclass
        values = (getattr(self, name) for name in names if name != "signature")
        return canonical(self.DOMAIN, *map(_signed, values))


class CoversRows:
    """What says which item rows vectors cover, by their number and the digest of their list."""

    __slots__ = ()

    n_rows: int
    rows_digest: bytes

    @property
    def rows(self) -> StatedRows:
        """The item rows."""
        return StatedRows(n_rows=self.n_rows, digest=self.rows_digest)


def _signed(value: Any) -> bytes | str | int:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader(Signed, CoversRows):
    """Announces one client's update of one round and binds it to everything it is about.

    `kind`, `base_round`, `base_state` and `key_list` are what the coordinator told this client,
    and what followed from it. They are signed, so that updates of clients that were told
    different things cannot end up in one sum.

    Attributes:
        base_round: the published round whose model the update starts from.
        base_state: digest of that model as this client has it, 32 bytes; keyed by the group key
            where the coordinator must not know the model.
        key_list: digest of what the round's clients agreed on before, under masks the list of their
            keys; empty where they agree on nothing.
        nonce: 16 random bytes that enter the names of the sum's tags; empty where it has none.
        n_rows, rows_digest: the item rows that the vector covers; see `StatedRows`.
        length: bytes of the protected vector.
        digest: BLAKE3 of those bytes, 32 bytes.
        signature: Ed25519 over `statement()`, 64 bytes; empty while unsigned.
    """

    DOMAIN: ClassVar[str] = "fedrec upload v4"

    protocol_version: Version
    federation: Name
    run: Name
    round: Round
    kind: Kind
    base_round: Round
    base_state: Digest
    key_list: MaybeDigest
    nonce: Nonce
    epoch: Number
    client_id: Client
    catalogue_fingerprint: Name
    plan_fingerprint: Name
    length: Number
    digest: Digest
    n_rows: RowCount = 0
    rows_digest: Digest = UNSAID
    signature: Signature = b""

    @property
    def blob(self) -> Blob:
        """What the chunks that follow must be."""
        return Blob(length=self.length, digest=self.digest)


def manifest_digest(run: str, round_id: RoundId, contributions: tuple[UploadHeader, ...]) -> bytes:
    """Return the digest of a round's contribution list, independent of the order of arrival."""
    ordered = sorted(contributions, key=lambda header: header.client_id)
    return digest(
        "fedrec manifest v1",
        run,
        round_id,
        *(part for header in ordered for part in (header.statement(), header.signature)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealStatement(Signed, CoversRows):
    """The key authority's signed word on what a round's sum is, or on why it does not open it.

    Attributes:
        manifest_digest: `manifest_digest` of the contributions that were summed.
        state_tag: keyed digest (under the epoch's group key) of the shared model after the sum was
            applied.
        published_digest: BLAKE3 of the sealed sum.
        metrics: the metrics segment of the sum, little-endian int64.
        n_rows, rows_digest: the item rows that vectors of the rounds after it cover; see
            `StatedRows`. The key holder of the count round says it first.
        refused: why nothing was opened, or nothing is published, for operators; else empty.
        paused: cells that take part no more, because one of their members made a sum unfit: all of
            this key epoch, in ascending order. What is published is over the others.
        sequence: one above that of the statement before; the first has 1.
        previous: `digest` of the statement before.
        kind: what the round is for.
        trained: training rounds in the model after it.
        charged: noisy sums that were opened, this one with them.
    """

    DOMAIN: ClassVar[str] = "fedrec reveal v5"

    federation: Name
    run: Name
    round: Round
    epoch: Number
    client_id: Client
    manifest_digest: Digest
    state_tag: Digest = UNSAID
    published_digest: Digest = UNSAID
    metrics: Metrics = b""
    n_rows: RowCount = 0
    rows_digest: Digest = UNSAID
    refused: Refusal = ""
    paused: Cells = ()
    signature: Signature = b""
    sequence: Number = 1
    previous: Digest = UNSAID
    kind: Kind = "train"
    trained: Number = 0
    charged: Number = 0

    def digest(self) -> bytes:
        """Return what the next statement names as the one before it."""
        return digest("fedrec reveal link v1", self.statement(), self.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Signed, CoversRows):
    """A client's signed word on the model that it has after a round, under the epoch's group key.

    In the papers' protocol each client sends one for every sum that it decrypted. Under every
    protection one goes with a copy of the model for late joiners, also where the round was
    published in an earlier epoch.

    Attributes:
        state_tag: keyed digest of the shared model after the round.
        metrics: the metrics segment of the sum, little-endian int64; empty with a copy.
        n_rows, rows_digest: the item rows that vectors of the rounds after it cover.
    """

    DOMAIN: ClassVar[str] = "fedrec report v1"

    federation: Name
    run: Name
    round: Round
    epoch: Number
    client_id: Client
    state_tag: Digest
    metrics: Metrics = b""
    n_rows: RowCount = 0
    rows_digest: Digest = UNSAID
    signature: Signature = b""

    @property
    def model(self) -> tuple[bytes, StatedRows]:
        """What clients who have the same model say alike, whatever they measured."""
        return self.state_tag, self.rows

    def content(self) -> tuple[bytes | int, ...]:
        """Return what clients who decrypted the same sum say alike."""
        return self.state_tag, self.metrics, self.n_rows, self.rows_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationInfo:
    """What a client learns when it calls for the first time.

    Attributes:
        plan_json: the plan's canonical JSON (`fedrec.plan.agreement`).
        roster_json: the signed roster (`fedrec.identity.roster`).
        server_context: the keyless context of the protection.
        wrapped_secrets: this client's secrets of the epoch, sealed to its X25519 key; empty
            where the caller is not in the roster.
        published_round: the last published round, 0 before the first.
        statement: the key authority's word on that round, for the revealer.
    """

    protocol_version: Version
    federation: Name
    run: Name
    plan_json: Document
    catalogue_fingerprint: Name
    n_items: RowCount
    epoch: Number
    roster_json: DocumentPart
    server_context: DocumentPart
    wrapped_secrets: DocumentPart
    published_round: Round
    statement: RevealStatement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do now; ask again.

    Attributes:
        about: a round that was given up, or closed without this client, for that reason; 0 for
            none.
    """

    reason: Reason = ""
    about: Round = NO_ROUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Contribute to an open round, starting from the model of `base_round`."""

    round: Round
    kind: Kind
    base_round: Round
    seconds_left: Seconds
    epoch: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """Recompute a round's sum from its contributions and reveal it: the key authority's task."""

    round: Round
    kind: Kind
    base_round: Round
    contributions: Annotated[tuple[UploadHeader, ...], check_contributions]
    sum: Blob
    epoch: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTask:
    """Take the next step of a round; the first one's message was the answer to `Train`."""

    round: Round
    step: StepName
    epoch: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMessage(Signed):
    """What a client sends in one step of a round; vectors travel as updates.

    Attributes:
        step: its name; never that of the step that brings the vector.
        body: what the protection's `ClientSide` returned.
        signature: Ed25519 over `statement()`, 64 bytes; empty while unsigned.
    """

    DOMAIN: ClassVar[str] = "fedrec mask message v1"

    federation: Name
    run: Name
    round: Round
    epoch: Number
    client_id: Client
    step: StepName
    body: StepBody
    signature: Signature = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeSnapshot:
    """Somebody joined late: send a (sealed) copy of the model of `round`."""

    round: Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over."""

    reason: Reason
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What a client remembers of a run, so that a peer that forgot, or a copy, is recognised.

    A client answers no round twice, so that the round counts its updates.

    Attributes:
        acknowledged_round: of the last update that was acknowledged; 0 for none.
        acknowledged_digest: that update's BLAKE3; empty for none.
        statement: the key authority's word on the client's version, where the coordinator seems
            not to know that round.
        header: of that update, where the coordinator seems not to know it.
    """

    acknowledged_round: Round = NO_ROUND
    acknowledged_digest: MaybeDigest = b""
    statement: RevealStatement | None = None
    header: UploadHeader | None = None


NOTHING = Remembered()


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The last update that a coordinator acknowledged to a client; None for none."""

    header: UploadHeader | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The answer to a long poll: what to do, and how far the federation is.

    Attributes:
        epoch: the present key epoch; 0 where nobody said it.
        latest: the client's last update, where that is not the one which it remembers.
    """

    published_round: Round
    task: Wait | Train | StepTask | Reveal | MakeSnapshot | Finished
    epoch: Number = 0
    latest: Latest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """What an applicant hears.

    Attributes:
        epoch: the present key epoch.
        listed: whether its roster lists the applicant, who can enrol then.
        certificate: the applicant's (PEM), once it is listed.
    """

    epoch: Number
    listed: bool
    certificate: DocumentPart = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStatus:
    """How much of an upload the coordinator holds durably."""

    offset: Number
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRound:
    """A round's result.

    Attributes:
        contributions: whose updates were counted.
        statement: the key authority's, where it opened the sum; else None.
        blob: with a statement the sum, packed as under protection `none`
            (`fedrec.protection.none`) and sealed under the epoch's group key; in the papers'
            protocol the ciphertext sum; else the packed sum.
    """

    round: Round
    epoch: Number
    kind: Kind
    contributions: Annotated[tuple[UploadHeader, ...], check_contributions]
    statement: RevealStatement | None
    blob: BehindIt


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The shared model after a published round, sealed where the protection hides it.

    Attributes:
        statement: the key authority's on the round, where that vouches for the model.
        reports: of clients who have the same model, where they vouch for it.
    """

    round: Round
    epoch: Number
    statement: RevealStatement | None
    reports: Annotated[tuple[Report, ...], check_reports]
    blob: BehindIt
