"""How long clients are told to stay away, and how long an opening may take."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from world.machine import World, client, rules
from world.machine import rules as plain_rules

from fedrec.identity.cells import Cell, Partition
from fedrec.ids import ClientId
from fedrec.plan.protections import opening_seconds
from fedrec.protection import Paillier, SegmentSpec, VectorSpec
from fedrec.wire.messages import UploadHeader
from fedrec_server.rounds.backoff import is_stalled
from fedrec_server.rounds.changes import RoundAbandoned, RoundMeasured, RoundOpened, RoundPublished
from fedrec_server.rounds.events import Polled, Resumed, StopRequested
from fedrec_server.rounds.selection import absent

DEADLINE = 100.0
STEP = 5.0


def cells_of(n_clients, size, n_guests=0):
    """Return cells of neighbouring numbers; the last clients are guests of the first cell."""
    core = n_clients - n_guests
    parts = [range(begin, begin + size) for begin in range(0, core, size)]
    guests = frozenset(client(number) for number in range(core, n_clients))
    return Partition(
        cell_size=size,
        cells=tuple(
            Cell(
                id=number,
                since=1,
                core=frozenset(client(one) for one in part),
                guests=guests if number == 1 else frozenset(),
                state="active",
            )
            for number, part in enumerate(parts, start=1)
        ),
    )


@dataclass
class Play:
    """A run of encrypted rounds in which some clients poll and stay silent, and some are away.

    Attributes:
        counted: clients in each published round.
        deadlines: rounds that closed only when their time was over.
    """

    world: World
    n_clients: int
    counted: list[int] = field(default_factory=list)
    deadlines: int = 0
    given_up: int = 0
    opened: int = 0

    def round(self, away, silent):
        """Let time pass until a round is over."""
        here = [number for number in range(self.n_clients) if number not in away]
        while not any(
            isinstance(change, RoundOpened) for change in self.world.tick(*here, seconds=STEP)
        ):
            pass
        self.opened += 1
        asked = self.world.state.current.asked
        for number in here:
            if client(number) in asked and number not in silent:
                self.world.upload(number)
        if self.world.state.current.phase == "collecting":
            self.deadlines += 1
            for change in self.world.tick(*here, seconds=DEADLINE):
                self.given_up += isinstance(change, RoundAbandoned)
        if self.world.state.current is not None:
            accepted: dict[ClientId, UploadHeader] = dict(self.world.state.current.accepted)
            changes = self.world.sum()
            assert any(isinstance(change, RoundPublished) for change in changes)
            self.counted.append(len(accepted))


def play_of(n_clients, size, n_guests=0, **rounds):
    wanted = {"total": 200, "deadline_seconds": DEADLINE, "minimum_clients": size, **rounds}
    found = rules(needs_reveal=False, **wanted)
    if size > 1:
        found = replace(found, partition=cells_of(n_clients, size, n_guests))
    return Play(world=World.new(found, n_clients), n_clients=n_clients)


@pytest.mark.parametrize("seed", range(5))
def test_thirty_clients_of_whom_a_tenth_is_away_at_any_time(seed):
    play, dice = play_of(30, 3), random.Random(seed)
    for _ in range(50):
        play.round(away={n for n in range(30) if dice.random() < 0.1}, silent=set())
    assert len(play.counted) >= 0.95 * play.opened
    assert sum(play.counted) >= 0.68 * 30 * len(play.counted)


def test_six_clients_of_whom_a_tenth_is_away_at_any_time():
    play, dice, first_tries = play_of(6, 3), random.Random(1), 0
    for _ in range(100):
        here = {n for n in range(6) if dice.random() >= 0.1}
        whole = {*range(3)} <= here or {*range(3, 6)} <= here
        first_tries += whole
        if whole:
            play.round(away={*range(6)} - here, silent=set())
    assert first_tries >= 88 and play.given_up == 0


@pytest.mark.parametrize(("size", "n_guests"), [(1, 0), (3, 0), (3, 1)])
def test_one_that_polls_and_is_silent_costs_six_deadlines_in_fifty_rounds(size, n_guests):
    n_clients = 9 + n_guests
    play = play_of(n_clients, size, n_guests, minimum_clients=3)
    victim = n_clients - 1
    for _ in range(50):
        play.round(away=set(), silent={victim})
    assert play.deadlines <= 6 and len(play.counted) >= 44
    assert play.world.state.ending is None


def test_a_cell_that_answers_again_is_asked_in_every_round():
    play = play_of(9, 3, minimum_clients=3)
    for _ in range(20):
        play.round(away=set(), silent={8})
    for _ in range(20):
        play.round(away=set(), silent=set())
    assert play.counted[-3:] == [9, 9, 9]


def test_a_silent_cell_gets_no_seat_by_asking_for_one():
    play = play_of(9, 3, minimum_clients=3)
    play.round(away=set(), silent={8})
    world = play.world
    while not world.tick(*range(9), seconds=STEP):
        pass
    all_clients = frozenset(client(number) for number in range(9))
    asked = Polled(now=world.now, client_id=client(8), live=all_clients)
    assert world.apply(asked) == ()


def test_where_too_few_would_be_left_every_client_is_asked_again_and_the_run_stalls():
    play = play_of(3, 3)
    for _ in range(10):
        play.round(away=set(), silent={2})
    state = play.world.state
    assert is_stalled(state) and state.ending is None
    assert state.abandonments.unanswered == {client(2)}
    assert state.abandonments.reason == "1 clients that every sum needs did not answer in time"
    play.round(away=set(), silent=set())
    assert play.counted == [3] and not is_stalled(play.world.state)


def test_who_is_away_is_named():
    play = play_of(6, 3, minimum_clients=6)
    here = frozenset(client(number) for number in range(5))
    assert absent(play.world.state, here) == {client(5)}


def test_a_resumed_run_starts_with_a_clean_slate():
    """As it would if its process had ended in between: the store forgives what was given up."""
    world = World.new(rules(needs_reveal=False, minimum_clients=2, deadline_seconds=DEADLINE), 3)
    world.tick(0, 1, 2)
    world.upload(0)
    world.tick(0, 1, 2, seconds=DEADLINE)
    assert world.state.abandonments.reason and world.state.abandonments.unanswered == {
        client(1),
        client(2),
    }
    world.apply(StopRequested(now=world.now, at_once=True))
    world.apply(Resumed(now=world.now))
    assert (world.state.abandonments.reason, world.state.abandonments.in_row) == ("", 0)
    assert world.state.abandonments.unanswered == frozenset()


def rules_opening(entries=None, **rounds):
    return replace(plain_rules(**rounds), entries=entries)


@pytest.fixture(scope="module")
def entries():
    table = SegmentSpec(name="table", length=64_000, max_abs_sum=2**31, entries=1000)
    counts = SegmentSpec(name="counts", length=1, max_abs_sum=1, signed=False)
    spec = VectorSpec(segments=(table, counts), max_summands=100)
    return Paillier.plan(spec, preset="single-3072")


def test_it_is_the_price_of_the_expected_union(entries):
    found = rules_opening(entries=entries, report_seconds=30)
    # The sum is fetched: 64,000 (1 - (63/64)^11) = 10,180.0... entries and a block of counts at
    # .03 s; a head of 44 bytes, 768 for each block and 4 for each index, at 100 kB/s.
    union = 64_000 * (1 - (63 / 64) ** 11)
    whole = int(union) + 1 + 1
    fetching = whole * 0.03 + (44 + whole * 768 + (whole - 1) * 4) / 1e5
    assert found.report_seconds("train", 11) == pytest.approx(fetching)
    # A count round has no entries, and the setting is the least there is.
    assert found.report_seconds("count", 8) == 30
    patient = rules_opening(entries=entries, report_seconds=10_000)
    assert patient.report_seconds("train", 8) == 10_000
    assert rules_opening(report_seconds=30).report_seconds("train", 8) == 30
    # Whoever adds up fetches every message and multiplies all its ciphertexts.
    added = 11 * entries.n_blocks * 0.0001 + whole * 0.03 + 11 * entries.message_bytes / 1e5
    assert opening_seconds(entries, 11, adds_up=True) == pytest.approx(added)


def test_who_still_opens_is_waited_for(entries):
    world = World.new(rules_opening(entries=entries, report_seconds=5, total=1), 4)
    for _ in range(2):
        world.tick(*range(4))
        for number in range(4):
            world.upload(number)
        world.sum()
        if world.state.trained:
            break
        world.report(0)
        world.report(1)
    seconds = world.state.rules.report_seconds("train", 4)
    assert seconds > 60
    assert world.tick(*range(4), seconds=seconds - 1) == ()
    (measured,) = world.tick(*range(4), seconds=2)
    assert isinstance(measured, RoundMeasured)
