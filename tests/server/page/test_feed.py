"""What browsers are told without a socket between: nothing that the journal says is lost."""

from __future__ import annotations

import asyncio

from server.support.driving import running
from server.support.federations import Bench

from fedrec.errors import StorageError
from fedrec_server.page import feed as feeds
from fedrec_server.page.feed import Feed
from fedrec_server.store.store import Entry


async def test_a_journal_that_could_not_be_read_is_read_again(tmp_path, monkeypatch):
    """The last word on a run, after which nothing wakes anybody."""
    monkeypatch.setattr(feeds, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(feeds, "PAUSE_SECONDS", 0.0)

    async with running(Bench.of(3), tmp_path) as engine:
        await engine.stop_run(at_once=True)
        read, failures = engine.run.store.entries, [1, 2, 3]

        def entries(after: int, limit: int) -> list[Entry]:
            if failures:
                failures.pop()
                raise StorageError("The disk is busy.")
            return read(after, limit)

        monkeypatch.setattr(engine.run.store, "entries", entries)
        feed = Feed(engine)
        following = asyncio.ensure_future(feed.follow())
        messages = feed.stream("")
        told = b""
        while b"run finished" not in told:
            told = await asyncio.wait_for(anext(messages), 20)
        following.cancel()
        await messages.aclose()
