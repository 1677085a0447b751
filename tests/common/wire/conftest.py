"""A coordinator of dictionaries, and a few values that travel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest
from reference.plain_parts import part_of, split
from world.keys import server_credentials

from fedrec.errors import FedrecError, NotInRoster
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Assembler, Blob
from fedrec.wire.convert import (
    BLOB,
    FEDERATION,
    PUBLISHED,
    REPORT,
    SNAPSHOT,
    STATEMENT,
    TASK,
    UPLOAD_HEADER,
)
from fedrec.wire.grpc_calls import to_details
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    FederationInfo,
    PublishedRound,
    Report,
    RevealStatement,
    Snapshot,
    Task,
    UploadHeader,
    Wait,
)
from fedrec.wire.v1 import coordinator_pb2, model_pb2, update_pb2
from fedrec.wire.v1.coordinator_pb2_grpc import (
    CoordinatorServicer,
    add_CoordinatorServicer_to_server,
)

CLIENT = ClientId("ab" * 32)
IDLE = Task(published_round=RoundId(0), task=Wait(reason="nothing"))


@dataclass
class Values:
    """One valid value of each kind."""

    client: ClientId = CLIENT
    run: str = "run-1"

    def header(self, payload: bytes = b"payload", **changes: Any) -> UploadHeader:
        blob = Blob.of(payload)
        header = UploadHeader(
            protocol_version=PROTOCOL_VERSION,
            federation="movies",
            run=self.run,
            round=RoundId(3),
            kind="train",
            base_round=RoundId(2),
            base_state=b"b" * 32,
            key_list=b"k" * 32,
            nonce=b"n" * 16,
            epoch=2,
            client_id=self.client,
            catalogue_fingerprint="c" * 64,
            plan_fingerprint="d" * 64,
            length=blob.length,
            digest=blob.digest,
            n_rows=256,
            rows_digest=b"r" * 32,
            signature=b"s" * 64,
        )
        return replace(header, **changes)

    def statement(self, **changes: Any) -> RevealStatement:
        statement = RevealStatement(
            federation="movies",
            run=self.run,
            round=RoundId(3),
            epoch=2,
            client_id=self.client,
            manifest_digest=b"m" * 32,
            state_tag=b"t" * 32,
            published_digest=b"p" * 32,
            metrics=bytes(range(16)),
            n_rows=256,
            rows_digest=b"r" * 32,
            refused="no reason",
            paused=(2, 7),
            signature=b"s" * 64,
            sequence=9,
            previous=b"q" * 32,
            kind="count",
            trained=4,
            charged=5,
        )
        return replace(statement, **changes)

    def report(self, **changes: Any) -> Report:
        report = Report(
            federation="movies",
            run=self.run,
            round=RoundId(3),
            epoch=2,
            client_id=self.client,
            state_tag=b"t" * 32,
            metrics=bytes(range(16)),
            n_rows=256,
            rows_digest=b"r" * 32,
            signature=b"s" * 64,
        )
        return replace(report, **changes)

    def federation(self, **changes: Any) -> FederationInfo:
        info = FederationInfo(
            protocol_version=PROTOCOL_VERSION,
            federation="movies",
            run=self.run,
            plan_json=b"{}",
            catalogue_fingerprint="c" * 64,
            n_items=1682,
            epoch=2,
            roster_json=b"roster",
            server_context=b"context",
            wrapped_secrets=b"wrapped",
            published_round=RoundId(7),
            statement=self.statement(),
        )
        return replace(info, **changes)

    def published(self, blob: bytes = b"aggregate", **changes: Any) -> PublishedRound:
        published = PublishedRound(
            round=RoundId(3),
            epoch=2,
            kind="train",
            contributions=(self.header(), self.header(client_id=ClientId("cd" * 32))),
            statement=self.statement(),
            blob=blob,
        )
        return replace(published, **changes)

    def snapshot(self, blob: bytes = b"model") -> Snapshot:
        return Snapshot(
            round=RoundId(3),
            epoch=2,
            statement=self.statement(),
            reports=(self.report(), self.report(client_id=ClientId("cd" * 32))),
            blob=blob,
        )


@dataclass
class FakeCoordinator(CoordinatorServicer):  # type: ignore[misc]  # generated, untyped
    """Holds everything in memory; `faults` are raised or called before the next calls."""

    values: Values
    faults: dict[str, list[BaseException | Callable[[], object]]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    spool: dict[bytes, bytearray] = field(default_factory=dict)
    accepted: dict[bytes, bytes] = field(default_factory=dict)
    chunk_offsets: list[int] = field(default_factory=list)
    break_after_chunks: int | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)
    statements: list[tuple[RevealStatement | Report, bytes]] = field(default_factory=list)
    published: PublishedRound | None = None
    snapshot: Snapshot | None = None
    task: Task = IDLE
    wake: threading.Event = field(default_factory=threading.Event)

    def guard(self, name: str, context: grpc.ServicerContext) -> None:
        self.calls.append(name)
        if self.faults.get(name):
            fault = self.faults[name].pop(0)
            if isinstance(fault, BaseException):
                self.fail(context, fault)
            fault()

    def fail(self, context: grpc.ServicerContext, error: BaseException) -> None:
        if isinstance(error, grpc.RpcError):
            context.abort(error.args[0], "the peer's text")
        status, message, metadata = to_details(error)
        context.set_trailing_metadata(metadata)
        context.abort(status, message)

    def GetFederation(self, request: Any, context: Any) -> Any:
        self.guard("GetFederation", context)
        return FEDERATION.to_proto(self.values.federation(protocol_version=PROTOCOL_VERSION))

    def GetCatalogue(self, request: Any, context: Any) -> Iterator[Any]:
        self.guard("GetCatalogue", context)
        yield from self.parts("catalogue", coordinator_pb2.CataloguePart)

    def NextTask(self, request: Any, context: Any) -> Any:
        self.guard("NextTask", context)
        self.wake.wait(request.wait_seconds)
        return TASK.to_proto(self.task)

    def SubmitUpdate(self, requests: Iterator[Any], context: Any) -> Any:
        self.guard("SubmitUpdate", context)
        header = UPLOAD_HEADER.from_proto(next(requests).header)
        if header.digest in self.accepted:
            return update_pb2.UploadReceipt(round=header.round, duplicate=True)
        spool = self.spool.setdefault(header.digest, bytearray())
        try:
            assembler = Assembler(
                header.length,
                header.digest,
                max_bytes=64 * 1024 * 1024,
                start=len(spool),
                prefix=[bytes(spool)],
                sink=spool.extend,
            )
            for number, part in enumerate(requests, start=1):
                self.chunk_offsets.append(part.chunk.offset)
                assembler.add(part.chunk.offset, part.chunk.data)
                if number == self.break_after_chunks:
                    self.break_after_chunks = None
                    context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
            assembler.finish()
        except FedrecError as error:
            del self.spool[header.digest]
            self.fail(context, error)
        self.accepted[header.digest] = bytes(spool)
        if self.faults.get("after SubmitUpdate"):
            self.fail(context, self.faults["after SubmitUpdate"].pop(0))  # type: ignore[arg-type]  # an error
        return update_pb2.UploadReceipt(round=header.round, duplicate=False)

    def GetUploadStatus(self, request: Any, context: Any) -> Any:
        self.guard("GetUploadStatus", context)
        accepted = request.digest in self.accepted
        offset = len(self.spool.get(request.digest, b""))
        return coordinator_pb2.UploadStatus(offset=offset, accepted=accepted)

    def FetchContribution(self, request: Any, context: Any) -> Iterator[Any]:
        self.guard("FetchContribution", context)
        if request.contributor not in self.blobs:
            self.fail(context, NotInRoster("no such contributor"))
        yield from self.parts(request.contributor, coordinator_pb2.ContributionPart)

    def FetchSum(self, request: Any, context: Any) -> Iterator[Any]:
        self.guard("FetchSum", context)
        yield from self.parts("sum", coordinator_pb2.ContributionPart)

    def SubmitReveal(self, requests: Iterator[Any], context: Any) -> Any:
        self.guard("SubmitReveal", context)
        return self.received(STATEMENT.from_proto(next(requests).statement), requests)

    def SubmitSnapshot(self, requests: Iterator[Any], context: Any) -> Any:
        self.guard("SubmitSnapshot", context)
        return self.received(REPORT.from_proto(next(requests).report), requests)

    def SubmitReport(self, request: Any, context: Any) -> Any:
        self.guard("SubmitReport", context)
        report = REPORT.from_proto(request)
        self.statements.append((report, b""))
        return model_pb2.RoundReceipt(round=report.round)

    def received(self, word: RevealStatement | Report, requests: Iterator[Any]) -> Any:
        blob = BLOB.from_proto(next(requests).blob, "blob")
        assembler = Assembler(blob.length, blob.digest, max_bytes=64 * 1024 * 1024)
        for part in requests:
            assembler.add(part.chunk.offset, part.chunk.data)
        self.statements.append((word, assembler.finish()))
        return model_pb2.RoundReceipt(round=word.round)

    def FetchPublished(self, request: Any, context: Any) -> Iterator[Any]:
        self.guard("FetchPublished", context)
        if self.published is not None and self.published.round > request.after_round:
            yield model_pb2.PublishedPart(published=PUBLISHED.to_proto(self.published))
            for offset, data in split(self.published.blob):
                yield part_of(model_pb2.PublishedPart, offset, data)

    def FetchSnapshot(self, request: Any, context: Any) -> Iterator[Any]:
        self.guard("FetchSnapshot", context)
        if self.snapshot is not None and self.snapshot.round > request.after_round:
            yield model_pb2.SnapshotPart(snapshot=SNAPSHOT.to_proto(self.snapshot))
            for offset, data in split(self.snapshot.blob):
                yield part_of(model_pb2.SnapshotPart, offset, data)

    def parts(self, name: str, part: Any) -> Iterator[Any]:
        data = self.blobs[name]
        announced = self.blobs.get(f"{name} announced", data)
        yield part(blob=BLOB.to_proto(Blob.of(announced)))
        for offset, piece in split(data):
            yield part_of(part, offset, piece)


@pytest.fixture
def values():
    return Values()


@pytest.fixture
def coordinator(values):
    return FakeCoordinator(values)


@pytest.fixture
def serve(coordinator):
    """Return a function that starts the coordinator and returns its address."""
    servers = []

    def start() -> str:
        server = grpc.server(ThreadPoolExecutor(8))
        add_CoordinatorServicer_to_server(coordinator, server)
        port = server.add_secure_port("127.0.0.1:0", server_credentials())
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    coordinator.wake.set()
    for server in servers:
        server.stop(grace=None).wait()
