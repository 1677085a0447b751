"""How long a run leaves those alone who were asked and silent, and itself after rounds in vain.

Nobody's silence ends a run: who answers goes on without the cells of those who do not, and where
too few are left, everybody is asked again after a pause that grows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fedrec.ids import ClientId, RoundId
from fedrec_server.rounds.state import Round, Rules, Silence, State

STALLED_AFTER = 3
"""Rounds given up in a row, after which the next one is not opened at once."""
LONGEST_SKIP = 16
"""Rounds that pass at most without asking a cell again, and the longest pause in first pauses."""
FIRST_PAUSE_SECONDS = 60.0
"""The first pause is no longer, however long the deadline."""


def after_silence(state: State, round_: Round, answered: Collection[ClientId]) -> State:
    """Return the state in which who was silent is left out for a while.

    Called when the time to answer is over.

    Args:
        answered: who did what the round asked for.
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
    """Return the state in which those are left out for a while whose updates were refused."""
    until = RoundId(round_.number + LONGEST_SKIP)
    found = {_unit(state.rules, client): Silence(times=1, until=until) for client in clients}
    return replace(state, silences={**state.silences, **found})


def willing(state: State, here: frozenset[ClientId], number: RoundId) -> frozenset[ClientId]:
    """Return whom to ask of those who are here; all of them, where too few were left."""
    left_out = {unit for unit, one in state.silences.items() if number <= one.until}
    left = state.rules.summable(here.difference(*left_out))
    return left if state.rules.may_begin(left) else here


def is_left_out(state: State, client_id: ClientId, number: RoundId) -> bool:
    """Tell whether a client that asks for something to do gets no seat in a round."""
    found = state.silences.get(_unit(state.rules, client_id))
    return found is not None and number <= found.until


def missed_by_none(rules: Rules, clients: Collection[ClientId]) -> frozenset[ClientId]:
    """Return those of some clients without whom all others are counted: guests, without cells all.

    Whoever of a cell's core is missing takes the cell's updates along, the acknowledged ones, too.
    """
    return frozenset(client for client in clients if _unit(rules, client) == {client})


def is_stalled(state: State) -> bool:
    """Tell whether rounds are given up again and again; the next published one ends it."""
    return state.abandoned_in_row >= STALLED_AFTER


def pause_seconds(rules: Rules, in_row: int) -> float:
    """Return how long to wait before the next round, after so many were given up in a row."""
    if in_row < STALLED_AFTER:
        return 0.0
    first = min(rules.rounds.deadline_seconds, FIRST_PAUSE_SECONDS)
    return first * min(LONGEST_SKIP, 1 << min(in_row - STALLED_AFTER, 10))


def _unit(rules: Rules, client_id: ClientId) -> frozenset[ClientId]:
    """Return those without whom a client is not counted: its cell's core, or nobody else."""
    cell = rules.partition.cell_of(client_id) if rules.partition.cell_size else None
    if cell is None or client_id in cell.guests:
        return frozenset({client_id})
    return frozenset(cell.core)
