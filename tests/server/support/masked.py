"""A federation under masks whose clients talk to an engine without a wire between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from server.support.driving import gather, pieces
from server.support.federations import CATALOGUE, authority, identity, spec_of
from server.support.light import LightClient, made_up
from world.cells import guest, partition_after, partition_of
from world.clock import FakeClock

from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.roster import Roster
from fedrec.ids import RoundId
from fedrec.plan.agreement import plan_fingerprint
from fedrec.plan.schema import FederationSettings, Plan, PrivacySettings, RoundSettings
from fedrec.protection import Masks, NoProtection, ProtectionSettings
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.messages import StepMessage, StepTask, Train, UploadHeader
from fedrec_server.engine import Engine
from fedrec_server.federation import Federation
from fedrec_server.rounds.state import Round
from fedrec_server.store.durable_files import Failpoint, no_failpoint
from fedrec_server.store.sqlite import SqliteStore


def federation_of(
    n_clients: int,
    *,
    values: int = 6,
    bound: int = 10**6,
    coordinator: str = "malicious",
    privacy: PrivacySettings | None = None,
    n_guests: int = 0,
    **rounds: float,
) -> Federation:
    """Return a federation of clients 0, 1, 2 ... under masks; the last of them are guests."""
    spec = spec_of(values, summands=max(64, n_clients), bound=bound)
    protection = Masks(spec, Masks.plan(spec))
    plan = Plan(
        federation=FederationSettings(name="movies"),
        protection=ProtectionSettings.model_validate({"name": "masks", "coordinator": coordinator}),
        rounds=RoundSettings(**{"total": 1, "deadline_seconds": 60, **rounds}),
        privacy=privacy or PrivacySettings(),
    )
    return Federation(
        plan=plan,
        plan_fingerprint=plan_fingerprint(plan),
        catalogue=CATALOGUE,
        keys=epoch_of(protection, range(n_clients), n_guests=n_guests),
        vectors=RoundVectors.fixed(spec, CATALOGUE.n_items),
        protection=protection,
    )


def epoch_of(
    protection: Masks,
    numbers: Iterable[int],
    *,
    epoch: int = 1,
    previous: Roster | None = None,
    n_guests: int = 0,
) -> KeyEpoch:
    """Return a key epoch of some clients: one cell, or what follows from the roster before."""
    context, secret = protection.generate()
    who = [identity(n) for n in numbers]
    members = [one.public for one in who]
    core = len(who) - n_guests
    cells = partition_of(
        (one.client_id for one in who[:core]), guests=[guest(one, "movies") for one in who[core:]]
    )
    if previous is not None:
        cells = partition_after(previous.partition, members, epoch)
    return authority().new_epoch(
        federation="movies",
        epoch=epoch,
        members=members,
        previous=previous,
        partition=cells,
        minimum_summands=1,
        protection="masks",
        protection_fingerprint=protection.chosen.fingerprint(),
        server_context=context,
        protection_secret=secret.export_for_wrapping(),
    )


@dataclass
class Masked:
    """An engine and light clients."""

    federation: Federation
    engine: Engine
    clock: FakeClock
    clients: list[LightClient] = field(default_factory=list)

    def enrol(self, numbers: Iterable[int]) -> None:
        """Have clients 0, 1, 2 ... begin anew in the engine's key epoch, without memories."""
        found, run = self.engine.run.federation, self.engine.run.name
        self.clients = []
        for number in numbers:
            who = identity(number)
            info = found.info(run, who.client_id, RoundId(0))
            made = partial(made_up, found.vectors.largest.length, number)
            self.clients.append(LightClient(who, info, found.vectors.largest, made))

    def vector(self, number: int, round_id: int) -> NDArray[np.int64]:
        """Return what a client contributes: different for every client and round."""
        return made_up(self.federation.vectors.largest.length, number, round_id)

    @property
    def round(self) -> Round:
        """The round in progress."""
        assert self.engine.run.state.current is not None
        return self.engine.run.state.current

    async def act(self, number: int) -> bool:
        """Do what a client is told; False when it has nothing to do."""
        client, engine = self.clients[number], self.engine
        client_id = client.identity.client_id
        task = (
            await engine.polls.next_task(
                client_id, engine.run.name, engine.run.state.published, 0.0
            )
        ).task
        if isinstance(task, Train):
            await engine.steps.hear(client.advertise(task))
        elif isinstance(task, StepTask):
            raw = await engine.steps.material(client_id, task.round, task.step)
            made = await asyncio.to_thread(client.step, task, lambda round_id, step: raw)
            await self.send(made)
        else:
            return False
        return True

    async def send(self, made: StepMessage | tuple[UploadHeader, bytes]) -> bool:
        """Send what a client made; True when it was a duplicate."""
        if isinstance(made, StepMessage):
            return await self.engine.steps.hear(made)
        header, payload = made
        return await self.engine.updates.receive(header, pieces(payload))

    async def all_act(self, without: Collection[int] = (), *, together: bool = False) -> None:
        """Let every client do one thing, and the engine what follows from it.

        Args:
            together: all at the same time, as clients of a network come.
        """
        acting = [number for number in range(len(self.clients)) if number not in without]
        if together:
            await asyncio.gather(*(self.act(number) for number in acting))
        else:
            for number in acting:
                await self.act(number)
        await self.engine.run.work.settled()

    async def to_phase(self, phase: str, without: Collection[int] = ()) -> None:
        """Let clients act until the round is in a phase."""
        while self.round.phase != phase:
            await self.all_act(without)

    def published(self, round_id: int) -> NDArray[np.int64]:
        """Return a published sum."""
        record = self.engine.run.store.published(RoundId(round_id))
        assert record is not None
        data = self.engine.run.store.spool.read(record.name, record.blob)
        spec = self.federation.vectors.largest
        codec = NoProtection(spec, NoProtection.plan(spec))
        context, _ = codec.generate()
        return codec.member(context).reveal(data, len(record.contributions))

    def sum_of(self, numbers: Iterable[int], round_id: int) -> NDArray[np.int64]:
        """Return the sum of clients' vectors."""
        return np.sum([self.vector(number, round_id) for number in numbers], axis=0)


@asynccontextmanager
async def masked(
    folder: Path,
    n_clients: int,
    *,
    federation: Federation | None = None,
    failpoint: Failpoint = no_failpoint,
    values: int = 6,
    **rounds: float,
) -> AsyncIterator[Masked]:
    """Start an engine with light clients, all of whom are there."""
    found = federation or federation_of(n_clients, values=values, **rounds)
    store = SqliteStore(folder / "state", found.identity, failpoint=failpoint)
    clock = FakeClock()
    engine = Engine(found, store, clock=clock, maximum_upload_bytes=1 << 24, failpoint=failpoint)

    try:
        await engine.start()
        world = Masked(found, engine, clock)
        world.enrol(range(n_clients))
        if engine.run.state.current is None:
            await gather(engine, range(n_clients))
        yield world
    finally:
        await engine.close()
