"""The Coordinator service: each method converts messages to values and calls the engine."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

from fedrec.errors import VersionMismatch
from fedrec.identity.certificates import check_dates, is_invitation, key_of
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob, chunk_to_part, chunks
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
from fedrec.wire.fields import (
    check_client_id,
    check_code,
    check_exact,
    check_refused,
    check_round,
    check_seconds,
    check_step,
    check_text,
    check_version,
)
from fedrec.wire.messages import Application, PublishedRound
from fedrec.wire.v1 import coordinator_pb2, masks_pb2, model_pb2, update_pb2
from fedrec.wire.v1.coordinator_pb2_grpc import CoordinatorServicer
from fedrec_server.engine import Engine
from fedrec_server.reveals import take_report
from fedrec_server.service.call_guard import chunks_of, next_part
from fedrec_server.service.callers import certificate_of
from fedrec_server.store.durable_files import OpenFile

CACHED_ROUNDS = 2

Message = Any
"""Generated messages and gRPC's objects are untyped."""


class CoordinatorService(CoordinatorServicer):
    """The calls of clients."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._run = engine.run
        # All clients fetch the same round at about the same time.
        self._published: OrderedDict[RoundId, tuple[Message, OpenFile]] = OrderedDict()
        self._opening = asyncio.Lock()

    async def GetFederation(self, request: Message, context: Message) -> Message:
        """Describe the federation to any party that may connect."""
        run, client_id = self._run, check_client_id(request.client_id, "request.client_id")
        run.presence.joined(client_id, check_text(request.release, "request.release", empty=True))
        version = request.protocol_version
        try:
            check_version(version, "The client's protocol version", here="the coordinator")
        except VersionMismatch as error:
            run.presence.ended(client_id, error.code)
            raise
        published = run.state.published
        info = run.federation.info(run.name, client_id, published)
        if published and client_id == run.state.rules.revealer:
            record = await run.work.in_thread(run.store.published, published)
            info = replace(info, statement=None if record is None else record.statement)
        return FEDERATION.to_proto(info)

    async def GetCatalogue(self, request: Message, context: Message) -> AsyncIterator[Message]:
        """Send the public catalogue file."""
        catalogue = self._run.federation.catalogue.data
        for part in _parts(coordinator_pb2.CataloguePart, catalogue):
            yield part

    async def NextTask(self, request: Message, context: Message) -> Message:
        """Return a client's next task, when there is one."""
        task = await self._engine.polls.next_task(
            check_client_id(request.client_id, "request.client_id"),
            request.run,
            check_round(request.version, "request.version"),
            check_seconds(request.wait_seconds, "request.wait_seconds"),
            REMEMBERED.from_proto(request),
        )
        return TASK.to_proto(task)

    async def SubmitUpdate(self, parts: AsyncIterator[Message], context: Message) -> Message:
        """Receive an update. The answer comes when it is durable."""
        header = UPLOAD_HEADER.from_proto(await next_part(parts, "header"))
        duplicate = await self._engine.updates.receive(header, chunks_of(parts))
        return update_pb2.UploadReceipt(round=header.round, duplicate=duplicate)

    async def GetUploadStatus(self, request: Message, context: Message) -> Message:
        """Return where an interrupted upload can resume."""
        status = await self._engine.updates.status(
            request.run,
            check_round(request.round, "request.round"),
            check_client_id(request.client_id, "request.client_id"),
            check_exact(request.digest, "request.digest", 32),
        )
        return UPLOAD_STATUS.to_proto(status)

    async def FetchContribution(self, request: Message, context: Message) -> AsyncIterator[Message]:
        """Send one contribution to the key authority."""
        data, blob = await self._engine.reveals.contribution(
            self._member(request),
            check_round(request.round, "request.round"),
            check_client_id(request.contributor, "request.contributor"),
        )
        for part in _parts(coordinator_pb2.ContributionPart, data, blob):
            yield part

    async def FetchSum(self, request: Message, context: Message) -> AsyncIterator[Message]:
        """Send the coordinator's sum to the key authority."""
        caller, round_id = self._member(request), check_round(request.round, "request.round")
        data = await self._engine.reveals.total(caller, round_id)
        for part in _parts(coordinator_pb2.ContributionPart, data):
            yield part

    async def SubmitReveal(self, parts: AsyncIterator[Message], context: Message) -> Message:
        """Receive the key authority's statement."""
        statement = STATEMENT.from_proto(await next_part(parts, "statement"))
        blob = BLOB.from_proto(await next_part(parts, "blob"), "blob")
        await self._engine.reveals.receive(statement, blob, chunks_of(parts))
        return model_pb2.RoundReceipt(round=statement.round)

    async def SubmitReport(self, request: Message, context: Message) -> Message:
        """Receive a client's report on a published sum. The answer comes when it is durable."""
        report = REPORT.from_proto(request)
        await take_report(self._run, self._engine.admission, report)
        return model_pb2.RoundReceipt(round=report.round)

    async def SubmitSnapshot(self, parts: AsyncIterator[Message], context: Message) -> Message:
        """Receive a snapshot."""
        report = REPORT.from_proto(await next_part(parts, "report"))
        blob = BLOB.from_proto(await next_part(parts, "blob"), "blob")
        await self._engine.exchange.receive(report, blob, chunks_of(parts))
        return model_pb2.RoundReceipt(round=report.round)

    async def Apply(self, request: Message, context: Message) -> Message:
        """Keep an application for the key authority. Return whether it was granted."""
        certificate = certificate_of(context)
        invited = is_invitation(certificate)
        if invited:
            # A connection may outlive its invitation.
            check_dates(certificate, "The invitation")
        client_id = await self._engine.applications.apply(
            request.application, key_of(certificate), invited=invited
        )
        keys = self._run.federation.keys
        listed = keys.roster.contains(client_id)
        issued = keys.certificates[client_id] if listed else b""
        if listed:
            self._run.presence.joined(client_id)
        return APPLICATION.to_proto(
            Application(epoch=keys.roster.epoch, listed=listed, certificate=issued)
        )

    async def SubmitMasks(self, request: Message, context: Message) -> Message:
        """Receive a client's message of a step. The answer comes when it is durable."""
        message = STEP_MESSAGE.from_proto(request)
        duplicate = await self._engine.steps.hear(message)
        return masks_pb2.MaskReceipt(round=message.round, duplicate=duplicate)

    async def FetchMasks(self, request: Message, context: Message) -> AsyncIterator[Message]:
        """Send what a participant needs for its next step."""
        data = await self._engine.steps.material(
            self._member(request),
            check_round(request.round, "request.round"),
            check_step(request.step, "request.step"),
        )
        for part in _parts(coordinator_pb2.ContributionPart, data):
            yield part

    async def FetchPublished(self, request: Message, context: Message) -> AsyncIterator[Message]:
        """Send the first round published after the client's version, or nothing."""
        client_id = self._member(request)
        after = check_round(request.after_round, "request.after_round")
        found = await self._next_published(after)
        if found is None:
            return
        message, file = found
        yield model_pb2.PublishedPart(published=message)
        async for part in self._pieces(model_pb2.PublishedPart, file, client_id):
            yield part

    async def FetchOwnModel(self, request: Message, context: Message) -> AsyncIterator[Message]:
        """Send what the caller receives of a parameter from a published round."""
        run, client_id = self._run, self._member(request)
        blob, file = await run.work.beside(
            self._engine.own_models.fetch,
            client_id,
            check_round(request.round, "request.round"),
            check_text(request.parameter, "request.parameter"),
        )
        yield coordinator_pb2.ContributionPart(blob=BLOB.to_proto(blob))
        async for part in self._pieces(coordinator_pb2.ContributionPart, file, client_id):
            yield part

    async def FetchSnapshot(self, request: Message, context: Message) -> AsyncIterator[Message]:
        """Send the snapshot if it serves the client better than the rounds."""
        client_id = self._member(request)
        found = await self._engine.exchange.for_client(
            client_id,
            check_round(request.after_round, "request.after_round"),
            check_refused(request.refused, "request.refused"),
        )
        if found is None:
            return
        snapshot, blob, file = found
        message = SNAPSHOT.to_proto(snapshot)
        message.blob.CopyFrom(BLOB.to_proto(blob))
        yield model_pb2.SnapshotPart(snapshot=message)
        async for part in self._pieces(model_pb2.SnapshotPart, file, client_id):
            yield part

    async def SayGoodbye(self, request: Message, context: Message) -> Message:
        """Record that a client ended. Rounds don't wait for it until it calls again."""
        client_id = check_client_id(request.client_id, "request.client_id")
        self._engine.polls.end(client_id, check_code(request.code, "request.code"))
        return coordinator_pb2.GoodbyeReceipt()

    async def _next_published(self, after: RoundId) -> tuple[Message, OpenFile] | None:
        if after >= self._run.state.published:
            return None
        # Callers that arrive during the comparison wait for its result, not repeat it.
        async with self._opening:
            if after in self._published:
                return self._published[after]
            record = await self._run.work.in_thread(self._run.store.next_published, after)
            if record is None or not record.is_for(after):
                return None
            published = PublishedRound(
                round=record.round,
                epoch=record.epoch,
                kind=record.kind,
                contributions=record.contributions,
                statement=record.statement,
                blob=b"",
            )
            message = PUBLISHED.to_proto(published)
            message.blob.CopyFrom(BLOB.to_proto(record.blob))
            opened = await self._run.work.in_thread(
                self._run.store.spool.open, record.name, record.blob
            )
            found = self._published[after] = message, opened
            while len(self._published) > CACHED_ROUNDS:
                self._published.popitem(last=False)
            return found

    async def _pieces(
        self, kind: type[Message], file: OpenFile, client_id: ClientId
    ) -> AsyncIterator[Message | bytes]:
        """Yield a file's chunks to a client. One at a time is in memory."""
        for offset in file.offsets():
            self._run.presence.fetches(client_id)
            yield await self._run.work.beside(
                lambda at: chunk_to_part(kind, file.chunk(at)), offset
            )

    def _member(self, request: Message) -> ClientId:
        """Return the calling roster client."""
        client_id = check_client_id(request.client_id, "request.client_id")
        self._engine.admission.check_run(request.run)
        self._engine.admission.check_member(client_id)
        self._run.presence.heard(client_id)
        return client_id


def _parts(kind: type[Message], data: bytes, blob: Blob | None = None) -> Iterator[Message | bytes]:
    yield kind(blob=BLOB.to_proto(blob or Blob.of(data)))
    for chunk in chunks(data):
        yield chunk_to_part(kind, chunk)
