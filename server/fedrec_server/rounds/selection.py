"""Select clients: which round opens, which clients it asks, and which of them it counts.

Whole cells are selected if sums need them, otherwise single clients. The order comes from hashes,
so equal inputs select equal clients.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from fedrec.identity.cells import whole_cells
from fedrec.ids import ClientId, RoundId, digest
from fedrec.privacy import BUDGET_SPENT
from fedrec_server.rounds import revealing
from fedrec_server.rounds.backoff import clients_to_ask, pause_seconds
from fedrec_server.rounds.by_client import Asked
from fedrec_server.rounds.changes import RoundOpened
from fedrec_server.rounds.endings import Step, finish
from fedrec_server.rounds.events import Tick
from fedrec_server.rounds.state import Round, Rules, State


def asked_of(rules: Rules, here: Collection[ClientId], number: RoundId) -> frozenset[ClientId]:
    """Return the connected clients to offer a round to."""
    return _chosen(rules, here, number, over=rules.rounds.over_provision)


def counted_of(rules: Rules, round_: Round, here: Collection[ClientId]) -> frozenset[ClientId]:
    """Return the clients in a round's sum, out of those whose updates have arrived."""
    if _is_fixed(rules, round_):
        return frozenset(here)
    return _chosen(rules, here, round_.number, over=1.0)


def may_have_all(rules: Rules, round_: Round, n_here: int, n_gone: int = 0) -> bool:
    """Return whether, by their number alone, these may be all the updates that a round wants.

    Called for every update. If it is false, no other check is needed.

    Args:
        n_gone: the number of asked clients that it no longer waits for.
    """
    n_asked = len(round_.asked) - n_gone
    if _is_fixed(rules, round_):
        return n_here >= n_asked
    if n_here < max(rules.needed, rules.fewest_clients):
        return False
    room = _room(rules, 1.0)
    if rules.partition.cell_size and (rules.rounds.cells_per_round or room < n_asked):
        return len(round_.accepted) >= round_.complete_from
    # With room for all of them, all are wanted. Cells, too, are asked whole.
    return n_here >= min(n_asked, room)


def has_all(rules: Rules, round_: Round, here: Collection[ClientId]) -> bool:
    """Return whether a round has all the updates that it wants, even if it asked for more."""
    if _is_fixed(rules, round_):
        return round_.asked <= frozenset(here)
    counted = counted_of(rules, round_, here)
    wanted = counted_of(rules, round_, round_.asked)
    if not rules.may_begin(counted):
        return False
    if rules.rounds.cells_per_round:
        # Any cells will do. More than are wanted were asked, in case some fail.
        return rules.n_cells(counted) >= rules.n_cells(wanted)
    return len(counted) >= len(wanted)


def lacking(rules: Rules, round_: Round, here: Collection[ClientId]) -> int:
    """Return the least number of updates that a round of some cells lacks, if it lacks any.

    Until they arrive, or other clients are asked, no further check is needed.
    """
    n_wanted = rules.n_cells(counted_of(rules, round_, round_.asked))
    present = frozenset(here)
    active = (cell for cell in rules.partition.cells if cell.state == "active")
    missing = sorted(len(frozenset(cell.core) - present) for cell in active)
    return max(1, sum(missing[:n_wanted]))


def has_room(rules: Rules, round_: Round) -> bool:
    """Return whether a round may ask one more client. If not, no client can join it."""
    return len(round_.asked) < _room(rules, rules.rounds.over_provision)


def has_more(
    rules: Rules, here: Collection[ClientId], number: RoundId, before: Collection[ClientId]
) -> bool:
    """Return whether a round of the connected clients would count more than an earlier one did.

    Clients that are only asked in reserve don't count. Otherwise each round would be a reason for
    another one.
    """
    found = _chosen(rules, here, number, over=1.0)
    if not rules.rounds.cells_per_round:
        return len(found) > len(before)
    if rules.n_cells(found) > rules.n_cells(before):
        return True
    # Any cells will do, but the counted ones may have more guests by now.
    same = whole_cells(rules.partition, before)
    return any(not frozenset(here).intersection(cell.members) <= frozenset(before) for cell in same)


def joining(
    rules: Rules, round_: Round, here: Collection[ClientId], client_id: ClientId
) -> frozenset[ClientId]:
    """Return the clients to offer a collecting round to, now that one more is connected.

    Args:
        here: the connected clients, the new one included.
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
    """Return whether a round needs all clients that it asked, since their counts divide its sum."""
    return rules.exact and round_.kind == "train"


def _chosen(
    rules: Rules, here: Collection[ClientId], number: RoundId, *, over: float
) -> frozenset[ClientId]:
    room = _room(rules, over)
    if not rules.partition.cell_size:
        if room >= len(here):
            # Every update of a round of all clients comes here. Sorting them costs a digest each.
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
    """Return the maximum number of clients if a round asks `over` times as many as it needs."""
    most = rules.most_counted
    return math.inf if most is None else math.ceil(most * over)


def _place(rules: Rules, number: RoundId, what: ClientId | int) -> bytes:
    return digest("fedrec selection v1", rules.seed, number, what)


NOT_ENOUGH = "clients"
"""The reason for waiting if there are too few clients to open a round."""


def awaited(state: State, live: frozenset[ClientId]) -> str:
    """Return the condition for opening the next round, as text for operators.

    Empty if nothing is missing.
    """
    if state.current is not None or state.ending is not None:
        return ""
    if state.reporting is not None:
        return revealing.AWAITED_REPORTS
    here = state.rules.summable(live & state.roster)
    if not state.rules.may_begin(here):
        return NOT_ENOUGH
    if not state.expected(state.next_kind or "evaluate") <= here:
        return "clients that were counted. Soon the others are counted again without them"
    return ""


def absent(state: State, live: frozenset[ClientId]) -> frozenset[ClientId]:
    """Return the clients whose absence keeps a round from opening. Guests never do."""
    if not awaited(state, live) or state.reporting is not None:
        return frozenset()
    here = live & state.roster
    counted = state.expected(state.next_kind or "evaluate")
    cells = [cell.core for cell in state.rules.partition.cells if cell.state == "active"]
    wanted = frozenset().union(*cells) if state.rules.partition.cell_size else state.roster
    return (counted or wanted) - here


def open_round(state: State, tick: Tick) -> Step:
    """Open the next round once all required clients are there, or end the run."""
    number = state.next_number
    here = clients_to_ask(state, state.rules.summable(tick.live & state.roster), number)
    if state.last_count is not None:
        counted = state.last_count.clients
        found = state.last_count.after_looking_at(
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
    by = state.rules.mechanism
    if kind == "train" and by is not None and not by.allows_another(state.charged, state.trained):
        reason = f"{BUDGET_SPENT}: {state.charged} noisy sums, {by.budget}"
        return finish(state, reason, failed=True, now=tick.now)
    # If the clock is set back, the pause must not last longer.
    longest = tick.now + pause_seconds(state.rules, state.abandonments.in_row)
    retry_at = min(state.abandonments.retry_at, longest)
    state = replace(state, abandonments=replace(state.abandonments, retry_at=retry_at))
    if tick.now < retry_at or awaited(state, here):
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
