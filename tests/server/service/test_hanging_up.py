"""A peer that hangs up while its update is being made durable."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from server.support.driving import gather, pieces, running
from server.support.federations import Bench

from fedrec_server.store import durable_files
from fedrec_server.store.durable_files import Draft
from fedrec_server.uploads.updates import IncomingUpdate


@pytest.mark.parametrize("place", ["draft.write", "draft.synced", "folder.synced"])
async def test_the_file_stays_open_until_nobody_uses_it(tmp_path, place):
    bench = Bench.of(3)
    reached, go_on = threading.Event(), threading.Event()

    def failpoint(name: str) -> None:
        if name == place:
            reached.set()
            assert go_on.wait(60)

    async with running(bench, tmp_path, failpoint=failpoint) as engine:
        await gather(engine, range(3))
        payload = bench.payload(0, 1, 0)
        header = bench.header(0, 1, payload, engine.run.name)
        incoming = IncomingUpdate(engine.run, engine.updates, header)

        async def call() -> None:
            await incoming.take(pieces(payload))
            await incoming.finish()

        calling = asyncio.ensure_future(call())
        await asyncio.to_thread(reached.wait, 60)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        leaving = asyncio.ensure_future(incoming.leave())
        await asyncio.wait((leaving,), timeout=0.05)
        assert not leaving.done()
        go_on.set()
        await leaving
        await engine.run.work.settled()
        assert engine.run.state.current is not None
        counted = len(engine.run.state.current.accepted)
        assert counted == (0 if place == "draft.write" else 1)
        left = [path.stat().st_size for path in tmp_path.rglob("partial/*")]
        assert left == ([] if counted else [len(payload)])


def test_who_hangs_up_while_a_file_is_opened_leaves_none_open(tmp_path, monkeypatch):
    bench = Bench.of(3)
    reached, go_on = threading.Event(), threading.Event()
    opened = list[str]()

    class Slow(Draft):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(f"/proc/self/fd/{self._file}")
            reached.set()
            assert go_on.wait(60)

    monkeypatch.setattr(durable_files, "Draft", Slow)

    async def scenario() -> str:
        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            payload = bench.payload(0, 1, 0)
            header = bench.header(0, 1, payload, engine.run.name)
            calling = asyncio.ensure_future(engine.updates.receive(header, pieces(payload)))
            await asyncio.to_thread(reached.wait, 60)
            path = os.readlink(opened[0])
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            go_on.set()
            return path

    path = asyncio.run(scenario())
    # Threads and loop have ended, with what waited in it; another file may have the number.
    assert os.path.realpath(opened[0]) != path
