"""Small federations with real keys whose coordinator is called without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from blake3 import blake3
from reference.plain_parts import split
from world.cells import partition_of
from world.clock import FakeClock
from world.machine import terms_of

from fedrec.clock import Clock
from fedrec.identity.authority import Authority
from fedrec.identity.certificates import Credentials
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.plan.agreement import plan_fingerprint
from fedrec.plan.schema import FederationSettings, Plan, PrivacySettings, RoundSettings
from fedrec.protection import NoProtection, Protection, ProtectionSettings, SegmentSpec, VectorSpec
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.chunks import Blob, ByteChunk
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    MakeSnapshot,
    Report,
    Reveal,
    RevealStatement,
    RoundKind,
    Task,
    Train,
    UploadHeader,
)
from fedrec.wire.messages import manifest_digest as digest_of
from fedrec_server.engine import Engine
from fedrec_server.federation import Federation, PublicCatalogue
from fedrec_server.reveals import take_report
from fedrec_server.rounds.state import Round, State
from fedrec_server.store.durable_files import Failpoint, no_failpoint
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.store import Store

SEALED_BYTES = 300
"""How often a made-up sealed sum repeats its content."""
REVEALER = 90
"""The number of the client that is no member and opens sums, where there is one."""
CATALOGUE = PublicCatalogue(data=b"item\nheat\n", fingerprint="c" * 64, n_items=1)


class Veiled(NoProtection):
    """Packs like no protection but has to be revealed, so that tests need no ciphertexts."""

    needs_reveal: ClassVar[bool] = True


@cache
def identity(number: int) -> Identity:
    """Return a client; the same one for the same number."""
    return Identity.create(f"client {number}")


@cache
def authority() -> Authority:
    """Return the key authority."""
    return Authority.create()


@cache
def credentials(number: int) -> Credentials:
    """Return what a client shows in a handshake."""
    public, issuer = identity(number).public, authority().issuer
    certificate = issuer.issue("client", public.client_id, public.tls_key)
    return identity(number).credentials(certificate, issuer.certificate)


@cache
def operator() -> Credentials:
    """Return what the operator shows."""
    return authority().issuer.credentials("operator", "operator")


def spec_of(values: int = 6, summands: int = 64, bound: int = 10**6) -> VectorSpec:
    """Return a vector of item changes and two metrics."""
    return VectorSpec(
        segments=(
            SegmentSpec(name="change", length=values, max_abs_sum=bound),
            SegmentSpec(name="metrics", length=2, max_abs_sum=bound, signed=False),
        ),
        max_summands=summands,
    )


def plan_of(**rounds: float) -> Plan:
    """Return a plan without protection."""
    return Plan(
        federation=FederationSettings(name="movies"),
        protection=ProtectionSettings(name="none"),
        rounds=RoundSettings(**{"total": 1, "deadline_seconds": 60, **rounds}),
    )


def epoch_of(
    protection: Protection,
    n_clients: int,
    *,
    number: int = 1,
    context: bytes | None = None,
    reveals: bool = False,
) -> KeyEpoch:
    """Return a key epoch of clients 0, 1, 2 ..."""
    keyless, secret = protection.generate()
    members = [identity(n).public for n in range(n_clients)]
    return authority().new_epoch(
        federation="movies",
        epoch=number,
        members=members,
        partition=partition_of(who.client_id for who in members) if reveals else None,
        minimum_summands=1,
        protection="none",
        protection_fingerprint=protection.chosen.fingerprint(),
        server_context=keyless if context is None else context,
        protection_secret=secret.export_for_wrapping(),
        revealer=identity(REVEALER).public if reveals else None,
    )


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A federation and what its clients would send."""

    federation: Federation

    @classmethod
    def of(
        cls,
        n_clients: int = 4,
        *,
        veiled: bool = False,
        reveals: bool = False,
        epoch: int = 1,
        values: int = 6,
        privacy: PrivacySettings | None = None,
        **rounds: float,
    ) -> Bench:
        """Return a federation of clients 0, 1, 2 ...

        Args:
            veiled: whether the coordinator cannot read sums.
            reveals: whether the key authority opens them; else clients do, who share its key.
        """
        spec = spec_of(values)
        kind = Veiled if veiled or reveals else NoProtection
        protection = kind(spec, kind.plan(spec))
        plan = plan_of(**rounds)
        if privacy is not None:
            plan = plan.model_copy(update={"privacy": privacy})
        return cls(
            federation=Federation(
                plan=plan,
                plan_fingerprint=plan_fingerprint(plan),
                catalogue=CATALOGUE,
                keys=epoch_of(protection, n_clients, number=epoch, reveals=reveals),
                vectors=RoundVectors.fixed(spec, CATALOGUE.n_items),
                protection=protection,
            )
        )

    def store(
        self, folder: Path, *, failpoint: Failpoint = no_failpoint, reserve_bytes: int = 0
    ) -> SqliteStore:
        """Open a store for it."""
        return SqliteStore(
            folder / "state",
            self.federation.identity,
            failpoint=failpoint,
            reserve_bytes=reserve_bytes,
        )

    def vector(self, number: int, round_id: int, salt: int = 0) -> np.ndarray:
        """Return what a client contributes: different for every client and round."""
        length = self.federation.vectors.largest.length
        return np.arange(length, dtype=np.int64) + 100 * number + 10 * round_id + salt

    def payload(self, number: int, round_id: int, salt: int = 0) -> bytes:
        """Return a client's update as it is sent."""
        member = self.federation.protection.member(self.federation.keys.server_context, b"none")
        return member.protect(self.vector(number, round_id, salt))

    def sum_of(self, numbers: set[int], round_id: int) -> bytes:
        """Return the sum of clients' updates as the coordinator should have it."""
        accumulator = self.federation.protection.accumulator(self.federation.keys.server_context)
        for number in sorted(numbers):
            accumulator.add(self.payload(number, round_id))
        return accumulator.finish()

    def metrics_of(self, numbers: set[int], round_id: int) -> bytes:
        """Return the metrics of that sum."""
        total = np.zeros(self.federation.vectors.largest.length, dtype=np.int64)
        for number in numbers:
            total += self.vector(number, round_id)
        return total[-2:].astype("<i8").tobytes()

    def kind_of(self, round_id: int) -> RoundKind:
        """Return what a round is for if every round before it was published."""
        if round_id == 1:
            return "count"
        return "train" if round_id <= 1 + self.federation.plan.rounds.total else "evaluate"

    def header(
        self, number: int, round_id: int, payload: bytes, run: str, /, **changes: object
    ) -> UploadHeader:
        """Return a signed header; `changes` are made before signing.

        Kind and base are those of a run in which no round was abandoned.
        """
        header = UploadHeader(
            protocol_version=PROTOCOL_VERSION,
            federation="movies",
            run=run,
            round=RoundId(round_id),
            kind=self.kind_of(round_id),
            base_round=RoundId(round_id - 1),
            base_state=bytes(32),
            key_list=b"",
            nonce=b"",
            epoch=self.federation.keys.roster.epoch,
            client_id=identity(number).client_id,
            catalogue_fingerprint=CATALOGUE.fingerprint,
            plan_fingerprint=self.federation.plan_fingerprint,
            length=len(payload),
            digest=blake3(payload).digest(),
            n_rows=CATALOGUE.n_items,
        )
        header = replace(header, **changes)  # type: ignore[arg-type]
        return replace(header, signature=identity(number).sign(header.statement()))

    def statement(
        self, task: Reveal, run: str, /, *, content: str = "honest", **changes: object
    ) -> RevealStatement:
        """Return the key authority's signed word on the sum of a round."""
        ids = {header.client_id for header in task.contributions}
        numbers = {n for n in range(len(self.federation.roster)) if identity(n).client_id in ids}
        statement = RevealStatement(
            federation="movies",
            run=run,
            round=task.round,
            epoch=task.epoch,
            client_id=identity(REVEALER).client_id,
            manifest_digest=digest_of(run, task.round, task.contributions),
            state_tag=blake3(content.encode()).digest(),
            published_digest=blake3(SEALED_BYTES * content.encode()).digest(),
            metrics=self.metrics_of(numbers, task.round),
            n_rows=CATALOGUE.n_items,
            kind=task.kind,
            # Something was refused in between.
            sequence=2 * task.round,
        )
        statement = replace(statement, **changes)  # type: ignore[arg-type]
        return replace(statement, signature=identity(REVEALER).sign(statement.statement()))

    def report(
        self, number: int, round_id: int, run: str, content: str = "honest", /, **changes: object
    ) -> Report:
        """Return a client's signed word on a published round."""
        report = Report(
            federation="movies",
            run=run,
            round=RoundId(round_id),
            epoch=self.federation.keys.roster.epoch,
            client_id=identity(number).client_id,
            state_tag=blake3(content.encode()).digest(),
            metrics=np.arange(2, dtype="<i8").tobytes(),
            n_rows=CATALOGUE.n_items,
        )
        report = replace(report, **changes)  # type: ignore[arg-type]
        return replace(report, signature=identity(number).sign(report.statement()))


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
        round_id = engine.run.state.current.number
    payload = bench.payload(number, round_id, salt)
    seen: dict[str, Any] = {}
    if engine.run.state.current is not None and engine.run.state.current.number == round_id:
        seen = terms_of(engine.run.state)
    header = bench.header(number, round_id, payload, engine.run.name, **(seen | changes))
    return await engine.updates.receive(header, pieces(payload))


async def collect(engine: Engine, bench: Bench, numbers: Collection[int]) -> None:
    """Let clients come and upload, and the sum be made."""
    await gather(engine, numbers)
    for number in numbers:
        await upload(engine, bench, number)
    await engine.run.work.settled()


async def pieces(payload: bytes, start: int = 0) -> AsyncIterator[ByteChunk]:
    """Yield what a stream brings after its header, from a byte on."""
    for offset, data in split(payload, start):
        yield ByteChunk(offset=offset, data=data)


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
    text = bench.report(number, run.state.published, run.name, content)
    await take_report(run, engine.admission, text)
    await engine.run.work.settled()


async def send_snapshot(
    engine: Engine, bench: Bench, number: int, data: bytes, content: str = "honest"
) -> None:
    """Send a snapshot of the last published round."""
    text = bench.report(number, engine.run.state.published, engine.run.name, content, metrics=b"")
    await engine.exchange.receive(text, Blob.of(data), pieces(data))


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
