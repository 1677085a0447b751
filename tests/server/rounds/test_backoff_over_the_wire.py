"""What clients that are away or silent cost the others, over gRPC and mutual TLS (rule R12).

`test_backoff.py` shows the same of the pure state machine. Here every poll, upload and
opened sum is a call of a client or of the key authority; only the coordinator's clock is moved.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from server.support.driving import told_of
from server.support.federations import (
    REVEALER,
    SEALED_BYTES,
    Bench,
    credentials,
    identity,
    operator,
)
from server.support.serving import serving
from world.clock import FakeClock

from fedrec.wire.admin_link import AdminLink
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import Reveal, Task, Train
from fedrec_server.run.presence import LIVE_SECONDS

pytestmark = pytest.mark.slow

DEADLINE = 100.0
ROUNDS = [12, pytest.param(50, marks=pytest.mark.long)]


class Play:
    """Clients in cells of three and a key authority, each with a connection of its own.

    Attributes:
        deadlines: rounds that closed only when their time was over.
    """

    def __init__(self, folder: Path, n_clients: int) -> None:
        self.bench = Bench.of(
            n_clients, reveals=True, total=200, deadline_seconds=DEADLINE, minimum_clients=3
        )
        self.deadlines = 0
        self._clock = FakeClock()
        self._n_clients = n_clients
        self._stack = ExitStack()
        self._served = self._stack.enter_context(serving(self.bench, folder, clock=self._clock))
        self._links: dict[int, GrpcLink] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for link in self._links.values():
            link.close()
        self._stack.close()

    def round(self, away: set[int], silent: set[int]) -> None:
        """Play until the next round's collecting is over."""
        engine = self._served.coordinator.engine
        here = [number for number in range(self._n_clients) if number not in away]
        self._pass(LIVE_SECONDS + 1, here)
        self._speak()
        while engine.run.state.current is None:
            self._pass(LIVE_SECONDS - 5, here)
        number = engine.run.state.current.number
        for client in here:
            if isinstance(self._task(client).task, Train) and client not in silent:
                self._upload(client, number)
        round_ = engine.run.state.current
        if round_ is not None and round_.phase == "collecting":
            self.deadlines += 1
            self._pass(DEADLINE + 1, here)

    def journal(self) -> tuple[Counter[str], list[int]]:
        """Return how often what happened, and how many clients each published round counted."""
        self._speak()
        found, counted = Counter[str](), []
        with closing(AdminLink(self._served.address, operator())) as link:
            for event in link.events(follow=False):
                found[event.kind] += 1
                if event.kind == "round published":
                    counted.append(int(event.fields["counted"]))
        return found, counted

    def _pass(self, seconds: float, here: list[int]) -> None:
        """Let time pass, at whose end those who are here poll."""
        self._clock.advance(seconds)
        for client in here:
            self._task(client)
        self._served.do(self._served.coordinator.engine.tick())

    def _link(self, number: int) -> GrpcLink:
        if number not in self._links:
            self._links[number] = GrpcLink(self._served.address, credentials(number))
        return self._links[number]

    def _task(self, number: int, wait_seconds: float = 0.0) -> Task:
        published = self._served.coordinator.engine.run.state.published
        me = identity(number).client_id
        return self._link(number).next_task(
            me, self._served.run, published, wait_seconds=wait_seconds
        )

    def _upload(self, number: int, round_id: int) -> None:
        payload = self.bench.payload(number, round_id)
        told = told_of(self._served.coordinator.engine.run.state)
        header = self.bench.header(number, round_id, payload, self._served.run, **told)
        assert not self._link(number).submit_update(header, payload)

    def _speak(self) -> None:
        """Open the sum that waits for it, as the key authority."""
        round_ = self._served.coordinator.engine.run.state.current
        if round_ is None or round_.phase == "collecting":
            return
        task = self._task(REVEALER, wait_seconds=20.0).task
        if isinstance(task, Reveal):
            statement = self.bench.statement(task, self._served.run)
            self._link(REVEALER).submit_reveal(statement, SEALED_BYTES * b"honest")


@pytest.mark.parametrize("rounds", ROUNDS)
def test_thirty_clients_of_whom_a_tenth_does_not_poll(tmp_path, rounds):
    dice = random.Random(3)
    with Play(tmp_path, 30) as play:
        for _ in range(rounds):
            play.round(away={n for n in range(30) if dice.random() < 0.1}, silent=set())
        found, counted = play.journal()
    over = found["round published"] + found["round abandoned"]
    assert over >= rounds
    assert found["round published"] >= 0.95 * over
    assert sum(counted) >= 0.68 * 30 * len(counted)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_one_that_polls_and_is_silent_costs_few_deadlines(tmp_path, rounds):
    """After 1, 2, 4, 8 and then 16 rounds it is asked again: at most six times in fifty rounds."""
    with Play(tmp_path, 9) as play:
        for _ in range(rounds):
            play.round(away=set(), silent={8})
        found, counted = play.journal()
    # Rounds 1, 3, 6, 11, 20 and 37.
    assert play.deadlines <= (6 if rounds == 50 else 4)
    assert len(counted) >= rounds - play.deadlines
    assert "run finished" not in found
