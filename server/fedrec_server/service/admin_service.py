"""The Admin service: how far the run is, what happened, how to end it, and newer keys."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

from fedrec.wire.chunks import Assembler
from fedrec.wire.convert import blob_from_proto
from fedrec.wire.v1 import admin_pb2
from fedrec.wire.v1.admin_pb2_grpc import AdminServicer
from fedrec_server.engine import Engine
from fedrec_server.membership.key_rotation import MAX_EPOCH_BYTES
from fedrec_server.membership.missing_clients import labels_of, missing, waits_for
from fedrec_server.rounds.backoff import is_stalled
from fedrec_server.service.message_parts import chunks_of, next_part

__all__ = ["AdminService"]

PAGE = 500
WATCH_SECONDS = 300.0

Message = Any
"""Generated messages and gRPC's objects are untyped."""


class AdminService(AdminServicer):
    """What operators and the key authority call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names = (f"watcher {number}" for number in itertools.count())

    async def GetStatus(self, request: Message, context: Message) -> Message:
        """Tell how far the run is."""
        engine, run = self._engine, self._engine.run
        state, roster = run.state, run.federation.keys.roster
        following = engine.rotation.next
        planned, revealer = state.rules.rounds.total + 2, state.rules.revealer
        status = admin_pb2.Status(
            federation=run.federation.plan.federation.name,
            run=run.name,
            protection=run.federation.plan.protection.name,
            published_round=state.published,
            rounds_published=state.rounds_published,
            rounds_planned=planned,
            rounds_abandoned=state.abandoned,
            clients_seen=run.presence.n_seen - run.presence.has_seen(state.rules.revealer),
            clients_in_roster=len(state.roster),
            finished=state.ending is not None,
            finish_reason="" if state.ending is None else state.ending.reason,
            epoch=state.rules.epoch,
            next_epoch=0 if following is None else following.keys.roster.epoch,
            waits_for=waits_for(state, roster, run.presence),
            authority_heard=run.presence.last_heard(revealer),
            last_event=await run.work.in_thread(run.store.last_entry),
            quality=_quality(engine),
            awaited=labels_of(missing(state, run.presence), roster),
            stalled=is_stalled(state) and state.ending is None,
            epsilon=run.federation.epsilon_after(state.charged),
        )
        round_ = state.current
        if round_ is not None:
            left = max(0.0, round_.deadline_at - run.clock.now())
            current = admin_pb2.RoundStatus(
                round=round_.number,
                kind=round_.kind,
                phase=round_.phase,
                expected=len(round_.asked),
                arrived=len(round_.accepted),
                bytes_received=sum(header.length for header in round_.accepted.values()),
                seconds_left=left if round_.phase == "collecting" else 0.0,
            )
            status.current.CopyFrom(current)
        return status

    async def WatchEvents(self, request: Message, context: Message) -> AsyncIterator[Message]:
        """Send the journal from where the operator's view ends, and go on if asked to."""
        engine, run = self._engine, self._engine.run
        name = next(self._names)
        after = request.after_event
        while True:
            version = engine.journal_version
            entries = await run.work.in_thread(run.store.entries, after, PAGE)
            for entry in entries:
                after = entry.sequence
                yield admin_pb2.Event(
                    sequence=entry.sequence,
                    unix_seconds=entry.unix_seconds,
                    kind=entry.kind,
                    round=entry.round,
                    fields_json=entry.fields_json,
                )
            if entries or version != engine.journal_version:
                continue
            if not request.follow or run.stopping:
                return
            await engine.watchers.wait(name, WATCH_SECONDS)

    async def StopRun(self, request: Message, context: Message) -> Message:
        """End the run after the round in progress, or at once."""
        await self._engine.stop_run(at_once=request.now)
        ending = self._engine.run.state.ending
        if ending is not None:
            return admin_pb2.StopRunReply(message=f"The run is over: {ending.reason}.")
        return admin_pb2.StopRunReply(message="The run ends with the round in progress.")

    async def ListApplicants(self, request: Message, context: Message) -> Message:
        """Tell the key authority who asked to become a member."""
        roster = self._engine.run.federation.keys.roster
        found = self._engine.applications.waiting(roster)
        return admin_pb2.Applicants(application=found)

    async def InstallEpoch(self, parts: AsyncIterator[Message], context: Message) -> Message:
        """Take in the public bundle of a new key epoch; answered when it is durable."""
        blob = blob_from_proto(await next_part(parts, "blob"), "blob")
        assembler = Assembler(blob.length, blob.digest, max_bytes=MAX_EPOCH_BYTES)
        async for chunk in chunks_of(parts):
            assembler.add(chunk.offset, chunk.data)
        epoch, began = await self._engine.rotation.install(assembler.finish())
        return admin_pb2.InstallEpochReply(epoch=epoch, began=began)


def _quality(engine: Engine) -> Message | None:
    """Return what the last measured round says, as a message; None before the first."""
    found = engine.quality.quality
    if not found.round:
        return None
    told = admin_pb2.Quality(round=found.round, at=engine.run.federation.plan.evaluation.at)
    if found.loss is not None:
        told.loss = found.loss
    if found.validation is not None:
        told.validation_hr, told.validation_ndcg = found.validation.hr, found.validation.ndcg
    if found.test is not None:
        told.test_hr, told.test_ndcg = found.test.hr, found.test.ndcg
    return told
