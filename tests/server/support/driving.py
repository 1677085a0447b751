"""Clients that talk to an engine without a wire between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from reference.plain_parts import split
from server.support.federations import REVEALER, SEALED_BYTES, Bench, identity
from world.clock import FakeClock

from fedrec.clock import Clock
from fedrec.ids import RoundId
from fedrec.wire.chunks import Blob, ByteChunk
from fedrec.wire.messages import MakeSnapshot, Reveal, Task, Train
from fedrec_server.engine import Engine
from fedrec_server.reveals import take_report
from fedrec_server.rounds.state import Round, State
from fedrec_server.store.durable_files import Failpoint, no_failpoint
from fedrec_server.store.store import Store


def current(state: State) -> Round:
    """Return the round in progress."""
    assert state.current is not None
    return state.current


def files(folder: Path) -> list[str]:
    """Return the files of a folder's state but for the database, by kind and name."""
    spool = folder / "state"
    return sorted(
        f"{path.parent.name}/{path.name}"
        for kind in ("partial", "updates", "blobs", "snapshots")
        for path in (spool / kind).iterdir()
    )


@asynccontextmanager
async def running(
    bench: Bench,
    folder: Path,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    failpoint: Failpoint = no_failpoint,
) -> AsyncIterator[Engine]:
    """Start an engine, and close it in the end."""
    engine = Engine(
        bench.federation,
        store or bench.store(folder, failpoint=failpoint),
        clock=clock or FakeClock(),
        maximum_upload_bytes=1 << 20,
        failpoint=failpoint,
    )
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


async def poll(engine: Engine, number: int, version: int | None = None) -> Task:
    """Ask for a task without waiting, at the run's version unless told otherwise."""
    found = engine.run.state.published if version is None else RoundId(version)
    return await engine.polls.next_task(identity(number).client_id, engine.run.name, found, 0.0)


async def wait(engine: Engine, number: int, version: int = 0, seconds: float = 60.0) -> Task:
    """Wait for a task as a client that remembers its last update."""
    me = identity(number).client_id
    return await engine.polls.next_task(
        me, engine.run.name, RoundId(version), seconds, engine.rollbacks.of(me)
    )


async def gather(engine: Engine, numbers: Iterable[int]) -> None:
    """Let clients come, and the round open once all of them are there."""
    for number in numbers:
        engine.run.presence.heard(identity(number).client_id)
    await engine.tick()


async def upload(
    engine: Engine,
    bench: Bench,
    number: int,
    round_id: int | None = None,
    salt: int = 0,
    **changes: Any,
) -> bool:
    """Upload to the round in progress; True when it was a duplicate.

    `changes` are what the header says otherwise than the client was told.
    """
    if round_id is None:
        assert engine.run.state.current is not None
        round_id = engine.run.state.current.number
    payload = bench.payload(number, round_id, salt)
    told: dict[str, Any] = {}
    if engine.run.state.current is not None and engine.run.state.current.number == round_id:
        told = told_of(engine.run.state)
    header = bench.header(number, round_id, payload, engine.run.name, **(told | changes))
    return await engine.updates.receive(header, pieces(payload))


async def pieces(payload: bytes, start: int = 0) -> AsyncIterator[ByteChunk]:
    """Yield what a stream brings after its header, from a byte on."""
    for offset, data in split(payload, start):
        yield ByteChunk(offset=offset, data=data)


def told_of(state: State) -> dict[str, Any]:
    """Return what headers say about the round in progress, as clients were told."""
    round_ = state.current
    assert round_ is not None
    return {
        "kind": round_.kind,
        "base_round": round_.base_round,
        "base_state": state.base_state or bytes(32),
        "key_list": b"",
    }


@asynccontextmanager
async def together(engine: Engine, *uploads: Coroutine[Any, Any, Any]) -> AsyncIterator[list[Any]]:
    """Have uploads wait for one another before the first is counted.

    In the block all are durable and none is counted; afterwards the list says, in the same
    order, what became of them: an answer or an exception.
    """
    found: list[Any] = []
    tasks = [asyncio.ensure_future(each) for each in uploads]
    async with engine.run.lock:
        while len(engine.updates._arrived) < len(tasks):
            assert not any(task.done() for task in tasks), await asyncio.gather(*tasks)
            await asyncio.sleep(0)
        yield found
    found += await asyncio.gather(*tasks, return_exceptions=True)


async def speak(engine: Engine, bench: Bench, content: str = "honest", **changes: object) -> None:
    """Open the sum as the key authority, which has the task to."""
    task = (await poll(engine, REVEALER)).task
    assert isinstance(task, Reveal)
    statement = bench.statement(task, engine.run.name, content=content, **changes)
    sealed = b"" if statement.refused else SEALED_BYTES * content.encode()
    await engine.reveals.receive(statement, Blob.of(sealed), pieces(sealed))


async def report(engine: Engine, bench: Bench, number: int, content: str = "honest") -> None:
    """Say what is in the published sum."""
    run = engine.run
    said = bench.report(number, run.state.published, run.name, content)
    await take_report(run, engine.admission, said)
    await engine.run.work.settled()


async def send_snapshot(
    engine: Engine, bench: Bench, number: int, data: bytes, content: str = "honest"
) -> None:
    """Send a snapshot of the last published round."""
    said = bench.report(number, engine.run.state.published, engine.run.name, content, metrics=b"")
    await engine.exchange.receive(said, Blob.of(data), pieces(data))


async def act(engine: Engine, bench: Bench, number: int) -> bool:
    """Do whatever a client is told; False when it has nothing to do."""
    task = (await poll(engine, number)).task
    if isinstance(task, Train):
        await upload(engine, bench, number, task.round)
    elif isinstance(task, Reveal):
        await speak(engine, bench)
    elif engine.run.state.reporting is not None:
        await report(engine, bench, number)
    elif isinstance(task, MakeSnapshot):
        await send_snapshot(engine, bench, number, b"snapshot")
    else:
        return False
    await engine.run.work.settled()
    return True


async def play(engine: Engine, bench: Bench, numbers: Iterable[int]) -> None:
    """Let clients work until the run is over."""
    numbers = list(numbers)
    await gather(engine, numbers)
    if bench.federation.keys.roster.revealer is not None:
        numbers.append(REVEALER)
    while engine.run.state.ending is None:
        busy = [await act(engine, bench, number) for number in numbers]
        assert any(busy), "the run is stuck"
