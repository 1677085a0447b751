"""How a round opens: who has to be there, which round it is, and who is asked."""

from __future__ import annotations

from dataclasses import replace

from fedrec.ids import ClientId
from fedrec.privacy import BUDGET_SPENT
from fedrec_server.rounds import revealing
from fedrec_server.rounds.backoff import pause_seconds, willing
from fedrec_server.rounds.by_client import Asked
from fedrec_server.rounds.changes import RoundOpened
from fedrec_server.rounds.endings import Step, finish
from fedrec_server.rounds.events import Tick
from fedrec_server.rounds.selection import asked_of, has_more
from fedrec_server.rounds.state import Round, State

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
