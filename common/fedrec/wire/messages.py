"""Messages as plain values. `convert` turns them into protocol buffers and back."""

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
    """A statement of one party under its Ed25519 key. The signature covers every other field.

    Attributes:
        DOMAIN: the kind of message, so that a signature over one kind is invalid for others.
    """

    __slots__ = ()

    DOMAIN: ClassVar[str]

    def statement(self) -> bytes:
        """Return the bytes that the signature covers."""
        names = (field.name for field in fields(self))  # type: ignore[arg-type]  # a dataclass
        values = (getattr(self, name) for name in names if name != "signature")
        return canonical(self.DOMAIN, *map(_signed, values))


class CoversRows:
    """A message that names the item rows of vectors, by their number and their list's digest."""

    __slots__ = ()

    n_rows: int
    rows_digest: bytes

    @property
    def rows(self) -> StatedRows:
        """Return the item rows."""
        return StatedRows(n_rows=self.n_rows, digest=self.rows_digest)


def _signed(value: Any) -> bytes | str | int:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader(Signed, CoversRows):
    """Announces a client's update of one round, and binds it to its round, model and rows.

    `kind`, `base_round`, `base_state` and `key_list` follow from what the coordinator told this
    client. They are signed, so updates of clients that were told different things cannot enter the
    same sum.

    Attributes:
        base_round: the published round whose model the update starts from.
        base_state: 32-byte digest of that model as this client has it. It is keyed by the group key
            if the coordinator must not know the model.
        key_list: digest of what the round's clients agreed on before: under masks the list of their
            keys. Empty if there is no agreement.
        nonce: 16 random bytes that enter the names of the sum's tags, or empty if it has no tags.
        n_rows, rows_digest: the item rows that the vector covers. See `StatedRows`.
        length: the size of the protected vector in bytes.
        digest: BLAKE3 of those bytes, 32 bytes.
        signature: Ed25519 over `statement()`, 64 bytes, or empty while unsigned.
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
        """Return the length and digest of the chunks that follow."""
        return Blob(length=self.length, digest=self.digest)


def manifest_digest(run: str, round_id: RoundId, contributions: tuple[UploadHeader, ...]) -> bytes:
    """Return the digest of a round's contribution list, whatever the order of arrival."""
    ordered = sorted(contributions, key=lambda header: header.client_id)
    return digest(
        "fedrec manifest v1",
        run,
        round_id,
        *(part for header in ordered for part in (header.statement(), header.signature)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealStatement(Signed, CoversRows):
    """The key authority's signed statement on a round's sum, or on why it does not open it.

    Attributes:
        manifest_digest: `manifest_digest` of the contributions that were summed.
        state_tag: keyed digest (under the epoch's group key) of the shared model after the sum was
            applied.
        published_digest: BLAKE3 of the sealed sum.
        metrics: the metrics segment of the sum, little-endian int64.
        n_rows, rows_digest: the item rows that vectors of later rounds cover. See `StatedRows`. The
            key holder of the count round states them first.
        refused: why nothing was opened or published, for operators, or empty.
        paused: cells that sit out, because one of their members made a sum invalid: all of this key
            epoch, in ascending order. The published sum is over the other cells.
        sequence: one more than the previous statement's sequence. The first has 1.
        previous: the previous statement's `digest`.
        kind: the kind of the round.
        trained: the number of training rounds in the resulting model.
        charged: the number of opened noisy sums, including this one.
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
        """Return the digest by which the next statement refers to this one."""
        return digest("fedrec reveal link v1", self.statement(), self.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Signed, CoversRows):
    """A client's signed report on its model after a round, under the epoch's group key.

    In the papers' protocol each client sends one for every sum that it decrypted. Under every
    protection, one comes with a snapshot for late joiners, even if the round was published in an
    earlier epoch.

    Attributes:
        state_tag: keyed digest of the shared model after the round.
        metrics: the metrics segment of the sum, little-endian int64, or empty with a snapshot.
        n_rows, rows_digest: the item rows that vectors of later rounds cover.
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
        """Return the fields on which clients with the same model agree, whatever they measured."""
        return self.state_tag, self.rows

    def content(self) -> tuple[bytes | int, ...]:
        """Return the fields on which clients agree that decrypted the same sum."""
        return self.state_tag, self.metrics, self.n_rows, self.rows_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationInfo:
    """The facts that a client learns in its first call.

    Attributes:
        plan_json: the plan's canonical JSON (`fedrec.plan.agreement`).
        roster_json: the signed roster (`fedrec.identity.roster`).
        server_context: the keyless context of the protection.
        wrapped_secrets: this client's secrets of the epoch, sealed to its X25519 key. Empty if the
            caller is not in the roster.
        published_round: the last published round, or 0 before the first.
        statement: the key authority's statement on that round, for the revealer.
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
    """There is no task now. The client should ask again.

    Attributes:
        about: a round that was abandoned, or closed without this client, for that reason, or 0.
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
    """Recompute a round's sum from its contributions and open it.

    Only the key authority gets this task.
    """

    round: Round
    kind: Kind
    base_round: Round
    contributions: Annotated[tuple[UploadHeader, ...], check_contributions]
    sum: Blob
    epoch: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTask:
    """Do the next step of a round. The first step's message was the answer to `Train`."""

    round: Round
    step: StepName
    epoch: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMessage(Signed):
    """A client's message for one step of a round. Vectors travel as updates.

    Attributes:
        step: the step's name, never that of the step with the vector.
        body: the bytes that the protection's `ClientSide` returned.
        signature: Ed25519 over `statement()`, 64 bytes, or empty while unsigned.
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
    """Send a (sealed) snapshot of the model of `round` for a late joiner."""

    round: Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over."""

    reason: Reason
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A client's memory of a run, by which an outdated peer or a copied folder is recognised.

    A client answers no round twice, so that the round counts its updates.

    Attributes:
        acknowledged_round: the round of the last acknowledged update, or 0.
        acknowledged_digest: the BLAKE3 digest of that update, or empty.
        statement: the key authority's statement on the client's version, if the coordinator seems
            not to know that round.
        header: the header of that update, if the coordinator seems not to know it.
    """

    acknowledged_round: Round = NO_ROUND
    acknowledged_digest: MaybeDigest = b""
    statement: RevealStatement | None = None
    header: UploadHeader | None = None


NOTHING = Remembered()


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The last update that a coordinator acknowledged to a client, or None."""

    header: UploadHeader | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The answer to a long poll: the client's task and the federation's progress.

    Attributes:
        epoch: the current key epoch, or 0 if it is unknown.
        latest: the client's last update, if the client remembers a different one.
    """

    published_round: Round
    task: Wait | Train | StepTask | Reveal | MakeSnapshot | Finished
    epoch: Number = 0
    latest: Latest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The answer to an application.

    Attributes:
        epoch: the current key epoch.
        listed: whether its roster lists the applicant, which can then enrol.
        certificate: the applicant's certificate (PEM), once it is listed.
    """

    epoch: Number
    listed: bool
    certificate: DocumentPart = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStatus:
    """The part of an upload that the coordinator has durably."""

    offset: Number
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRound:
    """The result of a round.

    Attributes:
        contributions: the headers of the counted updates.
        statement: the key authority's statement, if it opened the sum, or None.
        blob: the sum. With a statement, it is packed as under protection `none`
            (`fedrec.protection.none`) and sealed under the epoch's group key. In the papers'
            protocol it is the ciphertext sum. Otherwise it is the packed sum.
    """

    round: Round
    epoch: Number
    kind: Kind
    contributions: Annotated[tuple[UploadHeader, ...], check_contributions]
    statement: RevealStatement | None
    blob: BehindIt


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The shared model after a published round, sealed if the protection hides it.

    Attributes:
        statement: the key authority's statement on the round, if that confirms the model.
        reports: the reports of clients with the same model, if they confirm it.
    """

    round: Round
    epoch: Number
    statement: RevealStatement | None
    reports: Annotated[tuple[Report, ...], check_reports]
    blob: BehindIt
