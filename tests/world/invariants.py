"""What must hold after every event of a history, whatever happened.

What sums tell together is computed by exact linear algebra: sums are rows over the parties,
reduced with fractions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import TypeVar

from world.machine import World

from fedrec.identity.cells import Partition
from fedrec.ids import ClientId, RoundId
from fedrec.privacy import BUDGET_SPENT
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import UploadHeader, manifest_digest
from fedrec_server.rounds.backoff import pause_seconds
from fedrec_server.rounds.changes import (
    AlreadyCounted,
    Change,
    CollectingEnded,
    RoundPublished,
    RunFinished,
    StepEnded,
    SumKept,
    UpdateCounted,
)
from fedrec_server.rounds.events import Event, StepHeard, Tick, Uploaded
from fedrec_server.rounds.revealing import DISAGREE
from fedrec_server.rounds.steps import seconds_of
from fedrec_server.store.store import Store


def payload_of(header: UploadHeader) -> bytes:
    """Return the update that a made-up header announces."""
    return header.digest[:8]


def whole(partition: Partition, clients: Iterable[ClientId]) -> bool:
    """Tell whether a sum is over whole cores, and guests of these; see R3 of the rules of trust."""
    here = set(clients)
    if not partition.cell_size:
        return True
    allowed: set[ClientId] = set()
    for cell in partition.cells:
        if cell.state == "active" and set(cell.core) <= here:
            allowed |= {*cell.core, *cell.guests}
    return here <= allowed


@dataclass
class Invariants:
    """Keeps what clients were told, and compares.

    Attributes:
        acknowledged: digests of updates, and bodies of messages, by round, client and step.
        left_out: who was told that a round goes on without its update.
        charged: rounds that the privacy ledger counts.
    """

    world: World
    acknowledged: dict[tuple[RoundId, ClientId, str], bytes] = field(default_factory=dict)
    left_out: set[tuple[RoundId, ClientId]] = field(default_factory=set)
    charged: list[RoundId] = field(default_factory=list)
    before: tuple[RoundId, RoundId, int] = (RoundId(0), RoundId(0), 0)

    def __post_init__(self) -> None:
        self.world.checks.append(self._see)

    def acknowledge(self, event: Event, changes: Sequence[Change]) -> None:
        """Note what a client was told is kept."""
        if isinstance(event, Uploaded):
            header = event.header
            assert any(isinstance(one, UpdateCounted | AlreadyCounted) for one in changes)
            self.acknowledged[header.round, header.client_id, "vector"] = header.digest
        elif isinstance(event, StepHeard):
            text = event.message
            self.acknowledged[text.round, text.client_id, text.step] = text.body

    def check(self) -> None:
        """Check the state as it is now."""
        state = self.world.state
        now = (state.last_round, state.published, state.charged)
        assert all(new >= old for new, old in zip(now, self.before, strict=True)), "went back"
        self.before = now
        assert state.published <= state.last_round
        assert state.charged == len(self.charged) == len(set(self.charged))
        if state.rules.mechanism is not None:
            assert state.charged <= state.rules.mechanism.most_sums, "the budget is overspent"
        self._check_kept()

    def _check_kept(self) -> None:
        """Check that the round in progress has all that clients were told is kept."""
        round_ = self.world.state.current
        if round_ is None:
            return
        for (number, who, step), content in self.acknowledged.items():
            if number != round_.number or (number, who) in self.left_out:
                continue
            if step == "vector":
                assert round_.accepted[who].digest == content, "an update is lost"
            else:
                assert round_.messages[step][who] == content, "a message is lost"

    def check_patience(self, event: Event) -> None:
        """Check that a clock that was set back delays no client longer than the settings allow."""
        if not isinstance(event, Tick):
            return
        state, now = self.world.state, event.now
        if state.current is not None and state.current.phase not in ("summing", "revealing"):
            seconds = state.rules.rounds.deadline_seconds
            if state.rules.steps.are_several:
                seconds = seconds_of(state.rules, state.current.phase)
            assert state.current.deadline_at <= now + seconds
        if state.current is None and state.reporting is None and state.ending is None:
            assert state.abandonments.retry_at <= now + pause_seconds(
                state.rules, state.abandonments.in_row
            )

    def _see(self, change: Change) -> None:
        """Check one change that is committed."""
        if getattr(change, "charged", False):
            of = change.header if isinstance(change, UpdateCounted) else change
            self.charged.append(of.round)
        match change:
            case CollectingEnded() | StepEnded():
                self.left_out |= {(change.round, who) for who in change.left_out}
            case SumKept(round=number):
                counted = self.world.counted[number]
                assert whole(self.world.state.rules.partition, counted), "half a cell is summed"
            case RoundPublished():
                self._check_published(change)
            case RunFinished():
                self._check_finished(change)

    def _check_published(self, change: RoundPublished) -> None:
        rules, number = self.world.state.rules, change.round
        assert change.blob == self._expected(number, change), "not the sum of what was counted"
        if change.kind == "train" and rules.mechanism is not None:
            assert number in self.charged, "released before it was charged"
        news = {who for (of, who, step) in self.acknowledged if of == number and step == "vector"}
        left = {who for of, who in self.left_out if of == number}
        assert news - left <= self.world.counted[number], "acknowledged, and not in the sum"

    def _expected(self, number: RoundId, change: RoundPublished) -> Blob:
        headers = self.world.headers[number]
        kept = [headers[who] for who in self.world.counted[number]]
        if self.world.state.rules.revealer is None:
            return Blob.of(self.sum_of(kept))
        listed = manifest_digest(self.world.state.rules.run, number, tuple(kept))
        return Blob.of(f"opened {listed.hex()}".encode())

    def _check_finished(self, change: RunFinished) -> None:
        """Check that a client wanted the end, or nothing was left to do."""
        state = self.world.state
        if change.reason == "all rounds are published":
            assert state.next_kind is None
        elif change.reason == "the operator stopped the run":
            assert state.stop_asked
        elif change.reason.startswith(BUDGET_SPENT):
            assert state.rules.mechanism is not None
            assert state.charged == state.rules.mechanism.most_sums
        else:
            assert change.reason.startswith(DISAGREE), f"ended by itself: {change.reason}"
            assert len({one.content() for one in self.world.reports.values()}) > 1

    @staticmethod
    def sum_of(headers: Iterable[UploadHeader]) -> bytes:
        """Return the sum of some updates, added one by one without a memory."""
        found = [int.from_bytes(payload_of(header)) for header in headers]
        return (sum(found) % (1 << 64)).to_bytes(8) + len(found).to_bytes(2)

    def check_published(self, store: Store) -> None:
        """Compare what the store hands out with what was published, each round once."""
        after = RoundId(0)
        for change in self.world.published:
            record = store.next_published(after)
            assert record is not None and store.published(record.round) == record
            kept = (record.round, record.kind, record.blob, record.statement)
            assert kept == (change.round, change.kind, change.blob, change.statement)
            found: Mapping[ClientId, bytes] = {
                one.client_id: one.digest for one in record.contributions
            }
            assert set(found) == self.world.counted[record.round]
            assert all(store.counted(record.round, who) is not None for who in found)
            for (number, who, step), content in self.acknowledged.items():
                if number == record.round and step == "vector" and who in found:
                    assert found[who] == content
            after = record.round
        assert store.next_published(after) is None
        lengths = sum(change.blob.length for change in self.world.published)
        assert store.bytes_after(RoundId(0)) == lengths


T = TypeVar("T")
Row = list[Fraction]


def smallest_isolated(sums: Collection[Collection[T]], parties: Sequence[T]) -> int:
    """Return the fewest of some parties that a combination of sums depends on, and no others.

    All parties where no combination tells of any of them.
    """
    seen = [frozenset(total) for total in sums]
    # Parties that are in the same sums stand or fall together.
    alike: dict[tuple[bool, ...], int] = {}
    for party in parties:
        where = tuple(party in total for total in seen)
        alike[where] = alike.get(where, 0) + 1
    columns = [column for column in alike if any(column)]
    basis = _reduced([[Fraction(column[at]) for column in columns] for at in range(len(seen))])
    chosen = (some for count in range(1, len(columns) + 1) for some in combinations(columns, count))
    for some in sorted(chosen, key=lambda some: sum(alike[column] for column in some)):
        rest = [at for at, column in enumerate(columns) if column not in some]
        # Some combination vanishes on the rest iff the rest has a lower rank.
        if len(_reduced([[row[at] for at in rest] for row in basis])) < len(basis):
            return sum(alike[column] for column in some)
    return len(parties)


def _reduced(rows: list[Row]) -> list[Row]:
    """Return independent rows that span the same."""
    found: list[Row] = []
    left = [row for row in rows if any(row)]
    while left:
        pivot = left.pop()
        column = next(at for at, value in enumerate(pivot) if value)
        found.append(pivot)
        left = [row for row in (_without(pivot, column, row) for row in left) if any(row)]
    return found


def _without(pivot: Row, column: int, row: Row) -> Row:
    factor = row[column] / pivot[column]
    return [value - factor * other for value, other in zip(row, pivot, strict=True)]
