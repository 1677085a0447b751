"""The Admin service: a run's status and events, its end, and new key epochs."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fedrec.errors import SettingsError
from fedrec.wire.chunks import Assembler
from fedrec.wire.convert import BLOB
from fedrec.wire.fields import check_number
from fedrec.wire.v1 import admin_pb2
from fedrec.wire.v1.admin_pb2_grpc import AdminServicer
from fedrec_server.engine import Engine
from fedrec_server.peers.key_rotation import MAX_EPOCH_BYTES
from fedrec_server.run_status import status_of
from fedrec_server.service.call_guard import chunks_of, next_part

if TYPE_CHECKING:
    from fedrec_server.page.serving import Page


PAGE = 500
WATCH_SECONDS = 300.0

Message = Any
"""Generated messages and gRPC's objects are untyped."""


class AdminService(AdminServicer):
    """The calls of operators and the key authority.

    Args:
        engine: the run.
        page: the page for browsers, or None if none is served.
    """

    def __init__(self, engine: Engine, page: Page | None = None) -> None:
        self._engine = engine
        self._page = page
        self._names = (f"watcher {number}" for number in itertools.count())

    async def GetStatus(self, request: Message, context: Message) -> Message:
        """Return the run's status."""
        run = self._engine.run
        last_event = await run.work.in_thread(run.store.last_entry)
        return status_of(self._engine, last_event=last_event)

    async def WatchEvents(self, request: Message, context: Message) -> AsyncIterator[Message]:
        """Send the journal from the operator's last entry, and follow it if asked to."""
        run = self._engine.run
        after = check_number(request.after_event, "request.after_event")
        with run.watchers.listening(next(self._names)) as news:
            while True:
                news.forget()
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
                if entries:
                    continue
                if not request.follow or run.stopping:
                    return
                await news.wait(WATCH_SECONDS)

    async def StopRun(self, request: Message, context: Message) -> Message:
        """End the run after the round in progress, or at once."""
        await self._engine.stop_run(at_once=request.now)
        ending = self._engine.run.state.ending
        if ending is not None:
            return admin_pb2.StopRunReply(message=f"The run is over: {ending.reason}.")
        return admin_pb2.StopRunReply(message="The run ends with the round in progress.")

    async def ListApplicants(self, request: Message, context: Message) -> Message:
        """Send the key authority the list of applicants."""
        roster = self._engine.run.federation.keys.roster
        found = self._engine.applications.waiting(roster)
        return admin_pb2.Applicants(application=found)

    async def InstallEpoch(self, parts: AsyncIterator[Message], context: Message) -> Message:
        """Accept the public bundle of a new key epoch. The answer comes when it is durable."""
        blob = BLOB.from_proto(await next_part(parts, "blob"), "blob")
        assembler = Assembler(blob.length, blob.digest, max_bytes=MAX_EPOCH_BYTES)
        async for chunk in chunks_of(parts):
            assembler.add(chunk.offset, chunk.data)
        epoch, began = await self._engine.rotation.install(assembler.finish())
        return admin_pb2.InstallEpochReply(epoch=epoch, began=began)

    async def OpenPage(self, request: Message, context: Message) -> Message:
        """Return the page's address. It has a token if access needs one."""
        if self._page is None:
            raise SettingsError(
                "This coordinator serves no page.",
                remedy="Set coordinator.page, such as 127.0.0.1:7448, and restart it.",
            )
        # Without a page, a web server need not be installed.
        from fedrec_server.page.serving import LINK_SECONDS

        link = self._page.new_link()
        return admin_pb2.PageLink(
            scheme=self._page.scheme,
            host=self._page.host,
            port=self._page.port,
            token=link,
            good_seconds=LINK_SECONDS if link else 0.0,
        )
