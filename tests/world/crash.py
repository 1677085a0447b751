"""A coordinator that is killed at each failpoint in turn; run as a program, without gRPC.

For every failpoint that two rounds pass, a child process plays them and is killed there; a
second child starts on the same folder, lets the clients retry and checks that every
acknowledged update is in exactly one sum. Prints one JSON object a line.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import structlog
from world.engine import (
    REVEALER,
    SEALED_BYTES,
    Bench,
    act,
    gather,
    identity,
    running,
    together,
    upload,
)

from fedrec.errors import FedrecError
from fedrec.ids import RoundId
from fedrec.plan.schema import PrivacySettings
from fedrec_server.engine import Engine

CLIENTS = range(3)
ROUNDS = 2
"""The first opens by itself, the second follows another; all later ones are like it."""


def whole_run(bench: Bench, folder: Path, failpoint: Callable[[str], None]) -> None:
    """Play two rounds, call by call; acknowledged updates are written to a file."""

    async def scenario() -> None:
        async with running(bench, folder, failpoint=failpoint) as engine:
            await gather(engine, CLIENTS)
            for number in parties(bench):
                before = engine.run.state.current
                await act(engine, bench, number)
                if before is not None and before.phase == "collecting" and number != REVEALER:
                    note(folder, before.number, number)
                if engine.run.state.published == ROUNDS and engine.run.state.reporting is None:
                    return

    asyncio.run(scenario())


def concurrent_run(bench: Bench, folder: Path, failpoint: Callable[[str], None]) -> None:
    """Play two rounds whose updates are counted in one transaction."""

    async def acknowledged(engine: Engine, round_id: int, number: int) -> None:
        await upload(engine, bench, number, round_id)
        note(folder, round_id, number)

    async def scenario() -> None:
        async with running(bench, folder, failpoint=failpoint) as engine:
            await gather(engine, CLIENTS)
            for round_id in range(1, ROUNDS + 1):
                uploads = [acknowledged(engine, round_id, number) for number in CLIENTS]
                async with together(engine, *uploads) as found:
                    pass
                assert found == [None] * len(CLIENTS), found
                await engine.run.work.settled()

    asyncio.run(scenario())


def parties(bench: Bench) -> Iterator[int]:
    """Return who acts, in turn and without end."""
    reveals = bench.federation.keys.roster.revealer is not None
    return itertools.cycle([*CLIENTS, REVEALER] if reveals else CLIENTS)


def note(folder: Path, round_id: int, number: int) -> None:
    """Write down that a client's update was acknowledged."""
    with (folder / "acked").open("a") as acked:
        print(round_id, number, file=acked)


def recover(bench: Bench, folder: Path) -> None:
    """Go on after the crash and compare what was published with what was acknowledged."""

    async def scenario() -> None:
        async with running(bench, folder) as engine:
            check_ledger(engine, bench)
            await gather(engine, CLIENTS)
            for number in parties(bench):
                if engine.run.state.published >= ROUNDS and engine.run.state.reporting is None:
                    break
                await act(engine, bench, number)
            check(engine, bench, folder)

    asyncio.run(scenario())


def check(engine: Engine, bench: Bench, folder: Path) -> None:
    """Check every published round against the acknowledged updates and the exact sums."""
    path = folder / "acked"
    lines = path.read_text().splitlines() if path.exists() else []
    acked = {tuple(map(int, line.split())) for line in lines}
    counted = set()
    after = RoundId(0)
    while (record := engine.run.store.next_published(after)) is not None:
        numbers = {n for n in CLIENTS if identity(n).client_id in clients_of(record)}
        assert len(numbers) == len(record.contributions)
        counted |= {(record.round, number) for number in numbers}
        data = engine.run.store.spool.read(record.name, record.blob)
        wanted = bench.sum_of(numbers, record.round)
        if record.statement is not None:
            wanted = b"honest" * SEALED_BYTES
        assert data == wanted, f"round {record.round} published another sum"
        after = record.round
    check_ledger(engine, bench)
    assert engine.run.state.abandoned == 0
    assert acked <= counted, f"acknowledged and lost: {acked - counted}"
    assert counted == {(r, n) for r in range(1, ROUNDS + 1) for n in CLIENTS}


def check_ledger(engine: Engine, bench: Bench) -> None:
    """Check that no training round was released before the privacy ledger counted it."""
    if bench.federation.plan.privacy.mechanism != "none":
        assert engine.run.state.charged >= engine.run.state.trained, engine.run.state


def clients_of(record: object) -> set[str]:
    """Return whose updates a record counts."""
    return {header.client_id for header in record.contributions}  # type: ignore[attr-defined]


def killer(index: int) -> Callable[[str], None]:
    """Return a failpoint that kills at the hit of this index."""
    hits = itertools.count()

    def failpoint(name: str) -> None:
        if next(hits) == index:
            os.kill(os.getpid(), signal.SIGKILL)

    return failpoint


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked child; return its wait status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main(folder: Path, kind: str) -> None:
    """Kill at every failpoint, one after another."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    noise = {"noisy": "laplace", "noisy-veiled": "gaussian", "noisy-revealed": "gaussian"}.get(
        kind, "none"
    )
    privacy = PrivacySettings.model_validate({"mechanism": noise})
    veiled, reveals = kind.endswith("veiled"), kind.endswith("revealed")
    bench = Bench.of(len(CLIENTS), veiled=veiled, reveals=reveals, privacy=privacy)
    run = concurrent_run if kind == "concurrent" else whole_run
    for number in CLIENTS:
        identity(number)
    names: list[str] = []
    run(bench, folder / "calm", names.append)
    passed: Counter[str] = Counter()
    for index, name in enumerate(names):
        passed[name] += 1
        place = folder / f"crash-{index}"

        killed = in_child(partial(run, bench, place, killer(index))) == signal.SIGKILL
        recovered = in_child(partial(recover, bench, place)) == 0
        line = {"name": name, "occurrence": passed[name], "killed": killed}
        print(json.dumps({**line, "recovered": recovered}), flush=True)
        shutil.rmtree(place)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except FedrecError as error:
        sys.exit(str(error))
