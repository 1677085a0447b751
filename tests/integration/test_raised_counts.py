"""Members with changed software raise counts of rare items, over sockets: what they can rebuild.

Success is measured as `fedrec audit` measures it: `determined_users`, given what the attackers
learn of all others from the sums of `ease`, which are how many users hold each pair of items. Every
attack is played without the rule as well, and has to succeed there.

Each client has four users. All hold all common items but one or two, so that no pair of those
determines any client. One user of each client holds an item that no other user holds, and `WIDE` is
held by one user of one cell and four of another.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from integration.test_changing_members import Authorities
from integration.test_spoilers import cells, together
from numpy.typing import NDArray
from world.bench import data, invite, never_met, plan_of
from world.clock import poll
from world.federation import keep, rotate
from world.links import Gate
from world.plans import params

from fedrec.data import Interactions
from fedrec.data.writing import write_interactions
from fedrec.follower.shared_model import SharedModel
from fedrec.identity.cells import guest_consent
from fedrec.identity.identity import Identity
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.cell_counts import CellCounts
from fedrec_client.round.local_model import LocalModel
from fedrec_lab.audit.sums import determined_users

pytestmark = pytest.mark.slow

LEAST, USERS, COMMON, HELD_OUT, WIDE = 4, 4, 12, (12, 13), 59
Wide = tuple[int, int] | None
"""The client of whose users one holds `WIDE`, and the one of whose users all do."""


def plan(corrupt=1, **rules):
    """Return a plan of one training round, in which all pairs are summed."""
    found = plan_of("bfv", 3, "ease", key_holder="authority", total=1)
    changes = {"minimum_item_users": LEAST, "corrupt_cells": corrupt, **rules}
    return found.model_copy(update={"federation": found.federation.model_copy(update=changes)})


def history(number, place, wide):
    """Return the training items of one of a client's users."""
    missing = (USERS * number + place) % COMMON
    held = [item for item in range(COMMON) if item != missing]
    held += [max(HELD_OUT) + 1 + number] * (place == 0)
    single, many = wide or (-1, -1)
    return held + [WIDE] * (number == many or (number == single and place == 1))


def write(bench, number, histories):
    """Write a client's data: what users held last is held out."""
    names = data().catalogue.item_ids
    rows = [
        (f"{number}-{place}@example.org", names[item], time)
        for place, held in enumerate(histories)
        for time, item in enumerate([*held, *HELD_OUT])
    ]
    users, items, times = zip(*rows, strict=True)
    made = Interactions(
        user_ids=np.array(users, dtype=object),
        item_ids=np.array(items, dtype=object),
        timestamps=np.array(times),
    )
    write_interactions(bench.state(number).parent / "interactions.csv", made, private=True)


class Attack:
    """Clients that count users whom they don't have, and what they learn.

    Attributes:
        liars: their numbers; the first one notes what all members learn.
        wide: see `Wide`.
        lies_first, lies_later: whether they lie in the first count of a run, and in others.
        counts, pairs: what was published, by the items that it was about.
    """

    def __init__(self, monkeypatch):
        self.liars: tuple[int, ...] = ()
        self.wide: Wide = None
        self.lies_first = self.lies_later = True
        self.counts: list[NDArray[np.int64]] = []
        self.pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._folders: list[Path] = []
        contribute, applied = LocalModel.contribute, SharedModel.applied

        def lying(model, kind, participating):
            made = contribute(model, kind, participating)  # type: ignore[arg-type]
            first = model.shared.last_counted is None
            lies = self.lies_first if first else self.lies_later
            if kind == "count" and lies and model._store.folder in self._folders:
                layout = model._learner.server.travelling.layout(kind, model.shared)
                rows = model._learner.server.travelling.rows(kind, model.shared)
                counts = made.vector[layout.count_slice][: len(rows.index)]
                counts[rows.index > max(HELD_OUT)] += LEAST
            return made

        def noted(model, kind, aggregate, *computed):
            if self._folders and model._store.folder == self._folders[0]:
                self._note(model, kind, aggregate)
            return applied(model, kind, aggregate, *computed)

        monkeypatch.setattr(LocalModel, "contribute", lying)
        monkeypatch.setattr(SharedModel, "applied", noted)

    def plant(self, bench, liars, wide=None):
        """Give each client its users, and the liars their software."""
        self.liars, self.wide = tuple(liars), wide
        self._folders = [bench.state(number) for number in liars]
        for number in range(bench.n_clients):
            write(bench, number, [history(number, place, wide) for place in range(USERS)])

    def _note(self, model, kind, aggregate):
        travelling, shared = model._half.travelling, model.shared
        layout, index = travelling.layout(kind, shared), travelling.rows(kind, shared).index
        if kind == "count":
            found = np.zeros(model.n_items, dtype=np.int64)
            found[index] = aggregate[layout.count_slice][: len(index)]
            self.counts.append(found)
        if kind == "train":
            kept = shared.last_counted[index] >= LEAST
            pairs, size = layout.changes_of(aggregate)["pairs"], len(index)
            gram = np.zeros((size, size), dtype=np.int64)
            lower = np.tril_indices(size, -1)
            gram[lower] = pairs[: len(lower[0])]
            assert not gram[~kept].any() and not gram[:, ~kept].any()
            self.pairs.append((index[kept], gram[np.ix_(kept, kept)]))

    def rebuilt(self, federation):
        """Return how many users of others the last sum of pairs determines."""
        (summed,) = [found for found in federation.published() if found.kind == "train"]
        bench = federation.bench
        names = {Identity.load(bench.state(n)).client_id: n for n in range(bench.n_clients)}
        numbers = {names[header.client_id] for header in summed.contributions}
        items, learnt = self.pairs[-1]
        own = self._inferred(sorted(numbers.intersection(self.liars)), items)
        others = self._inferred(sorted(numbers.difference(self.liars)), items)
        # What the liars' own users add to it they know and take away.
        assert np.array_equal(learnt - np.tril(own.gram, -1), np.tril(others.gram, -1))
        return int(others.determined.sum())

    def _inferred(self, numbers, items):
        place = {item: row for row, item in enumerate(items.tolist())}
        users = [
            sorted(place[item] for item in history(number, user, self.wide) if item in place)
            for number in numbers
            for user in range(USERS)
        ]
        sizes = np.array([0, *map(len, users)], dtype=np.int64)
        flat = np.array([row for user in users for row in user], dtype=np.int64)
        return determined_users(np.cumsum(sizes), flat, len(items))


@pytest.fixture
def attack(monkeypatch):
    return Attack(monkeypatch)


or_long = pytest.mark.parametrize(
    "is_guarded", [True, pytest.param(False, marks=pytest.mark.long)], ids=["guarded", "unguarded"]
)


def without_the_rule(monkeypatch):
    """Sums keep their rows, and one cell may be a sum."""
    monkeypatch.setattr(CellCounts, "is_on", False)
    one_cell_is_enough(monkeypatch)
    for name in ("fedrec.follower.membership", "fedrec_authority.opening.attribution"):
        monkeypatch.setattr(f"{name}.fewest_cells", lambda plan, partition: 1)


def one_cell_is_enough(monkeypatch):
    """The coordinator's own software is changed."""
    monkeypatch.setattr("fedrec_server.federation.fewest_cells", lambda plan, partition: 1)


def ended(federation):
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "unguarded"])
def test_a_raised_first_count(found, revealing, attack, monkeypatch, is_guarded):
    """Five clients each have a user who alone holds an item."""
    federation = found(plan(), 6, prepare=lambda bench: attack.plant(bench, [0]))
    if not is_guarded:
        without_the_rule(monkeypatch)
    revealing(federation)
    federation.start_all()
    ended(federation)
    assert attack.rebuilt(federation) == (0 if is_guarded else 5)
    (counts,) = attack.counts
    assert (counts[:COMMON] >= LEAST).all() and counts[max(HELD_OUT) + 1 :].any() != is_guarded


@pytest.mark.parametrize(("corrupt", "read"), [(1, 7), (2, 0)])
def test_two_members_of_two_cells(found, revealing, attack, corrupt, read):
    """They succeed where one cell may be corrupt; the seven others' users are theirs then."""

    def prepare(bench):
        first, second, _ = cells(bench).values()
        attack.plant(bench, [min(first), min(second)])

    federation = found(plan(corrupt), 9, prepare=prepare)
    revealing(federation)
    federation.start_all(wrap=together(9, (1, 2)))
    ended(federation)
    assert attack.rebuilt(federation) == read


def away_after_the_count(federation, stay, away):
    """Let all be counted, and some pass the training round; the others can count again."""
    gates = {number: Gate(2) for number in away}
    all_here = together(len(stay | away), (1,))
    for number in sorted(stay | away):
        gate = gates.get(number, lambda link: link)
        federation.client(number, wrap=lambda link, gate=gate: gate(all_here(link)))
    for gate in gates.values():
        poll(gate.reached.is_set)
    return list(gates.values())


@or_long
@pytest.mark.parametrize("lies_first", params(True, long=[False]), ids=["absent cell", "recount"])
def test_a_raised_count_while_a_cell_is_away(
    found, revealing, attack, monkeypatch, lies_first, is_guarded
):
    """`WIDE` has four holders in the cell that goes away, and one among the others.

    Where the first count was raised, too, enough users hold it at first, by every rule.
    """
    attack.lies_first = lies_first
    parts: list[frozenset[int]] = []

    def prepare(bench):
        parts.extend(cells(bench).values())
        first, second, third = map(min, parts)
        attack.plant(bench, [first], (second, third))

    federation = found(plan(), 9, prepare=prepare)
    if not is_guarded:
        without_the_rule(monkeypatch)
    revealing(federation)
    gates = away_after_the_count(federation, parts[0] | parts[1], parts[2])
    try:
        federation.clock.jump(federation.bench.plan.rounds.deadline_seconds)
        poll(lambda: attack.pairs)
    finally:
        for gate in gates:
            gate.opened.set()
    ended(federation)
    first, again = attack.counts[:2]
    assert (first[WIDE], again[WIDE]) == {
        (True, True): (2 * LEAST + 1, 0),
        (True, False): (2 * LEAST + 1, LEAST + 1),
        (False, True): (0, 0),
        (False, False): (LEAST + 1, LEAST + 1),
    }[lies_first, is_guarded]
    # Without the rule a raised first count shows the five others' rare items, too.
    assert attack.rebuilt(federation) == (not is_guarded) * (6 if lies_first else 1)


@or_long
def test_a_count_over_one_cell(found, revealing, attack, monkeypatch, is_guarded):
    """The coordinator, too, is changed: it has the liar's cell, where two others are, alone."""
    parts: list[frozenset[int]] = []

    def prepare(bench):
        parts.extend(cells(bench).values())
        attack.plant(bench, [min(parts[0])])

    one_cell_is_enough(monkeypatch)
    if not is_guarded:
        without_the_rule(monkeypatch)
    federation = found(plan(), 6, prepare=prepare)
    events, until_all_are_here = revealing(federation), Gate(2)
    for number in sorted(parts[0]):
        federation.client(number, wrap=until_all_are_here)
    with until_all_are_here:
        if is_guarded:
            poll(lambda: [event for event in events if event.name == "reveal refused"])
            assert not federation.published()
        else:
            poll(until_all_are_here.reached.is_set)
        for number in sorted(parts[1]):
            federation.client(number)
        federation.until_waiting(*parts[1])
    ended(federation)
    counted = [len(one.contributions) for one in federation.published() if one.kind == "count"]
    assert counted == ([6] if is_guarded else [3])
    assert attack.rebuilt(federation) == (0 if is_guarded else 2)


@or_long
def test_a_guest_in_the_liars_place(found, revealing, attack, monkeypatch, is_guarded):
    """A guest's users are in the total; no cell's holders are among them."""

    def prepare(bench):
        (larger,) = (cell for cell in cells(bench).values() if len(cell) > 3)
        attack.plant(bench, [min(larger)])
        identity = Identity.load(bench.state(min(larger)))
        consent = identity.sign(guest_consent(bench.plan.federation.name, identity.client_id))
        keys = AuthorityFolder(bench.workspace.folder / "keys")
        keep(keys, keys.membership.with_guest(identity.client_id, consent))
        rotate(keys)

    if not is_guarded:
        without_the_rule(monkeypatch)
    federation = found(plan(), 7, prepare=prepare)
    revealing(federation)
    federation.start_all(wrap=together(7, (1,)))
    ended(federation)
    assert attack.rebuilt(federation) == (0 if is_guarded else 6)


@or_long
def test_a_cell_of_liars_that_joins(found, revealing, attack, monkeypatch, is_guarded):
    """It comes after the count, while the cell is away that holds an item widely."""
    parts: list[frozenset[int]] = []

    def prepare(bench):
        parts.extend(cells(bench).values())
        attack.plant(bench, sorted(parts[2]), (min(parts[0]), min(parts[1])))
        never_met(bench, *parts[2])

    if not is_guarded:
        without_the_rule(monkeypatch)
    federation = found(plan(), 9, prepare=prepare)
    owners = Authorities(federation)
    revealing(federation)
    gates = away_after_the_count(federation, parts[0], parts[1])
    try:
        for number in sorted(parts[2]):
            invitation = invite(federation.bench, f"joiner-{number}")
            federation.client(number, client__invitation=invitation).wait_for("waiting_to_join")
        assert owners.delivery.look()
        federation.clock.jump(federation.bench.plan.rounds.deadline_seconds)
        poll(lambda: attack.pairs)
    finally:
        for gate in gates:
            gate.opened.set()
    ended(federation)
    *_, counted, trained, last = (len(one.contributions) for one in federation.published())
    # Whether the cell that was away is back in the last round depends on who is faster.
    assert (counted, trained) == (6, 6) and last in (6, 9)
    assert attack.rebuilt(federation) == (0 if is_guarded else 1)


@or_long
def test_the_difference_of_two_counts(found, revealing, attack, is_guarded):
    """The next run counts the same cells again, and one client has a user more by then."""
    attack.lies_first = attack.lies_later = False
    least = {} if is_guarded else {"minimum_new_users": 1}
    federation = found(plan(**least), 6, prepare=lambda bench: attack.plant(bench, [0]))
    for again in (False, True):
        revealing(federation, new_run=again)
        for number in range(6):
            federation.client(number, new_run=again)
        ended(federation)
        federation.clients.clear()
        if not again:
            revealing.stop()
            federation.stop_coordinator()
            shutil.rmtree(federation.bench.workspace.coordinator_state)
            write(federation.bench, 5, [history(5, place, None) for place in range(USERS + 1)])
            federation.start_again()
    first, second = attack.counts
    items = np.nonzero(second - first)[0]
    assert items.tolist() == ([] if is_guarded else history(5, USERS, None))
    sizes = np.array([0, len(items)])
    assert determined_users(sizes, items, len(first)).determined.sum() == (not is_guarded)
