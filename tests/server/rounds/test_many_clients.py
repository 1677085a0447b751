"""A round's work for each update is the same however many are counted before it."""

import random
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO

import pytest
from world.engine import Bench, gather, running, upload
from world.machine import client, header, rules, stepwise, terms_of

from fedrec.identity.cells import Cell, Partition
from fedrec.protection import Accumulator
from fedrec.wire.messages import StepMessage
from fedrec_server.rounds import collecting
from fedrec_server.rounds.by_client import Asked, ByClient, Counted
from fedrec_server.rounds.events import Polled, StepClosed, StepHeard, Tick, Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.run.presence import Presence
from fedrec_server.uploads.round_sum import RunningSum

N_CLIENTS = 300


class Remembering(Accumulator):
    """Notes what is added."""

    def __init__(self):
        self.added: list[bytes] = []

    @property
    def count(self):
        return len(self.added)

    def add(self, message):
        self.added.append(message)

    def finish(self):
        return b"".join(sorted(self.added))


def read(found):
    return found.client_id.encode()


@pytest.fixture
def walks(monkeypatch):
    """How many clients each walk through all of a map found."""
    found: list[int] = []
    walk = ByClient.__iter__

    def counting(self):
        found.append(len(self))
        return walk(self)

    monkeypatch.setattr(ByClient, "__iter__", counting)
    return found


@pytest.mark.parametrize("join", [False, True])
def test_no_update_and_no_poll_looks_at_all_clients(walks, join):
    clients = [client(number) for number in range(N_CLIENTS)]
    least = 3 if join else N_CLIENTS
    plain = rules(needs_reveal=False, minimum_clients=least)
    state = State(rules=plain, roster=frozenset(clients))
    state, _ = step(state, Tick(now=0.0, live=frozenset(clients[:least])))
    walks.clear()
    for each in clients[least:]:
        state, _ = step(state, Polled(now=0.0, client_id=each, live=frozenset()))
    total = RunningSum(Remembering, read)
    for each in clients:
        assert walks == []
        before = state.current.accepted
        found = header(1, each)
        state, _ = step(state, Uploaded(now=0.0, header=found))
        total.add(before, found, BytesIO(read(found)))
    assert state.current is not None and state.current.phase == "summing"
    assert total.finish(state.current.accepted) == "".join(sorted(clients)).encode()


def in_cells(sizes, **rounds):
    """Return a round that just opened, offered to clients in cells of some sizes."""
    cells: list[Cell] = []
    for number, size in enumerate(sizes):
        first = sum(sizes[:number])
        core = tuple(client(place) for place in range(first, first + size))
        cells.append(Cell(id=number + 1, since=1, core=core))
    plain = rules(needs_reveal=False, minimum_clients=3, **rounds)
    plain = replace(plain, partition=Partition(cell_size=3, cells=tuple(cells)))
    roster = frozenset(member for cell in cells for member in cell.core)
    state, _ = step(State(rules=plain, roster=roster), Tick(now=0.0, live=roster))
    return state


def updates_until_whole(state, seed):
    """Upload in the order of cells, or in another, and return after how many the round closes."""
    assert state.current is not None
    cells = state.rules.partition.cells
    asked = [each for cell in cells for each in cell.core if each in state.current.asked]
    if seed is not None:
        random.Random(seed).shuffle(asked)
    for place, each in enumerate(asked):
        state, _ = step(state, Uploaded(now=0.0, header=header(1, each)))
        assert state.current is not None
        if state.current.phase == "summing":
            return place + 1
    raise AssertionError("it collects though all are there")


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("n_wanted", [40, 100])
def test_a_round_of_some_cells_is_rarely_looked_at(walks, seed, n_wanted):
    state = in_cells([3] * 100, cells_per_round=n_wanted, over_provision=1.5)
    walks.clear()
    assert updates_until_whole(state, seed) >= 3 * n_wanted
    # Each look and the end walk through all a few times.
    assert len(walks) < 40


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_a_round_of_some_cells_ends_with_the_same_update_as_if_it_was_always_looked_at(
    monkeypatch, seed
):
    choose = random.Random(seed or 12)
    sizes = [choose.randint(3, 5) for _ in range(12)]
    state = in_cells(sizes, cells_per_round=choose.randint(1, 12), over_provision=1.5)
    ended = updates_until_whole(state, seed)
    always: Callable[..., int] = lambda *_: 1  # noqa: E731
    monkeypatch.setattr(collecting, "lacking", always)
    assert updates_until_whole(state, seed) == ended


def test_no_message_of_a_step_looks_at_all_clients(walks):
    state = in_cells([3] * 20)
    state = replace(state, rules=stepwise(state.rules))
    clients = sorted(state.roster)
    for phase in [one.phase for one in state.rules.steps.all]:
        walks.clear()
        for each in clients:
            assert state.current is not None and state.current.phase == phase
            made = next_event(state, each)
            before = state.current.messages
            state, _ = step(state, made)
            assert walks == []
            for name, sent in state.current.messages.items():
                shared = zip(before.get(name, ByClient())._buckets, sent._buckets, strict=True)
                assert sum(old != new for old, new in shared) <= 1
        closed = StepClosed(now=0.0, round=state.current.number, phase=phase, left_out=frozenset())
        state, _ = step(state, closed)
    assert state.current is not None and state.current.phase == "summing"


def next_event(state, sender):
    """Return what a client of a round under masks sends in the present step."""
    round_ = state.current
    present = state.rules.steps.in_phase(round_.phase)
    assert present is not None
    if present.brings_vector:
        return Uploaded(now=0.0, header=header(round_.number, sender, **terms_of(state)))
    message = StepMessage(
        federation="movies",
        run=state.rules.run,
        round=round_.number,
        epoch=round_.epoch,
        step=present.name,
        client_id=sender,
        body=b"body",
        signature=bytes(64),
    )
    return StepHeard(now=0.0, message=message)


async def test_an_update_does_not_look_who_is_there(tmp_path, monkeypatch):
    bench = Bench.of(4)

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(4))
        with monkeypatch.context() as patched:
            patched.delattr(Presence, "live")
            for number in range(3):
                await upload(engine, bench, number)
                await engine.run.work.settled()
                await engine.tick()
        await upload(engine, bench, 3)
        await engine.run.work.settled()
        assert engine.run.state.published == 1


def test_a_map_never_changes_and_shares_what_is_the_same():
    empty = Counted()
    first = empty.with_update(header(1, client(0)))
    one, other = (first.with_update(header(1, client(1), content)) for content in ("one", "other"))
    assert (len(empty), len(first), len(one), len(other)) == (0, 1, 2, 2)
    assert one != other and one == first.with_update(header(1, client(1), "one"))
    assert dict(one) == {client(n): header(1, client(n), ("update", "one")[n]) for n in (0, 1)}
    assert one.models == {bytes(32): 2} and Counted(dict(one)) == one
    shared = zip(first._buckets, one._buckets, strict=True)
    assert sum(before is not after for before, after in shared) == 1
    asked = Asked([client(0)])
    assert asked.adding([client(1), client(0)]) == {client(0), client(1)} != asked


def test_a_sum_that_cannot_be_made_again_is_begun_anew():
    """What was read before a damaged file is in no later sum."""
    damaged = [True]

    def broken(found):
        if found.client_id == max(client(0), client(1)) and damaged:
            raise OSError("damaged")
        return read(found)

    total = RunningSum(Remembering, broken)
    counted = Counted({client(n): header(1, client(n)) for n in (0, 1)})
    with pytest.raises(OSError, match="damaged"):
        total.finish(counted)
    assert total.finish(Counted()) == b""
    damaged.clear()
    assert total.finish(counted) == "".join(sorted(counted)).encode()
