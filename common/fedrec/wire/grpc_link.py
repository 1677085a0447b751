"""The coordinator over gRPC: every call has a deadline, and interrupted uploads resume."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from fedrec import __version__
from fedrec.errors import CorruptUpload, ProtocolError
from fedrec.identity.certificates import Credentials
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import CHUNK_BYTES, Blob, chunk_to_part, chunks, part_stream
from fedrec.wire.convert import (
    APPLICATION,
    BLOB,
    FEDERATION,
    PUBLISHED,
    REMEMBERED,
    REPORT,
    SNAPSHOT,
    STATEMENT,
    STEP_MESSAGE,
    TASK,
    UPLOAD_HEADER,
    UPLOAD_STATUS,
)
from fedrec.wire.grpc_calls import Calls, Deadlines, Message, open_channel
from fedrec.wire.link import Link
from fedrec.wire.messages import (
    NOTHING,
    PROTOCOL_VERSION,
    Application,
    FederationInfo,
    PublishedRound,
    Remembered,
    Report,
    RevealStatement,
    Snapshot,
    StepMessage,
    Task,
    UploadHeader,
    UploadStatus,
)
from fedrec.wire.v1 import coordinator_pb2, masks_pb2, model_pb2, update_pb2
from fedrec.wire.v1.coordinator_pb2_grpc import CoordinatorStub

MAX_DOWNLOAD_BYTES = 512 * 1024 * 1024


class GrpcLink(Link):
    """A synchronous client of the coordinator. Several threads may call its methods.

    Each call is made once. All calls of the protocol can be repeated safely, and the caller decides
    whether to retry. Interrupting a waiting call (Ctrl-C) cancels it.

    Args:
        address: `host:port` of the coordinator.
        credentials: the caller's certificate, and the authority that it trusts.
        deadlines: the deadlines of calls.
        max_download_bytes: the longest blob that is accepted.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        *,
        deadlines: Deadlines | None = None,
        max_download_bytes: int = MAX_DOWNLOAD_BYTES,
    ) -> None:
        channel = open_channel(address, credentials)
        self._calls = Calls(
            channel,
            address,
            credentials,
            deadlines=deadlines or Deadlines(),
            max_download_bytes=max_download_bytes,
        )
        self._stub: Message = CoordinatorStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._submit_update = part_stream(channel, "SubmitUpdate", update_pb2.UploadReceipt)
        self._submit_reveal = part_stream(channel, "SubmitReveal", model_pb2.RoundReceipt)
        self._submit_snapshot = part_stream(channel, "SubmitSnapshot", model_pb2.RoundReceipt)
        self._latest_upload: RoundId | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._calls.close()

    def federation(self, client_id: ClientId) -> FederationInfo:
        """Return the federation's plan, roster and this client's wrapped secrets."""
        request = coordinator_pb2.GetFederationRequest(
            protocol_version=PROTOCOL_VERSION, client_id=client_id, release=__version__
        )
        return FEDERATION.from_proto(self._calls.ask(self._stub.GetFederation, request))

    def catalogue(self, client_id: ClientId) -> bytes:
        """Return the public catalogue file."""
        request = coordinator_pb2.GetCatalogueRequest(client_id=client_id)
        return self._blob(self._stub.GetCatalogue, request)

    def next_task(
        self,
        client_id: ClientId,
        run: str,
        version: RoundId,
        *,
        wait_seconds: float,
        remembered: Remembered = NOTHING,
    ) -> Task:
        """Wait up to `wait_seconds` for a task."""
        request = coordinator_pb2.NextTaskRequest(
            client_id=client_id, run=run, version=version, wait_seconds=wait_seconds
        )
        request.MergeFrom(REMEMBERED.to_proto(remembered))
        seconds = wait_seconds + self._calls.deadlines.poll_grace_seconds
        return TASK.from_proto(self._calls.ask(self._stub.NextTask, request, seconds))

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        """Send an update, resuming an earlier attempt. Return whether it was a duplicate.

        Returns only when the coordinator has the bytes durably. If no earlier attempt can have left
        bytes, the update is sent without asking how much is there.

        The caller made the payload, or read it from a source that checks its digest. Hashing it
        again would take as long as sending it. The coordinator hashes the received bytes.

        Raises:
            CorruptUpload: the payload differs from what the header announces.
        """
        wrong = CorruptUpload("The payload does not have the header's length and digest.")
        if len(payload) != header.length:
            raise wrong
        offset = 0
        if header.length > CHUNK_BYTES and not self._begins(header.round):
            status = self._status(header)
            if status.accepted:
                return True
            offset = status.offset
        parts = _upload_parts(header, payload, offset)
        seconds = self._calls.deadlines.stream(header.length)
        try:
            receipt = self._calls.ask(self._submit_update, parts, seconds)
        except CorruptUpload:
            if Blob.of(payload).digest != header.digest:
                raise wrong from None
            raise
        return bool(receipt.duplicate)

    def contribution(
        self, client_id: ClientId, run: str, round_id: RoundId, contributor: ClientId
    ) -> bytes:
        """Return one contribution of a round that is being revealed."""
        request = coordinator_pb2.FetchContributionRequest(
            run=run, round=round_id, client_id=client_id, contributor=contributor
        )
        return self._blob(self._stub.FetchContribution, request)

    def round_sum(self, client_id: ClientId, run: str, round_id: RoundId) -> bytes:
        """Return the coordinator's sum of the round that is being revealed."""
        request = coordinator_pb2.FetchSumRequest(run=run, round=round_id, client_id=client_id)
        return self._blob(self._stub.FetchSum, request)

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        """Send the key authority's statement. `sealed` is empty if it refuses the sum."""
        first = model_pb2.RevealPart(statement=STATEMENT.to_proto(statement))
        self._submit(self._submit_reveal, first, sealed)

    def submit_report(self, report: Report) -> None:
        """Send this client's report on a published sum."""
        self._calls.ask(self._stub.SubmitReport, REPORT.to_proto(report))

    def submit_snapshot(self, report: Report, blob: bytes) -> None:
        """Send a snapshot for late joiners."""
        first = model_pb2.ReportPart(report=REPORT.to_proto(report))
        self._submit(self._submit_snapshot, first, blob)

    def published(self, client_id: ClientId, run: str, after: RoundId) -> PublishedRound | None:
        """Return the first round published after `after`, or None if there is no such round."""
        request = coordinator_pb2.FetchPublishedRequest(
            run=run, client_id=client_id, after_round=after
        )
        found = self._calls.download(self._stub.FetchPublished, request, "published")
        return None if found is None else PUBLISHED.from_proto(found[0], blob=found[1])

    def own_model(self, client_id: ClientId, run: str, round_id: RoundId, parameter: str) -> bytes:
        """Return the values of a parameter that the server computed for this client in a round."""
        request = coordinator_pb2.FetchOwnModelRequest(
            run=run, round=round_id, client_id=client_id, parameter=parameter
        )
        return self._blob(self._stub.FetchOwnModel, request)

    def snapshot(
        self, client_id: ClientId, run: str, after: RoundId, refused: tuple[bytes, ...] = ()
    ) -> Snapshot | None:
        """Return a snapshot newer than `after`, not a refused one, or None if there is none."""
        request = coordinator_pb2.FetchSnapshotRequest(
            run=run, client_id=client_id, after_round=after, refused=refused
        )
        found = self._calls.download(self._stub.FetchSnapshot, request, "snapshot")
        return None if found is None else SNAPSHOT.from_proto(found[0], blob=found[1])

    def apply(self, application: bytes) -> Application:
        """Send a signed application, or ask again for its result."""
        request = coordinator_pb2.ApplyRequest(application=application)
        return APPLICATION.from_proto(self._calls.ask(self._stub.Apply, request))

    def submit_masks(self, message: StepMessage) -> bool:
        """Send the message of a step. Return whether it was a duplicate."""
        request = STEP_MESSAGE.to_proto(message)
        seconds = self._calls.deadlines.stream(len(message.body))
        receipt = self._calls.ask(self._stub.SubmitMasks, request, seconds)
        return bool(receipt.duplicate)

    def masks(self, client_id: ClientId, run: str, round_id: RoundId, step: str) -> bytes:
        """Return the material that a participant needs for a step of a round."""
        request = masks_pb2.FetchMasksRequest(
            run=run, round=round_id, client_id=client_id, step=step
        )
        return self._blob(self._stub.FetchMasks, request)

    def goodbye(self, client_id: ClientId, code: str) -> None:
        """Report that this client ends. There is no time for a slow answer."""
        request = coordinator_pb2.Goodbye(client_id=client_id, code=code)
        self._calls.ask(self._stub.SayGoodbye, request, self._calls.deadlines.goodbye_seconds)

    def _begins(self, round_id: RoundId) -> bool:
        """Record an upload. Return whether it is certainly the first attempt of its round.

        An earlier process may have sent a part of the first round that this link sees.
        """
        latest, self._latest_upload = self._latest_upload, round_id
        return latest is not None and latest < round_id

    def _status(self, header: UploadHeader) -> UploadStatus:
        request = coordinator_pb2.UploadStatusRequest(
            run=header.run, round=header.round, client_id=header.client_id, digest=header.digest
        )
        status = UPLOAD_STATUS.from_proto(self._calls.ask(self._stub.GetUploadStatus, request))
        if status.offset > header.length:
            raise ProtocolError(
                f"The coordinator claims {status.offset} bytes of an upload of {header.length}."
            )
        return status

    def _blob(self, method: Message, request: Message) -> bytes:
        found = self._calls.download(method, request, "blob")
        if found is None:
            raise ProtocolError("The coordinator ended a download before it began.")
        return found[1]

    def _submit(self, method: Message, first: Message, blob: bytes) -> None:
        seconds = self._calls.deadlines.stream(len(blob))
        self._calls.ask(method, _signed_parts(first, blob), seconds)


def _upload_parts(header: UploadHeader, payload: bytes, offset: int) -> Iterator[bytes]:
    yield update_pb2.UploadPart(header=UPLOAD_HEADER.to_proto(header)).SerializeToString()
    for chunk in chunks(payload, offset):
        yield chunk_to_part(update_pb2.UploadPart, chunk)


def _signed_parts(first: Message, blob: bytes) -> Iterator[bytes]:
    """Yield a part with the signed message, and the parts of the bytes that follow it."""
    yield first.SerializeToString()
    yield type(first)(blob=BLOB.to_proto(Blob.of(blob))).SerializeToString()
    for chunk in chunks(blob):
        yield chunk_to_part(type(first), chunk)
