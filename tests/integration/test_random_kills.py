"""`kill -9` at random instants of whoever it is, the key authority among them, costs time alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from integration.support.authority import AuthorityProcess
from integration.support.bench import Accepted, Bench, compute, data, plan_of
from integration.support.children import ClientProcess, CoordinatorProcess
from integration.support.parties import published_rounds

from fedrec.data import leave_one_out
from fedrec.ids import RoundId
from fedrec.wire.messages import RoundKind

LONGEST_PAUSE_SECONDS = 1.2
"""Between a start and the next kill: several rounds of the tests' federation."""

Party = CoordinatorProcess | ClientProcess | AuthorityProcess


@dataclass
class Parties:
    """Everybody of a federation, each a process of its own.

    Attributes:
        kills: who was killed, in order.
        slowest: the longest time from a coordinator's start to its port's being open.
    """

    bench: Bench
    with_authority: bool
    kills: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def __post_init__(self) -> None:
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

    def _client_of(self, number: int) -> Callable[[], Party]:
        return lambda: ClientProcess(self.bench, number, self.address)

    def _coordinator(self) -> Party:
        before = time.monotonic()
        found = CoordinatorProcess(self.bench, port=self._port)
        self.slowest = max(self.slowest, time.monotonic() - before)
        return found

    def kill(self, dice: random.Random) -> None:
        """End somebody, whatever it is doing, and start it again."""
        if not self._turns:
            # Everybody once before anybody again.
            self._turns = dice.sample(sorted(self._running), len(self._running))
        name = self._turns.pop()
        victim = self._running[name]
        if not isinstance(victim, AuthorityProcess):
            victim.process.kill()
        victim.close()
        self.kills.append(name)
        self._running[name] = self._start_of[name]()

    def is_over(self) -> bool:
        """Tell whether some client has come to the run's end."""
        return any(client._ours.poll() for client in self._clients())

    def reasons(self) -> list[str]:
        """Return why each client's run ended, as it tells it."""
        return [client.told() for client in self._clients()]

    def _clients(self) -> list[ClientProcess]:
        return [
            cast(ClientProcess, self._running[f"client {number}"])
            for number in range(self.bench.n_clients)
        ]

    def close(self) -> None:
        """End them all."""
        for party in self._running.values():
            party.close()


def kinds_of(total: int) -> list[RoundKind]:
    """Return what the rounds of a run are for."""
    training: list[RoundKind] = ["train"] * total
    return ["count", *training, "evaluate"]


def play(folder: Path, protection: str, *, total: int, kills: int, seed: int) -> Parties:
    """Play a run in which somebody is killed again and again, and check all that came of it."""
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
    everybody = leave_one_out(data().interactions, data().catalogue)
    rounds = [
        Accepted(round=RoundId(number), kind=kind, clients=frozenset({0}))
        for number, kind in enumerate(kinds_of(total), start=1)
    ]
    undisturbed = compute(plan_of("none", total=total), [everybody], rounds)
    assert [found.kind for found in published] == kinds_of(total)
    assert all(len(found.contributions) == bench.n_clients for found in published)
    models = {bench.model(number) for number in range(bench.n_clients)}
    assert models == {undisturbed.model}, f"seed {seed}: {parties.kills}"
    return parties


def test_somebody_killed_at_random_instants(tmp_path):
    parties = play(tmp_path, "bfv", total=8, kills=4, seed=1)
    assert parties.kills


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("protection", "seed"), [("bfv", 100), ("ckks", 200), ("masks", 300), ("paillier", 400)]
)
def test_fifteen_kills_under_every_protection(tmp_path, protection, seed):
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
