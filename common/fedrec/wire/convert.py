"""Dataclasses to protocol buffers and back; what a peer sent is checked field by field.

Blobs travel in chunks behind the message that announces them: the functions for
`PublishedRound` and `Snapshot` write the announcement, and read it together with the blob that
was assembled. Tasks are in `convert_task`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from fedrec.errors import ProtocolError
from fedrec.wire.chunks import Blob
from fedrec.wire.limits import (
    MAX_CONTRIBUTIONS,
    MAX_METRICS_BYTES,
    MAX_REASON_CHARS,
    MAX_REPORTS,
    MAX_ROWS,
    NONCE_BYTES,
    check_bytes,
    check_client_id,
    check_count,
    check_exact,
    check_kind,
    check_number,
    check_paused,
    check_round,
    check_text,
    check_version,
)
from fedrec.wire.messages import (
    Application,
    FederationInfo,
    PublishedRound,
    Report,
    RevealStatement,
    Snapshot,
    UploadHeader,
    UploadStatus,
)
from fedrec.wire.v1 import coordinator_pb2, model_pb2, update_pb2

__all__ = [
    "application_from_proto",
    "application_to_proto",
    "blob_from_proto",
    "blob_to_proto",
    "chunk_from_proto",
    "contributions_from_proto",
    "federation_from_proto",
    "federation_to_proto",
    "part_of",
    "published_from_proto",
    "published_to_proto",
    "report_from_proto",
    "report_to_proto",
    "reveal_statement_from_proto",
    "reveal_statement_to_proto",
    "snapshot_from_proto",
    "snapshot_to_proto",
    "upload_header_from_proto",
    "upload_header_to_proto",
    "upload_status_from_proto",
    "upload_status_to_proto",
]

Part = TypeVar("Part")

MAX_PLAN_BYTES = 1024 * 1024
MAX_PART_BYTES = 4 * 1024 * 1024


def upload_header_to_proto(header: UploadHeader) -> update_pb2.UploadHeader:
    """Write an upload's header."""
    return update_pb2.UploadHeader(
        protocol_version=header.protocol_version,
        federation=header.federation,
        run=header.run,
        round=header.round,
        kind=header.kind,
        base_round=header.base_round,
        base_state=header.base_state,
        key_list=header.key_list,
        nonce=header.nonce,
        epoch=header.epoch,
        client_id=header.client_id,
        catalogue_fingerprint=header.catalogue_fingerprint,
        plan_fingerprint=header.plan_fingerprint,
        length=header.length,
        digest=header.digest,
        n_rows=header.n_rows,
        rows_digest=header.rows_digest,
        signature=header.signature,
    )


def upload_header_from_proto(message: update_pb2.UploadHeader) -> UploadHeader:
    """Read an upload's header; the signature is not verified."""
    return UploadHeader(
        protocol_version=check_version(message.protocol_version, "header.protocol_version"),
        federation=check_text(message.federation, "header.federation"),
        run=check_text(message.run, "header.run"),
        round=check_round(message.round, "header.round"),
        kind=check_kind(message.kind, "header.kind"),
        base_round=check_round(message.base_round, "header.base_round"),
        base_state=check_exact(message.base_state, "header.base_state", 32),
        key_list=check_exact(message.key_list, "header.key_list", 0, 32),
        nonce=check_exact(message.nonce, "header.nonce", 0, NONCE_BYTES),
        epoch=check_number(message.epoch, "header.epoch"),
        client_id=check_client_id(message.client_id, "header.client_id"),
        catalogue_fingerprint=check_text(
            message.catalogue_fingerprint, "header.catalogue_fingerprint"
        ),
        plan_fingerprint=check_text(message.plan_fingerprint, "header.plan_fingerprint"),
        length=check_number(message.length, "header.length"),
        digest=check_exact(message.digest, "header.digest", 32),
        n_rows=check_number(message.n_rows, "header.n_rows", maximum=MAX_ROWS),
        rows_digest=check_exact(message.rows_digest, "header.rows_digest", 32),
        signature=check_exact(message.signature, "header.signature", 0, 64),
    )


def reveal_statement_to_proto(statement: RevealStatement) -> model_pb2.RevealStatement:
    """Write the key authority's statement."""
    return model_pb2.RevealStatement(
        federation=statement.federation,
        run=statement.run,
        round=statement.round,
        epoch=statement.epoch,
        client_id=statement.client_id,
        manifest_digest=statement.manifest_digest,
        state_tag=statement.state_tag,
        published_digest=statement.published_digest,
        metrics=statement.metrics,
        n_rows=statement.n_rows,
        rows_digest=statement.rows_digest,
        refused=statement.refused,
        paused=statement.paused,
        signature=statement.signature,
        sequence=statement.sequence,
        previous=statement.previous,
        kind=statement.kind,
        trained=statement.trained,
        charged=statement.charged,
    )


def reveal_statement_from_proto(message: model_pb2.RevealStatement) -> RevealStatement:
    """Read the key authority's statement; the signature is not verified."""
    return RevealStatement(
        federation=check_text(message.federation, "statement.federation"),
        run=check_text(message.run, "statement.run"),
        round=check_round(message.round, "statement.round"),
        epoch=check_number(message.epoch, "statement.epoch"),
        client_id=check_client_id(message.client_id, "statement.client_id"),
        manifest_digest=check_exact(message.manifest_digest, "statement.manifest_digest", 32),
        state_tag=check_exact(message.state_tag, "statement.state_tag", 32),
        published_digest=check_exact(message.published_digest, "statement.published_digest", 32),
        metrics=_metrics(message.metrics, "statement.metrics"),
        n_rows=check_number(message.n_rows, "statement.n_rows", maximum=MAX_ROWS),
        rows_digest=check_exact(message.rows_digest, "statement.rows_digest", 32),
        refused=check_text(
            message.refused, "statement.refused", max_chars=MAX_REASON_CHARS, empty=True
        ),
        paused=check_paused(message.paused, "statement.paused"),
        signature=check_exact(message.signature, "statement.signature", 0, 64),
        sequence=check_number(message.sequence, "statement.sequence"),
        previous=check_exact(message.previous, "statement.previous", 32),
        kind=check_kind(message.kind, "statement.kind"),
        trained=check_number(message.trained, "statement.trained"),
        charged=check_number(message.charged, "statement.charged"),
    )


def report_to_proto(report: Report) -> model_pb2.Report:
    """Write a client's report."""
    return model_pb2.Report(
        federation=report.federation,
        run=report.run,
        round=report.round,
        epoch=report.epoch,
        client_id=report.client_id,
        state_tag=report.state_tag,
        metrics=report.metrics,
        n_rows=report.n_rows,
        rows_digest=report.rows_digest,
        signature=report.signature,
    )


def report_from_proto(message: model_pb2.Report) -> Report:
    """Read a client's report; the signature is not verified."""
    return Report(
        federation=check_text(message.federation, "report.federation"),
        run=check_text(message.run, "report.run"),
        round=check_round(message.round, "report.round"),
        epoch=check_number(message.epoch, "report.epoch"),
        client_id=check_client_id(message.client_id, "report.client_id"),
        state_tag=check_exact(message.state_tag, "report.state_tag", 32),
        metrics=_metrics(message.metrics, "report.metrics"),
        n_rows=check_number(message.n_rows, "report.n_rows", maximum=MAX_ROWS),
        rows_digest=check_exact(message.rows_digest, "report.rows_digest", 32),
        signature=check_exact(message.signature, "report.signature", 0, 64),
    )


def federation_to_proto(info: FederationInfo) -> coordinator_pb2.Federation:
    """Write what a client learns first."""
    message = coordinator_pb2.Federation(
        protocol_version=info.protocol_version,
        federation=info.federation,
        run=info.run,
        plan_json=info.plan_json,
        catalogue_fingerprint=info.catalogue_fingerprint,
        n_items=info.n_items,
        epoch=info.epoch,
        roster_json=info.roster_json,
        server_context=info.server_context,
        wrapped_secrets=info.wrapped_secrets,
        published_round=info.published_round,
    )
    if info.statement is not None:
        message.statement.CopyFrom(reveal_statement_to_proto(info.statement))
    return message


def federation_from_proto(message: coordinator_pb2.Federation) -> FederationInfo:
    """Read what a client learns first.

    Raises:
        VersionMismatch: when the coordinator speaks another major version.
    """
    return FederationInfo(
        protocol_version=check_version(message.protocol_version, "federation.protocol_version"),
        federation=check_text(message.federation, "federation.federation"),
        run=check_text(message.run, "federation.run"),
        plan_json=check_bytes(message.plan_json, "federation.plan_json", max_bytes=MAX_PLAN_BYTES),
        catalogue_fingerprint=check_text(
            message.catalogue_fingerprint, "federation.catalogue_fingerprint"
        ),
        n_items=check_number(message.n_items, "federation.n_items", maximum=MAX_ROWS),
        epoch=check_number(message.epoch, "federation.epoch"),
        roster_json=check_bytes(
            message.roster_json, "federation.roster_json", max_bytes=MAX_PART_BYTES
        ),
        server_context=check_bytes(
            message.server_context, "federation.server_context", max_bytes=MAX_PART_BYTES
        ),
        wrapped_secrets=check_bytes(
            message.wrapped_secrets, "federation.wrapped_secrets", max_bytes=MAX_PART_BYTES
        ),
        published_round=check_round(message.published_round, "federation.published_round"),
        statement=_statement(message),
    )


def upload_status_to_proto(status: UploadStatus) -> coordinator_pb2.UploadStatus:
    """Write how much of an upload is held."""
    return coordinator_pb2.UploadStatus(offset=status.offset, accepted=status.accepted)


def upload_status_from_proto(message: coordinator_pb2.UploadStatus) -> UploadStatus:
    """Read how much of an upload is held."""
    return UploadStatus(
        offset=check_number(message.offset, "upload_status.offset"), accepted=message.accepted
    )


def published_to_proto(published: PublishedRound) -> model_pb2.Published:
    """Write the announcement of a published round; its blob follows in chunks."""
    return model_pb2.Published(
        round=published.round,
        epoch=published.epoch,
        kind=published.kind,
        contributions=[upload_header_to_proto(h) for h in published.contributions],
        statement=_stated(published.statement),
        blob=blob_to_proto(Blob.of(published.blob)),
    )


def published_from_proto(message: model_pb2.Published, blob: bytes) -> PublishedRound:
    """Read a published round whose blob was assembled and checked."""
    return PublishedRound(
        round=check_round(message.round, "published.round"),
        epoch=check_number(message.epoch, "published.epoch"),
        kind=check_kind(message.kind, "published.kind"),
        contributions=contributions_from_proto(message.contributions, "published.contributions"),
        statement=_statement(message),
        blob=blob,
    )


def snapshot_to_proto(snapshot: Snapshot) -> model_pb2.Snapshot:
    """Write the announcement of a snapshot; its blob follows in chunks."""
    return model_pb2.Snapshot(
        round=snapshot.round,
        epoch=snapshot.epoch,
        statement=_stated(snapshot.statement),
        reports=[report_to_proto(report) for report in snapshot.reports],
        blob=blob_to_proto(Blob.of(snapshot.blob)),
    )


def snapshot_from_proto(message: model_pb2.Snapshot, blob: bytes) -> Snapshot:
    """Read a snapshot whose blob was assembled and checked."""
    check_count(len(message.reports), "snapshot.reports", maximum=MAX_REPORTS)
    return Snapshot(
        round=check_round(message.round, "snapshot.round"),
        epoch=check_number(message.epoch, "snapshot.epoch"),
        statement=_statement(message),
        reports=tuple(report_from_proto(report) for report in message.reports),
        blob=blob,
    )


def application_to_proto(application: Application) -> coordinator_pb2.Application:
    """Write what an applicant hears."""
    return coordinator_pb2.Application(
        epoch=application.epoch, listed=application.listed, certificate=application.certificate
    )


def application_from_proto(message: coordinator_pb2.Application) -> Application:
    """Read what an applicant hears."""
    return Application(
        epoch=check_number(message.epoch, "application.epoch"),
        listed=message.listed,
        certificate=message.certificate,
    )


def blob_to_proto(blob: Blob) -> update_pb2.BlobHeader:
    """Write the announcement of a blob."""
    return update_pb2.BlobHeader(length=blob.length, digest=blob.digest)


def blob_from_proto(message: update_pb2.BlobHeader, field: str) -> Blob:
    """Read the announcement of a blob; whether it is too long is the assembler's question."""
    return Blob(
        length=check_number(message.length, f"{field}.length"),
        digest=check_exact(message.digest, f"{field}.digest", 32),
    )


def part_of(kind: type[Part], offset: int, data: bytes) -> Part:
    """Write a piece of a blob as the part of a stream, copying it once.

    Args:
        kind: a message with a field `chunk`.
    """
    part = kind()
    chunk = part.chunk  # type: ignore[attr-defined]  # generated
    chunk.offset = offset
    chunk.data = data
    return part


def chunk_from_proto(message: update_pb2.Chunk) -> tuple[int, bytes]:
    """Read a piece of a blob; the assembler judges it."""
    return message.offset, message.data


def contributions_from_proto(
    messages: Iterable[update_pb2.UploadHeader], field: str
) -> tuple[UploadHeader, ...]:
    """Read a round's list of contributions, in which no client appears twice."""
    found = list(messages)
    check_count(len(found), field, maximum=MAX_CONTRIBUTIONS)
    headers = tuple(upload_header_from_proto(message) for message in found)
    if len({header.client_id for header in headers}) < len(headers):
        raise ProtocolError(f"{field} names a client twice.")
    return headers


def _metrics(value: bytes, field: str) -> bytes:
    return check_bytes(value, field, max_bytes=MAX_METRICS_BYTES)


def _stated(statement: RevealStatement | None) -> model_pb2.RevealStatement | None:
    return None if statement is None else reveal_statement_to_proto(statement)


def _statement(
    message: model_pb2.Published | model_pb2.Snapshot | coordinator_pb2.Federation,
) -> RevealStatement | None:
    if not message.HasField("statement"):
        return None
    return reveal_statement_from_proto(message.statement)
