"""A seeded history of one coordinator: its state machine on its store, and all that goes wrong.

Messages are lost, come twice, come late and in another order; the process ends between two events
and in the middle of a commit, and starts again from the store; the clock jumps both ways; the disk
is full at any write. What must hold is checked after every event, and at the end a calm time shows
that the run goes on by itself.
"""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from io import BytesIO
from pathlib import Path

from world.invariants import Invariants, payload_of
from world.machine import STEP_OF, World
from world.traffic import DEADLINE_SECONDS, Traffic, random_history, volatile_free

from fedrec.durable import DiskFull
from fedrec.errors import FedrecError, StorageError
from fedrec.protection import Accumulator
from fedrec.wire.chunks import Blob
from fedrec_server.rounds.by_client import Counted
from fedrec_server.rounds.changes import VOLATILE, Change, UpdateCounted
from fedrec_server.rounds.events import (
    Event,
    Failed,
    Polled,
    ReportReceived,
    Restarted,
    StatementReceived,
    StepClosed,
    StepHeard,
    Summed,
    Uploaded,
)
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.selection import counted_of, has_all
from fedrec_server.rounds.state import Round, State
from fedrec_server.rounds.steps import arrived, invited, is_enough
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.store import RunIdentity
from fedrec_server.uploads.round_sum import RunningSum

IDENTITY = RunIdentity(
    federation="movies", plan_fingerprint="p", catalogue_fingerprint="c", epoch=1
)
EVENTS = 200
CALM_EVENTS = 2_000
REPLAY = "FEDREC_HISTORY_SEED"
"""The variable that names the one history to play."""

HOUR = 3600.0
JUMPS = (-24 * HOUR, -HOUR, -DEADLINE_SECONDS, HOUR, 24 * HOUR)
CRASHES = ("rows.begin", "rows.commit", "rows.committed")
Message = Uploaded | StepHeard | StatementReceived | ReportReceived | Polled


class Crash(BaseException):
    """The process ended here."""


class Sums(Accumulator):
    """Adds made-up updates, modulo 2^64, as a protection adds its messages."""

    def __init__(self) -> None:
        self._total, self._count = 0, 0

    @property
    def count(self) -> int:
        """How many were added."""
        return self._count

    def add(self, message: bytes) -> None:
        """Add one."""
        self._total = (self._total + int.from_bytes(message)) % (1 << 64)
        self._count += 1

    def finish(self) -> bytes:
        """Return the sum and of how many it is."""
        return self._total.to_bytes(8) + self._count.to_bytes(2)


@dataclass
class Disk:
    """What the store's failpoints do next.

    Attributes:
        fault: "full", "page" (full at whichever row needs another page) or a failpoint's name, at
            which the process ends; "" for nothing.
        survived: whether the last commit that a crash cut short is in the database all the same.
    """

    fault: str = ""
    at: str = ""
    survived: bool = False
    store: SqliteStore | None = None

    def __call__(self, name: str) -> None:
        """Fail here, if this is the place."""
        if self.fault == "page" and name == "rows.begin":
            # SQLite itself then finds no room, at whichever statement needs some.
            self._limit(1)
        elif self.fault == "full" and name == self.at:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        elif self.fault == name:
            self.survived = name == "rows.committed"
            self.fault = ""
            raise Crash(name)

    def mended(self) -> None:
        """Make room again."""
        if self.fault == "page":
            self._limit(1 << 30)
        self.fault = ""

    def _limit(self, pages: int) -> None:
        assert self.store is not None and self.store._rows is not None
        self.store._rows.execute(f"PRAGMA max_page_count = {pages}")


@dataclass
class Temper:
    """How often what goes wrong, in one history."""

    trouble: float
    lost: float
    twice: float
    late: float
    crash: float
    full: float
    jump: float

    @classmethod
    def of(cls, choose: random.Random) -> Temper:
        """Draw it: some histories are calm, in others much happens at once."""
        much = choose.choice([0.0, 0.3, 1.0, 1.0])
        return cls(
            trouble=choose.choice([0.0, 0.05, 0.3]),
            lost=much * choose.uniform(0.0, 0.2),
            twice=much * choose.uniform(0.0, 0.3),
            late=much * choose.uniform(0.0, 0.4),
            crash=much * choose.uniform(0.0, 0.15),
            full=much * choose.uniform(0.0, 0.15),
            jump=much * choose.uniform(0.0, 0.05),
        )


class History:
    """One history.

    Args:
        seed: all that happens follows from it.
        folder: of the coordinator's state; empty.

    Attributes:
        lines: the last events and what became of them, for people.
        trace: a digest of all of them.
        happened: how often each kind of trouble came.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self._folder = seed, folder
        self._random = random.Random(seed)
        self._temper = Temper.of(self._random)
        self._rules, self._roster = random_history(seed)
        self.world = World(State(rules=self._rules, roster=self._roster))
        self.world.commit = self._commit
        self._traffic = Traffic(self.world, self._random, self._temper.trouble)
        self._wire: list[Message] = []
        self._disk = Disk()
        self._store = self._opened()
        self._sums = RunningSum(Sums, payload_of)
        self._pending: tuple[State, tuple[Change, ...]] | None = None
        self.invariants = Invariants(self.world)
        self.lines: deque[str] = deque(maxlen=30)
        self.trace = hashlib.sha256()
        self.happened: dict[str, int] = {}

    def play(self) -> None:
        """Let everything happen, then let the run end in peace."""
        try:
            for _ in range(EVENTS):
                self._disturb()
                self._happen(self._next())
            self._disk.mended()
            self._calm_down()
            self.world.check_end()
            self.invariants.check_published(self._store)
        except (AssertionError, FedrecError, sqlite3.Error) as error:
            raise AssertionError(self._failure(error)) from error
        finally:
            self._store.close()

    def _failure(self, error: Exception) -> str:
        story = "\n".join(self.lines)
        return (
            f"history {self.seed}: {type(error).__name__}: {error}\n{story}\n"
            f"Replay: {REPLAY}={self.seed} python -m pytest "
            "tests/scenarios/test_scenario_24_histories.py -k replayed"
        )

    def _count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def _disturb(self) -> None:
        """Let the clock jump, the disk fill and the process end, now and then."""
        choose, temper = self._random, self._temper
        if choose.random() < temper.jump:
            self._count("jump")
            self.world.now = max(0.0, self.world.now + choose.choice(JUMPS))
        if choose.random() < temper.crash:
            if choose.random() < 0.3:
                self._count("crash between events")
                self._restart()
            else:
                self._disk.mended()
                self._disk.fault = choose.choice(CRASHES)
        elif choose.random() < temper.full:
            self._disk.mended()
            self._disk.fault = choose.choice(["full", "page"])
            self._disk.at = choose.choice(["rows.begin", "rows.commit"])
        elif self._disk.fault in ("full", "page") and choose.random() < 0.5:
            self._disk.mended()

    def _next(self) -> Event:
        """Return what reaches the coordinator next."""
        choose, temper = self._random, self._temper
        followed = self._follows()
        if followed is not None and choose.random() < 0.7:
            return followed
        if self._wire and choose.random() < 0.2:
            # Late, and in whatever order.
            self._count("late")
            found = self._wire.pop(choose.randrange(len(self._wire)))
            if _epoch_of(found) in (None, self.world.state.rules.epoch):
                return replace(found, now=self.world.now)
            self._count("of another epoch")
        found = self._traffic.next()
        if not isinstance(found, Message):
            return found
        if choose.random() < temper.lost:
            self._count("lost")
            return self._traffic.time(False)
        if choose.random() < temper.twice:
            self._count("twice")
            self._wire.append(found)
        if choose.random() < temper.late:
            self._wire.append(found)
            return self._traffic.time(False)
        return found

    def _happen(self, event: Event) -> None:
        """Hand one event in; a refusal leaves everything as it was."""
        before, outcome = self.world.state, "done"
        self._pending = None
        try:
            changes = self.world.apply(event)
            self.invariants.acknowledge(event, changes)
        except Crash as crash:
            outcome = f"crashed at {crash}"
            self._count(outcome)
            self._recover(before, event)
        except StorageError as error:
            assert isinstance(error, DiskFull), error
            outcome = "disk full"
            self._count(outcome)
            self._sums.forget()
            assert self.world.state is before
        except FedrecError as error:
            outcome = type(error).__name__
            self._sums.forget()
            assert self.world.state is before
        self._note(event, outcome)
        self.invariants.check()
        if outcome == "done":
            self.invariants.check_patience(event)
            if self._pending is not None:
                self._compare(self.world.state)

    def _note(self, event: Event, outcome: str) -> None:
        state = self.world.state
        where = "-" if state.current is None else f"{state.current.number} {state.current.phase}"
        self.trace.update(f"{event!r} {outcome}\n".encode())
        self.lines.append(f"{self.world.now:9.1f} {type(event).__name__:16} {outcome:20} {where}")

    def _commit(self, changes: Sequence[Change]) -> None:
        """Add to the sum and make the changes durable, as the engine does."""
        before = self.world.state
        counted = Counted() if before.current is None else before.current.accepted
        for change in changes:
            if isinstance(change, UpdateCounted) and not before.rules.steps.are_several:
                self._sums.add(counted, change.header, BytesIO(payload_of(change.header)))
        durable = [change for change in changes if not isinstance(change, VOLATILE)]
        if durable:
            self._pending = (before, tuple(changes))
            self._store.commit(durable, [])

    def _opened(self) -> SqliteStore:
        identity = replace(IDENTITY, epoch=self.world.state.rules.epoch)
        store = SqliteStore(self._folder, identity, failpoint=self._disk)
        self._disk.store = store
        return store

    def _compare(self, wanted: State) -> None:
        found = self._store.load(wanted.rules, wanted.roster)
        kept, here = volatile_free(found), volatile_free(wanted)
        other = [
            one.name for one in fields(State) if getattr(kept, one.name) != getattr(here, one.name)
        ]
        assert not other, f"the store has another state: {other}"

    def _recover(self, before: State, event: Event) -> None:
        """Find in the store what was committed, and go on from there."""
        if self._disk.survived:
            self._disk.survived = False
            state, changes = step(before, event)
            self.world.settle(state, changes)
        self._restart()

    def _restart(self) -> None:
        """End the process and start it again."""
        state = self.world.state
        self._store.close()
        self._disk.fault = ""
        self._store = self._opened()
        self._compare(state)
        self.world.state = self._store.load(state.rules, state.roster)
        self._sums = RunningSum(Sums, payload_of)
        self._happen(Restarted(now=self.world.now))

    def _follows(self) -> Event | None:
        """Return what the coordinator does by itself, if there is something."""
        round_, rules = self.world.state.current, self.world.state.rules
        if round_ is None:
            return None
        if round_.phase == "summing":
            return Summed(now=self.world.now, round=round_.number, total=self._total(round_))
        if not rules.steps.are_several or round_.phase not in STEP_OF:
            return None
        return self._closing(round_)

    def _total(self, round_: Round) -> Blob:
        if self.world.state.rules.steps.are_several:
            # Vectors under masks are added by their own collection.
            return Blob.of(self.invariants.sum_of(round_.accepted.values()))
        return Blob.of(self._sums.finish(round_.accepted))

    def _closing(self, round_: Round) -> Event | None:
        """Close a step under masks, when every client is heard or the time is over."""
        rules, now = self.world.state.rules, self.world.now
        here = arrived(rules, round_)
        if round_.phase == "collecting":
            over, left_out = has_all(rules, round_, here), here - counted_of(rules, round_, here)
        else:
            over = here >= invited(rules, round_)
            left_out = here - rules.summable(here) if round_.phase == "masking" else frozenset()
        if now < round_.deadline_at and not over:
            return None
        phases = ("collecting", "sharing", "masking")
        enough = (
            is_enough(rules, round_, here - left_out) if round_.phase in phases else len(here) >= 2
        )
        if not enough:
            return Failed(now=now, round=round_.number, reason="too few clients are left")
        return StepClosed(now=now, round=round_.number, phase=round_.phase, left_out=left_out)

    def _calm_down(self) -> None:
        """Let every client be there and honest: the run ends, whatever happened before."""
        self._wire.clear()
        self._traffic.trouble = 0.0
        for _ in range(CALM_EVENTS):
            state = self.world.state
            if state.ending is not None:
                return
            if state.current is None and state.reporting is None:
                self.world.now = max(self.world.now + 0.1, state.abandonments.retry_at)
            elif state.reporting is not None:
                self.world.now += DEADLINE_SECONDS / 2
            followed = self._follows()
            self._happen(self._traffic.next() if followed is None else followed)
        raise AssertionError(f"the run is stuck after round {self.world.state.last_round}")


def _epoch_of(message: Message) -> int | None:
    """Return the epoch that a message names; one of another epoch is turned away at the door."""
    match message:
        case Uploaded(header=found) | StepHeard(message=found):
            return found.epoch
        case StatementReceived(statement=found) | ReportReceived(report=found):
            return found.epoch
    return None


def play(seed: int) -> History:
    """Play one history in a folder of its own, in memory where there is such a place."""
    with _folder() as folder:
        found = History(seed, folder)
        found.play()
        return found


@contextmanager
def _folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="fedrec-history-") as found:
        yield Path(found)
