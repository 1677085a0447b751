"""The life of a run: open -> collecting -> (summing -> revealing) -> published or abandoned.

`step` is pure: it reads no clock, draws no randomness and touches no disk. If it raises, the state
is unchanged. The store commits what it returns before it takes effect.
"""

from __future__ import annotations

from dataclasses import replace

from fedrec_server.rounds import collecting, revealing, steps
from fedrec_server.rounds.backoff import (
    after_spoiling,
)
from fedrec_server.rounds.by_client import Counted
from fedrec_server.rounds.changes import (
    Change,
    EpochBegan,
    RunResumed,
    StopNoted,
    SumKept,
    UpdatesRefused,
)
from fedrec_server.rounds.endings import (
    EPOCH_CHANGED,
    OUT_OF_BOUNDS,
    Step,
    abandon,
    finish,
    is_opening,
    lacks,
    publish,
    then,
)
from fedrec_server.rounds.events import (
    EpochInstalled,
    Event,
    Failed,
    Polled,
    ReportReceived,
    Restarted,
    Resumed,
    StatementReceived,
    StatementShown,
    StepClosed,
    StepHeard,
    StopRequested,
    Summed,
    Tick,
    Untrainable,
    UpdatesUnfit,
    Uploaded,
)
from fedrec_server.rounds.selection import open_round
from fedrec_server.rounds.state import Abandonments, State


def step(state: State, event: Event) -> Step:
    """Return the next state and the changes to store.

    Raises:
        RoundError: if the round's current state does not allow the event.
        ProtocolError: if an update was made for a different round, kind or model.
        RefusedError: if this client may not cause the event.
    """
    match event:
        case Tick():
            return _tick(state, event)
        case Polled():
            return collecting.polled(state, event)
        case Uploaded():
            return collecting.uploaded(state, event)
        case Summed():
            return _summed(state, event)
        case StatementReceived():
            return revealing.statement_received(state, event)
        case StatementShown():
            return revealing.statement_shown(state, event)
        case ReportReceived():
            return revealing.report_received(state, event)
        case StepHeard():
            return collecting.received(state, event)
        case StepClosed():
            return collecting.step_closed(state, event)
        case Failed():
            return _failed(state, event)
        case UpdatesUnfit():
            return _unfit(state, event)
        case Untrainable():
            return _untrainable(state, event)
        case StopRequested():
            return _stop(state, event)
        case Restarted():
            return _restarted(state, event.now)
        case Resumed():
            return _resumed(state, event.now)
        case EpochInstalled():
            return _rotated(state, event)


def _tick(state: State, tick: Tick) -> Step:
    round_ = state.current
    if state.ending is not None:
        return state, ()
    if state.reporting is not None:
        return revealing.waited(state, state.reporting, tick.now)
    if round_ is None:
        return open_round(state, tick)
    if round_.phase in ("summing", "revealing"):
        return state, ()
    if state.rules.steps.are_several:
        return replace(state, current=steps.shortened(state.rules, round_, tick.now)), ()
    # If the clock is set back, the round must not last longer.
    latest = tick.now + state.rules.rounds.deadline_seconds
    if round_.deadline_at > latest:
        round_ = replace(round_, deadline_at=latest)
        return replace(state, current=round_), ()
    if tick.now < round_.deadline_at and not collecting.has_all_but(state, round_, tick.gone):
        return state, ()
    return collecting.close(state, round_, tick.now)


def _summed(state: State, event: Summed) -> Step:
    round_ = state.current
    if round_ is None or round_.number != event.round or round_.phase != "summing":
        return state, ()
    seen = state.rules.charges_updates or state.rules.steps.open_sum
    charged = collecting.is_noisy(state, round_) and not seen
    kept = SumKept(round=round_.number, total=event.total, at=event.now, charged=charged)
    round_ = replace(round_, total=event.total)
    state = replace(state, charged=state.charged + charged)
    if state.rules.revealer is not None:
        return replace(state, current=replace(round_, phase="revealing")), (kept,)
    return then(
        kept,
        publish(
            state,
            round_,
            blob=event.total,
            metrics=event.metrics,
            rows=event.rows,
            now=event.now,
        ),
    )


def _failed(state: State, event: Failed) -> Step:
    if state.current is None or state.current.number != event.round:
        return state, ()
    round_ = state.current
    if state.rules.steps.are_several and state.rules.steps.in_phase(round_.phase):
        # Too few are left to finish the round.
        ended = lacks(state, round_, steps.arrived(state.rules, round_), event.now)
        if ended is not None:
            return ended
    return abandon(state, round_, event.reason, event.now)


def _unfit(state: State, event: UpdatesUnfit) -> Step:
    """Continue without refused updates, if the others are enough."""
    round_ = state.current
    if round_ is None or round_.number != event.round or round_.phase != "summing":
        return state, ()
    state = after_spoiling(state, round_, event.clients)
    kept = {who: one for who, one in round_.accepted.items() if who not in event.clients}
    left_out = frozenset(round_.accepted) - kept.keys()
    refused = UpdatesRefused(round=round_.number, left_out=left_out, at=event.now)
    is_enough, missed = state.rules.suffices(kept), state.expected(round_.kind) - kept.keys()
    if is_enough and missed and state.last_count is not None:
        # The sum would be divided by counts that include the refused clients.
        state = replace(state, last_count=replace(state.last_count, unanswered=True))
    if missed or not is_enough:
        return then(refused, abandon(state, round_, OUT_OF_BOUNDS, event.now))
    return replace(state, current=replace(round_, accepted=Counted(kept))), (refused,)


def _untrainable(state: State, event: Untrainable) -> Step:
    if state.ending is not None or state.current is not None or not state.counted:
        return state, ()
    return finish(state, event.reason, failed=True, now=event.now)


def _stop(state: State, event: StopRequested) -> Step:
    if state.ending is not None:
        return state, ()
    noted = StopNoted(at=event.now)
    state = replace(state, stop_asked=True)
    if not event.at_once and (state.current or state.reporting):
        return state, (noted,)
    if state.current is None:
        return then(noted, finish(state, "the operator stopped the run", False, event.now))
    return then(noted, abandon(state, state.current, "the operator stopped it", event.now))


def _restarted(state: State, now: float) -> Step:
    round_, waiting = state.current, state.reporting
    if waiting is not None:
        return replace(state, reporting=revealing.begun_again(state, waiting, now)), ()
    if round_ is None:
        abandonments = replace(state.abandonments, retry_at=0.0)
        return replace(state, abandonments=abandonments), ()
    if round_.epoch != state.rules.epoch:
        return abandon(state, round_, EPOCH_CHANGED, now)
    seconds = steps.seconds_of(state.rules, round_.phase)
    return replace(state, current=replace(round_, deadline_at=now + seconds)), ()


def _resumed(state: State, now: float) -> Step:
    if state.ending is None or state.next_kind is None:
        return state, ()
    resumed = RunResumed(after_round=state.last_round, at=now)
    state = replace(
        state,
        ending=None,
        stop_asked=False,
        abandonments=Abandonments(),
    )
    return state, (resumed,)


def _rotated(state: State, event: EpochInstalled) -> Step:
    """Begin a newer epoch: at once if it removes a member, otherwise between rounds.

    A new revealer has no key for the round in progress and could never open it.
    """
    round_ = state.current
    if event.rules.epoch <= state.rules.epoch:
        return state, ()
    same = event.rules.revealer == state.rules.revealer
    if round_ is not None and same and state.roster <= event.roster:
        return state, ()
    if round_ is not None and same and is_opening(state, round_):
        # A repeat without the removed member would give its update away: the two sums differ by it.
        return state, ()
    changes: tuple[Change, ...] = ()
    if round_ is not None:
        state, changes = abandon(state, round_, EPOCH_CHANGED, event.now)
    began = EpochBegan(epoch=event.rules.epoch, members=len(event.roster), at=event.now)
    state = replace(state, rules=event.rules, roster=event.roster)
    if state.reporting is not None:
        waiting = revealing.begun_again(state, state.reporting, event.now)
        state = replace(state, reporting=waiting)
    return state, (*changes, began)
