"""Processes that are killed, at chosen places and at random ones."""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from world.bench import (
    KINDS,
    N_ITEMS,
    Accepted,
    Bench,
    compute,
    data,
    federal,
    merged,
    plan_of,
)
from world.children import (
    INTERRUPTED,
    PIECE_BYTES,
    Child,
    ClientProcess,
    CoordinatorProcess,
    KillClient,
    KillCoordinator,
    close_all,
)
from world.clock import poll
from world.links import Acknowledged
from world.parties import AuthorityProcess, Client, Federation, published_rounds

from fedrec.data import leave_one_out
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.model.tables import names_in, read_manifest
from fedrec.plan.layout import Layout, protection_of
from fedrec.wire.messages import RoundKind
from fedrec_client.state.private_store import PrivateStore

VICTIM = 2


@contextmanager
def ending(children):
    """End child processes with a block."""
    try:
        yield
    finally:
        close_all(children)


def sizes(folder):
    """Return the sizes of the files that are in a folder just now."""
    found = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found.append(path.stat().st_size)
    return found


def current(federations):
    """Return the round in progress, once there is a federation."""
    return federations[0].coordinator.engine.run.state.current if federations else None


def check_finished(federation):
    """The threads' clients and the killed one ended with the model of an undisturbed run."""
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    assert [event for event in federation.journal() if event.kind == "round abandoned"] == []
    assert federal(federation.metrics()) == federal(merged().metrics)
    bench = federation.bench
    assert {bench.model(number) for number in range(bench.n_clients)} == {merged().model}


TRAINING = (
    KillClient(place="before the upload", round=1),
    KillClient(place="in training", round=2),
    KillClient(place="protected", round=3),
    KillClient(place="sent", round=3),
    KillClient(place="sent", round=5),
)
STEPS = (
    KillClient(place="before keys", round=1),
    KillClient(place="after keys", round=1),
    KillClient(place="before shares", round=2),
    KillClient(place="after shares", round=2),
    KillClient(place="before the upload", round=2),
    KillClient(place="before signature", round=3),
    KillClient(place="after signature", round=3),
    KillClient(place="before answer", round=4),
    KillClient(place="after answer", round=5),
)
CTRL_C = tuple(
    KillClient(place=place, round=round_id, number=signal.SIGINT)
    for place, round_id in (
        ("joined", None), ("in training", 2), ("protected", 3), ("before the upload", 4),
        ("sent", 5),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("protection", "kills"),
    [
        pytest.param("bfv", TRAINING, id="killed"),
        pytest.param("masks", STEPS, id="killed in every masked step", marks=pytest.mark.long),
        pytest.param("none", CTRL_C, id="stopped by Ctrl-C", marks=pytest.mark.long),
    ],
)
def test_a_client_killed_or_stopped_anywhere(found, protection, kills):
    federation = found(plan_of(protection))
    for number in range(VICTIM):
        federation.client(number)
    children: list[Child] = []
    with ending(children):
        for kill in kills:
            children.append(ClientProcess(federation.bench, VICTIM, federation.address, kill))
            ended = INTERRUPTED if kill.number == signal.SIGINT else -kill.number
            assert children[-1].ended(kill) == ended, kill
        children.append(ClientProcess(federation.bench, VICTIM, federation.address))
        assert children[-1].answer() == "all rounds are published"
        check_finished(federation)


@pytest.mark.long
def test_a_client_killed_whose_tables_lie_in_files(found):
    federation = found(plan_of("none"))
    for number in range(VICTIM):
        federation.client(number)
    children: list[Child] = []
    state = Path(federation.bench.client_settings(VICTIM, federation.address).client.state)
    with ending(children):
        for kill in (
            KillClient(place="in training", round=2),
            KillClient(place="protected", round=3),
            KillClient(place="sent", round=4),
            None,
        ):
            child = ClientProcess(federation.bench, VICTIM, federation.address, kill, in_files=True)
            children.append(child)
            if kill is None:
                assert child.answer() == "all rounds are published"
                assert child.ended() == 0
            else:
                assert child.ended(kill) == -signal.SIGKILL, kill
            # Whatever the moment: all that the state names is there.
            assert needed_blocks(state) <= {path.name for path in state.glob("blocks/*.bin")}
        check_finished(federation)
        left = {path.name for path in state.glob("blocks/*")} - {"lock"}
        assert left == needed_blocks(state)
        assert len(left) > 2


def needed_blocks(state):
    """Return the blocks that a client's committed state names."""
    with PrivateStore(state, read_only=True) as store:
        versions = [read_manifest(state / ref.name) for ref in store.state.private_files()]
    return set().union(*(names_in(version or {}) for version in versions))


def test_a_client_killed_half_way_through_its_upload(found):
    writes: list[int] = []
    federations: list[Federation] = []

    def count(name):
        round_ = current(federations)
        if name == "draft.write" and round_ is not None and round_.phase == "collecting":
            writes.append(round_.number)

    federation = found(plan_of("bfv"), failpoint=count)
    federations.append(federation)
    bench = federation.bench
    counting = Layout.counting(bench.plan, N_ITEMS).vector_spec
    whole = protection_of(bench.plan, N_ITEMS).over(counting).chosen.message_bytes
    partial = bench.workspace.coordinator_state / "partial"
    for number in range(VICTIM):
        federation.client(number)
    children: list[Child] = []
    with ending(children):
        half = KillClient(place="in the upload", round=2)
        children.append(ClientProcess(bench, VICTIM, federation.address, half))
        # Another client's update may lie there whole for a moment.
        assert poll(lambda: [size for size in sizes(partial) if whole / 2 <= size < whole])
        children[-1].process.kill()
        assert children[-1].ended() == -signal.SIGKILL
        children.append(ClientProcess(bench, VICTIM, federation.address))
        assert children[-1].answer() == "all rounds are published"
        check_finished(federation)
    pieces = math.ceil(whole / PIECE_BYTES)
    assert writes.count(2) == VICTIM + pieces, "the upload began anew instead of going on"


def test_a_client_killed_before_it_hears_of_the_acknowledgement(found):
    federations: list[Federation] = []

    def kill(name):
        round_ = current(federations)
        if name != "update.ack" or round_ is None or round_.number != 3 or len(children) > 1:
            return
        # The first acknowledgement since it was counted, its own or that of one counted with it.
        if victim in round_.accepted:
            children[-1].process.kill()

    federation = found(plan_of("none"), failpoint=kill)
    federations.append(federation)
    victim = Identity.load(federation.bench.state(VICTIM)).client_id
    children: list[Child] = []
    with ending(children):
        children.append(ClientProcess(federation.bench, VICTIM, federation.address))
        for number in range(VICTIM):
            federation.client(number)
        assert children[-1].ended() == -signal.SIGKILL
        children.append(ClientProcess(federation.bench, VICTIM, federation.address))
        assert children[-1].answer() == "all rounds are published"
        check_finished(federation)


COLLECTING = [
    KillCoordinator(failpoint="draft.write", round=1, phase="collecting", counted=0),
    KillCoordinator(failpoint="rows.committed", round=1, phase="collecting"),
    KillCoordinator(failpoint="folder.synced", round=2, phase="collecting", counted=0),
    KillCoordinator(failpoint="update.ack", round=2),
    KillCoordinator(failpoint="file.rename", round=3, phase="summing", counted=3),
]
REPORTING = [
    KillCoordinator(failpoint="report.ack", round=3, phase="reporting", reports=1),
    KillCoordinator(failpoint="rows.commit", round=4, phase="summing", counted=3),
    KillCoordinator(failpoint="rows.commit", round=4, phase="reporting", reports=0),
]


MASKED = [
    KillCoordinator(failpoint="masks.ack", round=1, phase="collecting"),
    KillCoordinator(failpoint="rows.committed", round=1, phase="sharing"),
    KillCoordinator(failpoint="masks.closed", round=1, phase="masking"),
    KillCoordinator(failpoint="folder.synced", round=2, phase="masking", counted=0),
    KillCoordinator(failpoint="update.ack", round=2, phase="masking"),
    KillCoordinator(failpoint="masks.closed", round=2, phase="signing"),
    KillCoordinator(failpoint="masks.ack", round=3, phase="signing"),
    KillCoordinator(failpoint="rows.commit", round=3, phase="unmasking"),
    KillCoordinator(failpoint="masks.ack", round=4, phase="unmasking"),
    KillCoordinator(failpoint="masks.closed", round=4, phase="summing"),
    KillCoordinator(failpoint="rows.commit", round=5, phase="summing", counted=3),
]


@pytest.mark.parametrize(
    ("protection", "algorithm", "kills"),
    [
        pytest.param(
            "none",
            "fedmf",
            [
                *COLLECTING,
                KillCoordinator(failpoint="rows.commit", round=4, phase="summing", counted=3),
                KillCoordinator(failpoint="rows.committed", round=5, phase="summing", counted=3),
            ],
            marks=pytest.mark.long,
        ),
        (
            "none",
            # Its steps depend on how many rounds were published.
            "fedrap",
            [
                KillCoordinator(failpoint="file.rename", round=3, phase="summing", counted=3),
                KillCoordinator(failpoint="rows.commit", round=4, phase="summing", counted=3),
            ],
        ),
        pytest.param(
            "bfv",
            "fedmf",
            [
                *COLLECTING,
                *REPORTING,
                KillCoordinator(failpoint="rows.committed", round=5, phase="reporting", reports=1),
            ],
            marks=pytest.mark.long,
        ),
        pytest.param("masks", "fedmf", MASKED, marks=pytest.mark.long),
    ],
    ids=["none", "none-fedrap", "bfv", "masks"],
)
def test_the_coordinator_killed_everywhere(tmp_path, protection, algorithm, kills):
    bench = Bench.make(tmp_path, plan_of(protection, algorithm=algorithm))
    acknowledged = Acknowledged()
    children: list[Child] = []
    clients: list[Client] = []
    with ending(children):
        try:
            first = CoordinatorProcess(bench, kill=kills[0])
            children.append(first)
            clients += [
                Client(bench.client_settings(number, first.address), wrap=acknowledged)
                for number in range(bench.n_clients)
            ]
            port = int(first.address.rpartition(":")[2])
            for killed, following in zip(kills, [*kills[1:], None], strict=True):
                assert children[-1].ended(killed) == -signal.SIGKILL, killed
                children.append(CoordinatorProcess(bench, kill=following, port=port))
            for client in clients:
                assert client.result().reason == "all rounds are published"
            published = published_rounds(bench, first.address)
        finally:
            for client in clients:
                client.stop()
    assert [found.round for found in published] == list(range(1, len(KINDS) + 1))
    counted = {(h.round, h.client_id) for found in published for h in found.contributions}
    assert acknowledged.updates == counted
    assert len(counted) == bench.n_clients * len(KINDS)
    assert {bench.model(number) for number in range(bench.n_clients)} == {merged(algorithm).model}


LONGEST_PAUSE_SECONDS = 1.2
"""Between a start and the next kill: several rounds of the tests' federation."""

Party = CoordinatorProcess | ClientProcess | AuthorityProcess


@dataclass
class Parties:
    """Every party of a federation, each a process of its own.

    Attributes:
        kills: who was killed, in order.
        slowest: the longest time from a coordinator's start to its port's being open.
    """

    bench: Bench
    with_authority: bool
    kills: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def __post_init__(self):
        first = CoordinatorProcess(self.bench)
        self.address = first.address
        self._turns: list[str] = []
        self._port = int(first.address.rpartition(":")[2])
        self._running: dict[str, Party] = {"coordinator": first}
        self._start_of: dict[str, Callable[[], Party]] = {"coordinator": self._coordinator}
        for number in range(self.bench.n_clients):
            self._start_of[f"client {number}"] = self._client_of(number)
        if self.with_authority:
            self._start_of["authority"] = lambda: AuthorityProcess(self.bench, self.address)
        for name in list(self._start_of)[1:]:
            self._running[name] = self._start_of[name]()

    def _client_of(self, number):
        return lambda: ClientProcess(self.bench, number, self.address)

    def _coordinator(self):
        before = time.monotonic()
        found = CoordinatorProcess(self.bench, port=self._port)
        self.slowest = max(self.slowest, time.monotonic() - before)
        return found

    def kill(self, dice):
        """End a party, whatever it is doing, and start it again."""
        if not self._turns:
            # Every party once before any party again.
            self._turns = dice.sample(sorted(self._running), len(self._running))
        name = self._turns.pop()
        victim = self._running[name]
        if not isinstance(victim, AuthorityProcess):
            victim.process.kill()
        victim.close()
        self.kills.append(name)
        self._running[name] = self._start_of[name]()

    def is_over(self):
        """Tell whether some client has come to the run's end."""
        return any(client._ours.poll() for client in self._clients())

    def reasons(self):
        """Return why each client's run ended, as it tells it."""
        return [client.answer() for client in self._clients()]

    def _clients(self):
        return [
            cast(ClientProcess, self._running[f"client {number}"])
            for number in range(self.bench.n_clients)
        ]

    def close(self):
        """End them all."""
        for party in self._running.values():
            party.close()


def kinds_of(total):
    """Return what the rounds of a run are for."""
    training: list[RoundKind] = ["train"] * total
    return ["count", *training, "evaluate"]


def play(folder, protection, *, total, kills, seed):
    """Play a run in which a party is killed again and again, and check all that came of it."""
    holder = "members" if protection in ("masks", "none") else "authority"
    bench = Bench.make(folder, plan_of(protection, key_holder=holder, total=total))
    dice = random.Random(seed)
    parties = Parties(bench, with_authority=holder == "authority")
    try:
        while len(parties.kills) < kills and not parties.is_over():
            time.sleep(dice.uniform(0.0, LONGEST_PAUSE_SECONDS))
            parties.kill(dice)
        assert parties.reasons() == ["all rounds are published"] * bench.n_clients
        published = published_rounds(bench, parties.address)
    finally:
        parties.close()
    all_users = leave_one_out(data().interactions, data().catalogue)
    rounds = [
        Accepted(round=RoundId(number), kind=kind, clients=frozenset({0}))
        for number, kind in enumerate(kinds_of(total), start=1)
    ]
    undisturbed = compute(plan_of("none", total=total), [all_users], rounds)
    assert [found.kind for found in published] == kinds_of(total)
    assert all(len(found.contributions) == bench.n_clients for found in published)
    models = {bench.model(number) for number in range(bench.n_clients)}
    assert models == {undisturbed.model}, f"seed {seed}: {parties.kills}"
    return parties


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("protection", "seed"), [("bfv", 100), ("masks", 300)])
def test_fifteen_kills_at_random_instants(tmp_path, protection, seed):
    left, runs = 15, 0
    while left > 0:
        folder = tmp_path / f"run-{runs}"
        folder.mkdir()
        parties = play(folder, protection, total=40, kills=left, seed=seed + runs)
        assert parties.kills
        left -= len(parties.kills)
        runs += 1
        print(f"{protection}, run {runs}: {parties.kills}, start of a coordinator at most "
              f"{parties.slowest:.2f} s")  # fmt: skip
