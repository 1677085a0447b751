"""Clients under masks that train nothing, in one process or as processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from world.cells import guest, partition_after, partition_of
from world.clock import FakeClock
from world.engine import CATALOGUE, authority, gather, identity, pieces, spec_of

from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.ids import RoundId
from fedrec.plan.agreement import plan_fingerprint, plan_from_json
from fedrec.plan.schema import FederationSettings, Plan, PrivacySettings, RoundSettings
from fedrec.protection import (
    PROTECTIONS,
    Masks,
    NoProtection,
    ProtectionSettings,
    RoundTerms,
    VectorSpec,
)
from fedrec.protection.masks import KeyList, MaskTerms, MaskWords, Participant
from fedrec.protection.masks.messages import (
    BUNDLE,
    GIVEN,
    INBOX,
    key_list_from_bytes,
    keys_to_bytes,
    signatures_from_bytes,
)
from fedrec.protection.masks.terms import ring_seed
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    FederationInfo,
    StepMessage,
    StepTask,
    Train,
    UploadHeader,
)
from fedrec_server.engine import Engine
from fedrec_server.federation import Federation
from fedrec_server.rounds.state import Round
from fedrec_server.store.durable_files import Failpoint, no_failpoint
from fedrec_server.store.sqlite import SqliteStore

BASE_STATE = bytes(32)
Fetch = Callable[[RoundId, str], bytes]
Made = StepMessage | tuple[UploadHeader, bytes]


def made_up(length: int, number: int, round_id: int) -> NDArray[np.int64]:
    """Return what a client contributes: different for every client and round."""
    return (np.arange(length) % 1000 + 7 * number + 10 * round_id).astype(np.int64)


@lru_cache(maxsize=2)
def key_list_of(raw: bytes) -> KeyList:
    """Read a list of keys once for all clients of a process: a thousand take a gigabyte."""
    return key_list_from_bytes(raw)


@lru_cache(maxsize=4)
def roster_of(raw: bytes) -> Roster:
    """Read a roster once for all clients of a process."""
    return Roster.from_json(raw)


@lru_cache(maxsize=4)
def plan_of(text: str) -> tuple[Plan, str]:
    """Read a plan, and name it, once for all clients of a process."""
    plan = plan_from_json(text)
    return plan, plan_fingerprint(plan)


class LightClient:
    """Keeps everything in memory, and answers a task with what is to be sent.

    Args:
        identity: the client's.
        info: what the coordinator says of the federation.
        spec: the protected vector.
        vector: returns what the client contributes to a round.
    """

    def __init__(
        self,
        identity: Identity,
        info: FederationInfo,
        spec: VectorSpec,
        vector: Callable[[RoundId], NDArray[np.int64]],
    ) -> None:
        self.identity = identity
        self._info = info
        self._plan, self._plan_fingerprint = plan_of(info.plan_json)
        self._roster = roster_of(info.roster_json)
        self._vector = vector
        kind = PROTECTIONS["masks"]
        self._words = MaskWords(spec, kind.plan(spec))
        self._train: Train | None = None
        self._participant: Participant | None = None

    def advertise(self, task: Train) -> StepMessage:
        """Begin a round."""
        self._train = task
        self._participant, keys = Participant.begin(self._terms(task), self.identity)
        return self._message("keys", keys_to_bytes(keys, BASE_STATE))

    def step(self, task: StepTask, fetch: Fetch) -> Made:
        """Take the next step of the round."""
        participant = self._participant
        assert participant is not None and self._train is not None
        assert task.round == self._train.round
        raw = fetch(task.round, task.step)
        if task.step == "shares":
            seed = ring_seed(self._round_terms(self._train))
            bundle = participant.share(key_list_of(raw), self._roster, seed)
            return self._message("shares", BUNDLE.to_bytes(bundle))
        if task.step == "vector":
            words = self._words.encode(self._vector(task.round))
            inbox = INBOX.from_bytes(raw)
            masked = participant.mask(inbox, words, n_wide=self._words.n_wide)
            payload = self._words.message(masked)
            return self._header(payload, participant.round_digest), payload
        if task.step == "signature":
            return self._message("signature", participant.sign(raw, self.identity, self._roster))
        given = participant.give(signatures_from_bytes(raw), self._roster)
        return self._message("answer", GIVEN.to_bytes(given))

    def _terms(self, task: Train) -> MaskTerms:
        return MaskTerms.of(self._round_terms(task), self._plan.protection.tolerance)

    def _round_terms(self, task: Train) -> RoundTerms:
        rounds = self._plan.rounds
        return RoundTerms(
            federation=self._plan.federation.name,
            run=self._info.run,
            round=task.round,
            seed=self._plan.federation.seed,
            kind=task.kind,
            base_round=task.base_round,
            base_state=BASE_STATE,
            catalogue_fingerprint=self._info.catalogue_fingerprint,
            plan_fingerprint=self._plan_fingerprint,
            roster=self._roster,
            minimum_summands=max(
                3, rounds.minimum_clients, rounds.minimum_summands, self._roster.minimum_summands
            ),
        )

    def _message(self, step: str, body: bytes) -> StepMessage:
        unsigned = StepMessage(
            federation=self._info.federation,
            run=self._info.run,
            round=self._train.round,
            epoch=self._info.epoch,
            client_id=self.identity.client_id,
            step=step,
            body=body,
        )
        return replace(unsigned, signature=self.identity.sign(unsigned.statement()))

    def _header(self, payload: bytes, key_list: bytes) -> UploadHeader:
        blob = Blob.of(payload)
        unsigned = UploadHeader(
            protocol_version=PROTOCOL_VERSION,
            federation=self._info.federation,
            run=self._info.run,
            round=self._train.round,
            kind=self._train.kind,
            base_round=self._train.base_round,
            base_state=BASE_STATE,
            key_list=key_list,
            nonce=b"",
            epoch=self._info.epoch,
            client_id=self.identity.client_id,
            catalogue_fingerprint=self._info.catalogue_fingerprint,
            plan_fingerprint=self._plan_fingerprint,
            length=blob.length,
            digest=blob.digest,
            n_rows=self._info.n_items,
        )
        return replace(unsigned, signature=self.identity.sign(unsigned.statement()))


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


def signed(number: int, message: StepMessage, body: bytes) -> StepMessage:
    """Return a client's message with another body, signed by it."""
    changed = replace(message, body=body, signature=b"")
    return replace(changed, signature=identity(number).sign(changed.statement()))


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

    async def task(self, number: int) -> object:
        """Return what a client is told."""
        client_id, run = identity(number).client_id, self.engine.run
        return (
            await self.engine.polls.next_task(client_id, run.name, run.state.published, 0.0)
        ).task

    async def made(self, number: int) -> Made | None:
        """Return a client's next message without sending it; None when it has nothing to do."""
        client, task = self.clients[number], await self.task(number)
        if isinstance(task, Train):
            return client.advertise(task)
        if not isinstance(task, StepTask):
            return None
        raw = await self.engine.steps.material(client.identity.client_id, task.round, task.step)
        return await asyncio.to_thread(client.step, task, lambda round_id, step: raw)

    async def message(self, number: int) -> StepMessage:
        """Return a client's next message, which is no vector, without sending it."""
        made = await self.made(number)
        assert isinstance(made, StepMessage)
        return made

    async def act(self, number: int) -> bool:
        """Do what a client is told; False when it has nothing to do."""
        made = await self.made(number)
        if made is not None:
            await self.send(made)
        return made is not None

    async def send(self, made: Made) -> bool:
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

    async def to_sum(self, without: Collection[int] = ()) -> None:
        """Let clients act until a sum is published."""
        while self.engine.run.state.published == 0:
            await self.all_act(without)

    async def to_end(self) -> None:
        """Let clients act until the run is over."""
        while self.engine.run.state.ending is None:
            await self.all_act()

    def published(self, round_id: int) -> NDArray[np.int64]:
        """Return a published sum."""
        record = self.engine.run.store.published(RoundId(round_id))
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


STEP_SECONDS = 3600.0


@contextmanager
def key_lists_checked_once() -> Iterator[None]:
    """Have one client check a list of keys for all: else each checks every signature anew.

    On machines of their own they do so side by side, a tenth of a millisecond for each signature.
    """
    checked: set[bytes] = set()
    verify = KeyList.verify

    def once(key_list: KeyList, terms: MaskTerms, roster: Roster) -> None:
        digest = key_list.digest(terms)
        if digest not in checked:
            verify(key_list, terms, roster)
            checked.add(digest)

    with patch.object(KeyList, "verify", once):
        yield
    assert len(checked) == 1


async def play_round(
    folder: Path,
    n_clients: int,
    *,
    values: int = 6,
    coordinator: str = "semi-honest",
    before: Collection[int] = (),
    after: Collection[int] = (),
    on_step: Callable[[str, float], None] = lambda phase, seconds: None,
) -> int:
    """Play one round and check its sum; return how many clients are in it.

    Args:
        coordinator: "malicious" makes each client check the signatures of more than half of all.
        before: drop out after their shares, before their vectors; their cells are not counted.
        after: drop out after their vectors.
        on_step: hears how long each step took.
    """
    federation = federation_of(
        n_clients,
        values=values,
        bound=10**9,
        coordinator=coordinator,
        deadline_seconds=STEP_SECONDS,
        mask_step_seconds=STEP_SECONDS,
    )
    with key_lists_checked_once():
        async with masked(folder, n_clients, federation=federation) as world:
            engine = world.engine
            gone: set[int] = set()
            while engine.run.state.published == 0:
                phase = world.round.phase
                gone |= set(before) if phase == "masking" else set()
                gone |= set(after) if phase == "signing" else set()
                begin = time.perf_counter()
                await world.all_act(without=gone, together=True)
                if engine.run.state.published == 0 and world.round.phase == phase:
                    world.clock.advance(2 * STEP_SECONDS)
                    await engine.tick()
                on_step(phase, time.perf_counter() - begin)
            # Cells are of three in the clients' order; what is over is in the last.
            last = n_clients // 3 - 1
            lost = {min(number // 3, last) for number in before}
            counted = {n for n in range(n_clients) if min(n // 3, last) not in lost}
            assert np.array_equal(world.published(1), world.sum_of(counted, 1))
            record = engine.run.store.published(engine.run.state.published)
            return len(record.contributions)
