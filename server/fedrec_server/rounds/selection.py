"""Which round opens, who is asked, and who of them is counted, where not everybody is.

Whole cells where sums need them, else single clients; in an order drawn from hashes, so that equal
inputs choose equal clients.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from fedrec.identity.cells import whole_cells
from fedrec.ids import ClientId, RoundId, digest
from fedrec.privacy import BUDGET_SPENT
from fedrec_server.rounds import revealing
from fedrec_server.rounds.backoff import pause_seconds, willing
from fedrec_server.rounds.by_client import Asked
from fedrec_server.rounds.changes import RoundOpened
from fedrec_server.rounds.endings import Step, finish
from fedrec_server.rounds.events import Tick
from fedrec_server.rounds.state import Round, Rules, State


def asked_of(rules: Rules, here: Collection[ClientId], number: RoundId) -> frozenset[ClientId]:
    """Return to whom a round is offered, of those that are here."""
    return _chosen(rules, here, number, over=rules.rounds.over_provision)


def counted_of(rules: Rules, round_: Round, here: Collection[ClientId]) -> frozenset[ClientId]:
    """Return who is in a round's sum, of those whose updates are here."""
    if _is_fixed(rules, round_):
        return frozenset(here)
    return _chosen(rules, here, round_.number, over=1.0)


def may_have_all(rules: Rules, round_: Round, n_here: int, n_gone: int = 0) -> bool:
    """Tell from their number alone whether these may be all updates that a round wants.

    Asked for every update: where it is false, none of the others has to be looked at.

    Args:
        n_gone: how many it asked and no longer waits for.
    """
    n_asked = len(round_.asked) - n_gone
    if _is_fixed(rules, round_):
        return n_here >= n_asked
    if n_here < max(rules.needed, rules.fewest_clients):
        return False
    room = _room(rules, 1.0)
    if rules.partition.cell_size and (rules.rounds.cells_per_round or room < n_asked):
        return len(round_.accepted) >= round_.complete_from
    # With room for all of them, all are wanted: cells, too, are asked whole.
    return n_here >= min(n_asked, room)


def has_all(rules: Rules, round_: Round, here: Collection[ClientId]) -> bool:
    """Tell whether a round has all updates that it wants, though more were asked for."""
    if _is_fixed(rules, round_):
        return round_.asked <= frozenset(here)
    counted = counted_of(rules, round_, here)
    wanted = counted_of(rules, round_, round_.asked)
    if not rules.may_begin(counted):
        return False
    if rules.rounds.cells_per_round:
        # Any cells will do; more than are wanted were asked in case that some fail.
        return rules.n_cells(counted) >= rules.n_cells(wanted)
    return len(counted) >= len(wanted)


def lacking(rules: Rules, round_: Round, here: Collection[ClientId]) -> int:
    """Return how many more updates a round of some cells needs at least, if it lacks any.

    Until they are here, or others are asked, none has to be looked at again.
    """
    n_wanted = rules.n_cells(counted_of(rules, round_, round_.asked))
    present = frozenset(here)
    active = (cell for cell in rules.partition.cells if cell.state == "active")
    missing = sorted(len(frozenset(cell.core) - present) for cell in active)
    return max(1, sum(missing[:n_wanted]))


def has_room(rules: Rules, round_: Round) -> bool:
    """Tell whether a round may ask one more client; where it may not, nobody can join it."""
    return len(round_.asked) < _room(rules, rules.rounds.over_provision)


def has_more(
    rules: Rules, here: Collection[ClientId], number: RoundId, before: Collection[ClientId]
) -> bool:
    """Tell whether a round of those who are here would count more than an earlier one did.

    A client that is only asked in case that others fail does not count: asked and not needed, it
    would be a reason for another round after every one.
    """
    found = _chosen(rules, here, number, over=1.0)
    if not rules.rounds.cells_per_round:
        return len(found) > len(before)
    if rules.n_cells(found) > rules.n_cells(before):
        return True
    # Any cells will do, but those that were counted may have more guests by now.
    same = whole_cells(rules.partition, before)
    return any(not frozenset(here).intersection(cell.members) <= frozenset(before) for cell in same)


def joining(
    rules: Rules, round_: Round, here: Collection[ClientId], client_id: ClientId
) -> frozenset[ClientId]:
    """Return who is offered a collecting round now that one more client is here; maybe nobody.

    Args:
        here: the clients that are here; the one is, too.
    """
    new = frozenset({client_id})
    if not rules.partition.cell_size:
        fits = client_id not in round_.asked and has_room(rules, round_)
        return new if fits else frozenset()
    cell = rules.partition.cell_of(client_id)
    new = new.union(here).intersection(() if cell is None else cell.members)
    new = rules.summable(new)
    after = new.union(round_.asked)
    fits = asked_of(rules, after, round_.number) == after
    return new - round_.asked if new and fits else frozenset()


def _is_fixed(rules: Rules, round_: Round) -> bool:
    """Tell whether a round is the sum of all whom it asked: whose holders divide it."""
    return rules.exact and round_.kind == "train"


def _chosen(
    rules: Rules, here: Collection[ClientId], number: RoundId, *, over: float
) -> frozenset[ClientId]:
    room = _room(rules, over)
    if not rules.partition.cell_size:
        if room >= len(here):
            # With every update this is asked of all who are here; their order costs a digest each.
            return frozenset(here)
        clients = sorted(here, key=lambda client: _place(rules, number, client))
        return frozenset(clients[: int(room)])
    present = frozenset(here)
    cells = sorted(
        whole_cells(rules.partition, present), key=lambda cell: _place(rules, number, cell.id)
    )
    wanted = math.ceil(rules.rounds.cells_per_round * over) or len(cells)
    found: set[ClientId] = set()
    for cell in cells:
        if not wanted and rules.may_begin(found):
            break
        more = present.intersection(cell.members)
        if len(found) + len(more) <= room:
            found |= more
            wanted = max(0, wanted - 1)
    return frozenset(found)


def _room(rules: Rules, over: float) -> float:
    """Return how many clients a round takes at most, when so many times as many are asked."""
    most = rules.most_counted
    return math.inf if most is None else math.ceil(most * over)


def _place(rules: Rules, number: RoundId, what: ClientId | int) -> bytes:
    return digest("fedrec selection v1", rules.seed, number, what)


NOT_ENOUGH = "clients"
"""For what a round waits where it has too few clients to open."""


def awaited(state: State, live: frozenset[ClientId]) -> str:
    """Return who has to come before the next round opens, for operators; empty for nobody."""
    if state.current is not None or state.ending is not None:
        return ""
    if state.reporting is not None:
        return revealing.AWAITED_REPORTS
    here = state.rules.summable(live & state.roster)
    if not state.rules.may_begin(here):
        return NOT_ENOUGH
    if not state.expected(state.next_kind or "evaluate") <= here:
        return "clients that were counted; before long the others are counted again without them"
    return ""


def absent(state: State, live: frozenset[ClientId]) -> frozenset[ClientId]:
    """Return who keeps a round from opening by not being there; guests never do."""
    if not awaited(state, live) or state.reporting is not None:
        return frozenset()
    here = live & state.roster
    counted = state.expected(state.next_kind or "evaluate")
    cells = [cell.core for cell in state.rules.partition.cells if cell.state == "active"]
    wanted = frozenset().union(*cells) if state.rules.partition.cell_size else state.roster
    return (counted or wanted) - here


def open_round(state: State, tick: Tick) -> Step:
    """Open the next round once everybody is there whom it needs, or end the run."""
    number = state.next_number
    here = willing(state, state.rules.summable(tick.live & state.roster), number)
    if state.last_count is not None:
        counted = state.last_count.clients
        found = state.last_count.noticed(
            here,
            tick.now,
            trained=state.trained,
            patience=state.rules.rounds.deadline_seconds,
            fits=_may_sum(state, counted),
            has_more=lambda clients: has_more(state.rules, clients, number, counted),
        )
        state = replace(state, last_count=found)
    kind = state.next_kind
    if kind is None or state.stop_asked:
        reason = "the operator stopped the run" if state.stop_asked else "all rounds are published"
        return finish(state, reason, failed=False, now=tick.now)
    most = state.rules.most_sums
    if kind == "train" and most is not None and state.charged >= most:
        reason = f"{BUDGET_SPENT}: {state.charged} noisy sums, {state.rules.budget}"
        return finish(state, reason, failed=True, now=tick.now)
    # A clock that was set back must not lengthen the pause.
    longest = tick.now + pause_seconds(state.rules, state.abandoned_in_row)
    state = replace(state, retry_at=min(state.retry_at, longest))
    if tick.now < state.retry_at or awaited(state, here):
        return state, ()
    asked = state.expected(kind) or asked_of(state.rules, here, number)
    if not state.rules.may_begin(asked):
        return state, ()
    opened = RoundOpened(
        round=number,
        kind=kind,
        base_round=state.published,
        epoch=state.rules.epoch,
        at=tick.now,
        deadline_at=tick.now + state.rules.rounds.deadline_seconds,
        asked=asked,
    )
    round_ = Round(
        number=number,
        kind=kind,
        base_round=opened.base_round,
        epoch=opened.epoch,
        phase="collecting",
        opened_at=opened.at,
        deadline_at=opened.deadline_at,
        asked=Asked(asked),
    )
    return replace(state, current=round_, last_round=number), (opened,)


def _may_sum(state: State, clients: frozenset[ClientId]) -> bool:
    whole = clients <= state.roster and state.rules.summable(clients) == clients
    return whole and state.rules.suffices(clients)
