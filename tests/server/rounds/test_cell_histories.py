"""Histories of a federation, against whatever sums could be combined of them.

Members come, leave and become guests; the authority places them; a liar proposes rosters of his
own; rounds of every kind run through the coordinator's state machine with clients that fail, and a
coordinator that lies asks the authority for the sum of any client. What is opened is decided by the
product: `place`, `cells.check`, `step` and `check_whole`. What is isolated is decided by
`world.invariants`. Take one of the rules away, and it finds an isolated client.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from world.invariants import smallest_isolated
from world.machine import AUTHORITY, blob, client, header, rules, statement

from fedrec.errors import RefusedError, RosterBreaksCells, RoundError
from fedrec.identity import cells
from fedrec.identity import roster as rosters
from fedrec.identity.cells import Cell, Partition, Standing, check_whole, guest_consent
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster, check_cells
from fedrec.ids import ClientId
from fedrec_authority.members.cell_placement import place
from fedrec_server.rounds import selection
from fedrec_server.rounds.events import Polled, StatementReceived, Summed, Tick, Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State

pytestmark = pytest.mark.slow

HISTORIES = 1_000
PEOPLE = [Identity.create(str(number)) for number in range(16)]
BY_ID = {who.client_id: who for who in PEOPLE}
CONSENTS = {one: who.sign(guest_consent("test", one)) for one, who in BY_ID.items()}
REVEALER = client(AUTHORITY)

Sum = frozenset[ClientId]


@dataclass
class History:
    """What happened so far.

    Attributes:
        now: the newest roster that every client took.
        present: members, by id.
        outside: who may come.
        exposed: who was a guest by its own word, or left: rules promise them nothing.
        sums: all that were opened.
        eras: sums of one run that are divided by one count, where an algorithm needs that.
        seen: how often things happened.
    """

    random: random.Random
    size: int
    now: Roster
    present: dict[ClientId, Standing] = field(default_factory=dict)
    outside: list[ClientId] = field(default_factory=lambda: list(BY_ID))
    exposed: set[ClientId] = field(default_factory=set)
    sums: list[Sum] = field(default_factory=list)
    eras: list[list[Sum]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    @classmethod
    def begin(cls, seed):
        """Return a federation without members."""
        choose = random.Random(seed)
        size = choose.choice([3, 4])
        found = cls(choose, size, _roster(1, (), Partition(cell_size=size), None))
        choose.shuffle(found.outside)
        return found

    def play(self):
        """Let some epochs pass, each with a run."""
        for epoch in range(2, self.random.randrange(4, 7)):
            self.move()
            self.adopt(place(self.now.partition, tuple(self.present.values()), epoch), epoch)
            self.run()
            self.lie()

    def move(self):
        """Let members come, go and become guests."""
        for _ in range(self.random.randrange(1, 3 * self.size)):
            if self.outside and self.random.random() < 0.7:
                one = self.outside.pop()
                word = CONSENTS[one] if self.random.random() < 0.2 else b""
                self.present[one] = Standing(client_id=one, consent=word)
            elif self.present:
                one = self.random.choice(sorted(self.present))
                if self.random.random() < 0.5:
                    del self.present[one]
                    self.seen["left"] += 1
                else:
                    self.present[one] = replace(self.present[one], consent=CONSENTS[one])
                    self.seen["became guest"] += 1

    def adopt(self, honest, epoch):
        """Take the authority's roster in, or another that passes for one."""
        members = tuple(self.present)
        if self.random.random() < 0.4:
            forged = _roster(epoch, members, self.forged(honest, epoch), self.now)
            self.seen["forged"] += 1
            try:
                check_cells(self.now, forged)
                check_cells(None, forged)
            except RosterBreaksCells:
                self.seen["forged refused"] += 1
            else:
                self.take(forged)
                return
        found = _roster(epoch, members, honest, self.now)
        check_cells(self.now, found)
        check_cells(None, found)
        self.take(found)

    def take(self, found):
        self.now = found
        cells = found.partition.cells
        own = {one.client_id for one in self.present.values() if one.consent}
        self.exposed |= {one for cell in cells for one in (*cell.guests, *cell.left)} & (
            own | (set(BY_ID) - set(self.present))
        )

    def forged(self, honest, epoch):
        """Return cells as a liar would like them who wants to learn of one client."""
        cells = list(honest.cells)
        kind = self.random.choice(["mix", "demote", "refill"])
        at = self.random.randrange(len(cells)) if cells else 0
        core = list(cells[at].core) if cells else []
        if kind == "demote" and len(core) > self.size:
            # A core member is called a guest that never said so.
            gone = self.random.choice(core)
            core.remove(gone)
            cells[at] = replace(cells[at], core=tuple(core), guests=(*cells[at].guests, gone))
        elif kind == "refill" and len(core) > 1 and self.present:
            other = self.random.choice(sorted(self.present))
            core[self.random.randrange(len(core))] = other
            cells[at] = replace(cells[at], core=tuple(set(core)))
        elif self.present:
            # Every client is dealt out anew; what was before is retired.
            cells = [replace(cell, state="retired") for cell in cells]
            all_clients = sorted(self.present)
            self.random.shuffle(all_clients)
            first = max((cell.id for cell in cells), default=0) + 1
            number = max(1, len(all_clients) // self.size)
            cells += [
                Cell(id=first + n, since=epoch, core=tuple(all_clients[n::number]))
                for n in range(number)
            ]
        placed = {one for cell in cells for one in cell.all_clients}
        known = {one.client_id: one for one in honest.standings}
        standings = tuple(
            replace(
                known.get(one, Standing(client_id=one)),
                since=(known[one].since if one in known else 0) or epoch,
            )
            if one in placed
            else known[one]
            for one in sorted(placed | set(known))
        )
        return Partition(cell_size=self.size, cells=tuple(cells), standings=standings)

    def run(self):
        """Play rounds of every kind, with clients that stay away and fail."""
        exact = self.random.random() < 0.5
        limits: dict[str, Any] = {"total": 4, "deadline_seconds": 10.0}
        if not exact and self.random.random() < 0.3:
            limits["cells_per_round"] = 2
        found = rules(needs_reveal=True, exact=exact, **limits)
        state = State(
            rules=replace(found, partition=self.now.partition, revealer=REVEALER),
            roster=frozenset(self.present),
        )
        time = 0.0
        for _ in range(10):
            time += 100.0
            state, kind, total = self.round(state, time)
            if not total:
                continue
            check_whole(self.now.partition, total, least=3, what="The sum")
            self.sums.append(total)
            if exact and kind == "count":
                self.eras.append([])
            if exact and kind != "evaluate":
                self.eras[-1].append(total)

    def round(self, state, time):
        """Play one round; return what it was for, and whose sum was opened in it, if any's."""
        live = frozenset(one for one in self.present if self.random.random() < 0.9)
        state, _ = step(state, Tick(now=time, live=live))
        round_ = state.current
        if round_ is None:
            return state, "", frozenset()
        for late in sorted(self.present.keys() - round_.asked):
            state, _ = step(state, Polled(now=time, client_id=late, live=live | {late}))
        for one in sorted(state.current.asked):
            if self.random.random() < 0.93:
                sent = header(
                    round_.number,
                    one,
                    kind=round_.kind,
                    base_round=round_.base_round,
                    base_state=state.base_state or bytes(32),
                )
                try:
                    state, _ = step(state, Uploaded(now=time, header=sent))
                except RoundError:
                    self.seen["too late"] += 1
        state, _ = step(state, Tick(now=time + 20.0, live=live))
        round_ = state.current
        if round_ is None:
            self.seen["abandoned"] += 1
            return state, "", frozenset()
        total = frozenset(round_.accepted)
        self.seen[round_.kind] += 1
        now = time + 21.0
        state, _ = step(state, Summed(now=now, round=round_.number, total=blob("sum")))
        text = statement(state, REVEALER)
        state, _ = step(state, StatementReceived(now=now, statement=text, blob=blob("honest")))
        return state, round_.kind, total

    def lie(self):
        """Ask the authority for the sum of any client."""
        members = sorted(self.present)
        for _ in range(8):
            wanted = frozenset(one for one in members if self.random.random() < 0.7)
            if self.sums and self.random.random() < 0.5:
                # One client less than an earlier sum.
                wanted = self.random.choice(self.sums)
                wanted -= {self.random.choice(sorted(wanted))}
            if not wanted <= self.present.keys():
                continue
            self.seen["asked"] += 1
            try:
                check_whole(self.now.partition, wanted, least=3, what="The sum")
            except RefusedError:
                self.seen["refused"] += 1
            else:
                self.sums.append(wanted)

    @property
    def isolated(self):
        """The fewest clients that any combination of sums tells of, of those who are promised."""
        honest = [one for one in BY_ID if one not in self.exposed]
        return min(smallest_isolated(self.sums, honest), self.size)

    @property
    def isolated_in_an_era(self):
        """The same, guests included, of what is sent again and again until the next count."""
        return min((smallest_isolated(era, list(BY_ID)) for era in self.eras), default=self.size)


def _roster(epoch, members, partition, before):
    return Roster(
        federation="test",
        epoch=epoch,
        members=tuple(BY_ID[one].public for one in members),
        minimum_summands=3,
        protection="bfv",
        protection_fingerprint="00" * 32,
        context_sha256=bytes(32),
        secrets_sha256=bytes(32),
        authority_key=bytes(32),
        ca_sha256=bytes(32),
        previous=b"" if before is None else before.digest(),
        partition=partition,
    )


def play(seed):
    found = History.begin(seed)
    found.play()
    return found


@pytest.mark.parametrize("histories", [250, pytest.param(HISTORIES, marks=pytest.mark.long)])
def test_histories_isolate_no_client(histories):
    seen: Counter[str] = Counter()
    for seed in range(histories):
        found = play(seed)
        assert found.isolated >= found.size, f"history {seed}"
        assert found.isolated_in_an_era >= min(3, found.size), f"history {seed}"
        seen += found.seen
    # They say something: all of it happened, often.
    wanted = ("left", "became guest", "forged refused", "count", "train", "evaluate", "refused")
    assert min(seen[what] for what in (*wanted, "abandoned")) > 0.3 * histories, seen
    assert seen["asked"] > seen["refused"], "some lies are no lies"


def _no_fresh_rule(patch):
    patch.setattr(rosters, "_alone", lambda roster: iter(()))
    patch.setattr(rosters, "_following", lambda old, new: iter(()))


def _no_whole_cells(patch):
    patch.setattr(cells, "whole_among", lambda partition, clients: frozenset(clients))


def _guests_without_a_word(patch):
    patch.setattr(rosters, "_consents", lambda roster, client_id: True)


def _counts_in_every_round(patch):
    # Whoever is there trains, whoever was counted.
    patch.setattr(State, "expected", lambda state, kind: frozenset())
    patch.setattr(selection, "_is_fixed", lambda rules, round_: False)


@pytest.mark.parametrize(
    ("rule", "removed"),
    [
        ("R1", _no_fresh_rule),
        ("R3", _no_whole_cells),
        ("R4", _guests_without_a_word),
        ("R7", _counts_in_every_round),
    ],
)
def test_without_a_rule_a_client_is_isolated(monkeypatch, rule, removed):
    removed(monkeypatch)
    for seed in range(HISTORIES):
        found = play(seed)
        least = found.isolated_in_an_era if rule == "R7" else found.isolated
        if least < 3:
            return
    pytest.fail(f"Without {rule} nobody was isolated in {HISTORIES} histories.")
