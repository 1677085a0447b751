"""What travels, as plain values; `convert` turns them into protocol buffers at the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedrec.ids import ClientId, RoundId, canonical, digest
from fedrec.wire.chunks import Blob
from fedrec.wire.stated_rows import UNSAID, StatedRows

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

PROTOCOL_VERSION = "8.0"
"""Peers with another major number are refused."""

RoundKind = Literal["count", "train", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
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

    protocol_version: str
    federation: str
    run: str
    round: RoundId
    kind: RoundKind
    base_round: RoundId
    base_state: bytes
    key_list: bytes
    nonce: bytes
    epoch: int
    client_id: ClientId
    catalogue_fingerprint: str
    plan_fingerprint: str
    length: int
    digest: bytes
    n_rows: int = 0
    rows_digest: bytes = UNSAID
    signature: bytes = b""

    @property
    def rows(self) -> StatedRows:
        """The item rows that the vector covers."""
        return StatedRows(n_rows=self.n_rows, digest=self.rows_digest)

    @property
    def blob(self) -> Blob:
        """What the chunks that follow must be."""
        return Blob(length=self.length, digest=self.digest)

    def statement(self) -> bytes:
        """Return the bytes that the signature covers: every field but itself."""
        return canonical(
            "fedrec upload v4",
            self.protocol_version,
            self.federation,
            self.run,
            self.round,
            self.kind,
            self.base_round,
            self.base_state,
            self.key_list,
            self.nonce,
            self.epoch,
            self.client_id,
            self.catalogue_fingerprint,
            self.plan_fingerprint,
            self.length,
            self.digest,
            self.n_rows,
            self.rows_digest,
        )


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
class RevealStatement:
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

    federation: str
    run: str
    round: RoundId
    epoch: int
    client_id: ClientId
    manifest_digest: bytes
    state_tag: bytes = UNSAID
    published_digest: bytes = UNSAID
    metrics: bytes = b""
    n_rows: int = 0
    rows_digest: bytes = UNSAID
    refused: str = ""
    paused: tuple[int, ...] = ()
    signature: bytes = b""
    sequence: int = 1
    previous: bytes = UNSAID
    kind: RoundKind = "train"
    trained: int = 0
    charged: int = 0

    @property
    def rows(self) -> StatedRows:
        """The item rows that vectors of the rounds after it cover."""
        return StatedRows(n_rows=self.n_rows, digest=self.rows_digest)

    def digest(self) -> bytes:
        """Return what the next statement names as the one before it."""
        return digest("fedrec reveal link v1", self.statement(), self.signature)

    def statement(self) -> bytes:
        """Return the bytes that the signature covers: every field but itself."""
        return canonical(
            "fedrec reveal v5",
            self.federation,
            self.run,
            self.round,
            self.epoch,
            self.client_id,
            self.manifest_digest,
            self.state_tag,
            self.published_digest,
            self.metrics,
            self.n_rows,
            self.rows_digest,
            self.refused,
            ",".join(map(str, self.paused)),
            self.sequence,
            self.previous,
            self.kind,
            self.trained,
            self.charged,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A client's signed word on the model that it has after a round, under the epoch's group key.

    In the papers' protocol each client sends one for every sum that it decrypted. Under every
    protection one goes with a copy of the model for late joiners, also where the round was
    published in an earlier epoch.

    Attributes:
        state_tag: keyed digest of the shared model after the round.
        metrics: the metrics segment of the sum, little-endian int64; empty with a copy.
        n_rows, rows_digest: the item rows that vectors of the rounds after it cover.
    """

    federation: str
    run: str
    round: RoundId
    epoch: int
    client_id: ClientId
    state_tag: bytes
    metrics: bytes = b""
    n_rows: int = 0
    rows_digest: bytes = UNSAID
    signature: bytes = b""

    @property
    def rows(self) -> StatedRows:
        """The item rows that vectors of the rounds after it cover."""
        return StatedRows(n_rows=self.n_rows, digest=self.rows_digest)

    @property
    def model(self) -> tuple[bytes, StatedRows]:
        """What clients who have the same model say alike, whatever they measured."""
        return self.state_tag, self.rows

    def content(self) -> tuple[bytes | int, ...]:
        """Return what clients who decrypted the same sum say alike."""
        return self.state_tag, self.metrics, self.n_rows, self.rows_digest

    def statement(self) -> bytes:
        """Return the bytes that the signature covers: every field but itself."""
        return canonical(
            "fedrec report v1",
            self.federation,
            self.run,
            self.round,
            self.epoch,
            self.client_id,
            *self.content(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationInfo:
    """What a client learns when it calls for the first time.

    Attributes:
        plan_json: the plan's canonical JSON (`fedrec.config.plan`).
        roster_json: the signed roster (`fedrec.identity.roster`).
        server_context: the keyless context of the protection.
        wrapped_secrets: this client's secrets of the epoch, sealed to its X25519 key; empty
            where the caller is not in the roster.
        published_round: the last published round, 0 before the first.
        statement: the key authority's word on that round, for the revealer.
    """

    protocol_version: str
    federation: str
    run: str
    plan_json: bytes
    catalogue_fingerprint: str
    n_items: int
    epoch: int
    roster_json: bytes
    server_context: bytes
    wrapped_secrets: bytes
    published_round: RoundId
    statement: RevealStatement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do now; ask again.

    Attributes:
        about: a round that was given up, or closed without this client, for that reason; 0 for
            none.
    """

    reason: str = ""
    about: RoundId = NO_ROUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Contribute to an open round, starting from the model of `base_round`."""

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    seconds_left: float
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """Recompute a round's sum from its contributions and reveal it: the key authority's task."""

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    contributions: tuple[UploadHeader, ...]
    sum_length: int
    sum_digest: bytes
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTask:
    """Take the next step of a round; the first one's message was the answer to `Train`."""

    round: RoundId
    step: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMessage:
    """What a client sends in one step of a round; vectors travel as updates.

    Attributes:
        step: its name; never that of the step that brings the vector.
        body: what the protection's `ClientSide` returned.
        signature: Ed25519 over `statement()`, 64 bytes; empty while unsigned.
    """

    federation: str
    run: str
    round: RoundId
    epoch: int
    client_id: ClientId
    step: str
    body: bytes
    signature: bytes = b""

    def statement(self) -> bytes:
        """Return the bytes that the signature covers: every field but itself."""
        return canonical(
            "fedrec mask message v1",
            self.federation,
            self.run,
            self.round,
            self.epoch,
            self.client_id,
            self.step,
            self.body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeSnapshot:
    """Somebody joined late: send a (sealed) copy of the model of `round`."""

    round: RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What a client remembers of a run, so that a peer that forgot, or a copy, is recognised.

    A client answers no round twice, so that the round counts its updates.

    Attributes:
        round: of the last update that was acknowledged; 0 for none.
        digest: that update's BLAKE3; empty for none.
        statement: the key authority's word on the client's version, where the coordinator seems
            not to know that round.
        header: of that update, where the coordinator seems not to know it.
    """

    round: RoundId = NO_ROUND
    digest: bytes = b""
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

    published_round: RoundId
    task: Wait | Train | StepTask | Reveal | MakeSnapshot | Finished
    epoch: int = 0
    latest: Latest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """What an applicant hears.

    Attributes:
        epoch: the present key epoch.
        listed: whether its roster lists the applicant, who can enrol then.
        certificate: the applicant's (PEM), once it is listed.
    """

    epoch: int
    listed: bool
    certificate: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStatus:
    """How much of an upload the coordinator holds durably."""

    offset: int
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

    round: RoundId
    epoch: int
    kind: RoundKind
    contributions: tuple[UploadHeader, ...]
    statement: RevealStatement | None
    blob: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The shared model after a published round, sealed where the protection hides it.

    Attributes:
        statement: the key authority's on the round, where that vouches for the model.
        reports: of clients who have the same model, where they vouch for it.
    """

    round: RoundId
    epoch: int
    statement: RevealStatement | None
    reports: tuple[Report, ...]
    blob: bytes
