"""Back off from silent clients, and pause after abandoned rounds.

A silent client never ends a run. Rounds proceed without its cell. If too few clients are left, the
next round asks all of them again, after a pause that grows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fedrec.ids import ClientId, RoundId
from fedrec_server.rounds.state import Round, Rules, Silence, State

STALLED_AFTER = 3
"""Number of rounds abandoned in a row after which the next one opens only after a pause."""
LONGEST_SKIP = 16
"""The maximum number of rounds that a cell sits out, and the longest pause over the first."""
FIRST_PAUSE_SECONDS = 60.0
"""Upper limit of the first pause, however long the deadline."""


def after_silence(state: State, round_: Round, answered: Collection[ClientId]) -> State:
    """Return the state in which silent clients sit out some rounds.

    Called when the time to answer is over.

    Args:
        answered: the clients that did what the round asked for.
    """
    found = dict(state.silences)
    silent = frozenset(round_.asked).difference(answered)
    for unit in {_unit(state.rules, client) for client in round_.asked}:
        before = found.pop(unit, None)
        if unit & silent:
            times = 1 if before is None else before.times + 1
            skipped = min(LONGEST_SKIP, 1 << (times - 1))
            found[unit] = Silence(times=times, until=RoundId(round_.number + skipped))
    return replace(state, silences=found)


def after_spoiling(state: State, round_: Round, clients: frozenset[ClientId]) -> State:
    """Return the state in which clients with refused updates sit out some rounds."""
    until = RoundId(round_.number + LONGEST_SKIP)
    found = {_unit(state.rules, client): Silence(times=1, until=until) for client in clients}
    return replace(state, silences={**state.silences, **found})


def clients_to_ask(state: State, here: frozenset[ClientId], number: RoundId) -> frozenset[ClientId]:
    """Return the present clients that aren't sitting out, or all of them if too few remain."""
    left_out = {unit for unit, one in state.silences.items() if number <= one.until}
    left = state.rules.summable(here.difference(*left_out))
    return left if state.rules.may_begin(left) else here


def is_left_out(state: State, client_id: ClientId, number: RoundId) -> bool:
    """Return whether a client that asks for a task gets no seat in a round."""
    found = state.silences.get(_unit(state.rules, client_id))
    return found is not None and number <= found.until


def dispensable(rules: Rules, clients: Collection[ClientId]) -> frozenset[ClientId]:
    """Return the clients whose absence excludes no other client: guests, or all without cells.

    If a client of a cell's core is missing, the whole cell sits out, even if its updates were
    acknowledged.
    """
    return frozenset(client for client in clients if _unit(rules, client) == {client})


def is_stalled(state: State) -> bool:
    """Return whether rounds are abandoned one after another. The next published round ends this."""
    return state.abandonments.in_row >= STALLED_AFTER


def pause_seconds(rules: Rules, in_row: int) -> float:
    """Return the pause before the next round, after this many abandoned rounds in a row."""
    if in_row < STALLED_AFTER:
        return 0.0
    first = min(rules.rounds.deadline_seconds, FIRST_PAUSE_SECONDS)
    return first * min(LONGEST_SKIP, 1 << min(in_row - STALLED_AFTER, 10))


def _unit(rules: Rules, client_id: ClientId) -> frozenset[ClientId]:
    """Return the clients that must all respond for this client's update to count.

    These are the core of its cell, or the client itself if it has no cell or is a guest.
    """
    cell = rules.partition.cell_of(client_id) if rules.partition.cell_size else None
    if cell is None or client_id in cell.guests:
        return frozenset({client_id})
    return frozenset(cell.core)
