"""The life of a run: open -> collecting -> (summing -> revealing) -> published or abandoned.

`step` is pure: it reads no clock, draws nothing and touches no disk. What it raises leaves the
state as it was; what it returns is committed by the store before it takes effect.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fedrec.errors import (
    ConflictingUpload,
    NotInRoster,
    ProtocolError,
    RoundClosed,
    RoundError,
)
from fedrec.identity.whole_cells import missing_from
from fedrec.ids import ClientId, RoundId
from fedrec.privacy import BUDGET_SPENT
from fedrec.wire.messages import UploadHeader
from fedrec_server.rounds import mask_steps, revealing
from fedrec_server.rounds.backoff import (
    after_silence,
    after_spoiling,
    is_left_out,
    pause_seconds,
    willing,
)
from fedrec_server.rounds.changes import (
    AlreadyCounted,
    Change,
    ClientJoined,
    CollectingEnded,
    EpochBegan,
    RoundOpened,
    RunResumed,
    StopNoted,
    SumKept,
    UpdateCounted,
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
    MaskHeard,
    MaskStepClosed,
    Polled,
    Reported,
    Restarted,
    Resumed,
    Shown,
    Spoke,
    StopRequested,
    Summed,
    Tick,
    Unfit,
    Untrainable,
    Uploaded,
)
from fedrec_server.rounds.selection import asked_of, counted_of, has_all, has_more, joining
from fedrec_server.rounds.state import Round, Rules, State

__all__ = ["NOT_ENOUGH", "absent", "awaited", "step"]

NOT_ENOUGH = "clients"
"""For what a round waits where it has too few clients to open."""


def step(state: State, event: Event) -> Step:
    """Return the next state and what has to be stored for it.

    Raises:
        RoundError: when the round's present state does not allow the event.
        ProtocolError: when an update was made for something else than the round.
        RefusedError: when this client may not cause it.
    """
    match event:
        case Tick():
            return _tick(state, event)
        case Polled():
            return _polled(state, event)
        case Uploaded():
            return _uploaded(state, event)
        case Summed():
            return _summed(state, event)
        case Spoke():
            return revealing.heard(state, event)
        case Shown():
            return revealing.learnt(state, event)
        case Reported():
            return revealing.reported(state, event)
        case MaskHeard():
            return _mask_heard(state, event)
        case MaskStepClosed():
            return _mask_closed(state, event)
        case Failed():
            return _failed(state, event)
        case Unfit():
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
        return _open(state, tick)
    if round_.phase in ("summing", "revealing"):
        return state, ()
    if state.rules.masked:
        return replace(state, current=mask_steps.shortened(state.rules, round_, tick.now)), ()
    # A clock that was set back must not lengthen the round.
    latest = tick.now + state.rules.rounds.deadline_seconds
    if round_.deadline_at > latest:
        round_ = replace(round_, deadline_at=latest)
        return replace(state, current=round_), ()
    if tick.now < round_.deadline_at:
        return state, ()
    return _close(state, round_, tick.now)


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


def _open(state: State, tick: Tick) -> Step:
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
        asked=asked,
    )
    return replace(state, current=round_, last_round=number), (opened,)


def _may_sum(state: State, clients: frozenset[ClientId]) -> bool:
    whole = clients <= state.roster and state.rules.summable(clients) == clients
    return whole and state.rules.suffices(clients)


def _polled(state: State, event: Polled) -> Step:
    round_ = state.current
    if round_ is None or event.client_id in round_.asked:
        return state, ()
    if is_left_out(state, event.client_id, round_.number):
        return state, ()
    new = _joining(state, round_, event.client_id, event.live & state.roster)
    joined = tuple(ClientJoined(round=round_.number, client_id=each) for each in sorted(new))
    return replace(state, current=replace(round_, asked=round_.asked | new)), joined


def _joining(
    state: State,
    round_: Round,
    client_id: ClientId,
    live: frozenset[ClientId] = frozenset(),
) -> frozenset[ClientId]:
    """Return who gets a seat in a collecting round with a client that it did not ask, if it may."""
    fixed = round_.phase != "collecting" or state.expected(round_.kind)
    if fixed or client_id not in state.roster:
        return frozenset()
    return joining(state.rules, round_, live, client_id)


def _uploaded(state: State, event: Uploaded) -> Step:
    header = event.header
    round_ = _round_for(state, header)
    before = round_.accepted.get(header.client_id)
    if before is not None:
        if before.digest != header.digest:
            raise ConflictingUpload(
                f"Another update of this client is already counted in round {round_.number}."
            )
        return state, (AlreadyCounted(round=round_.number, client_id=header.client_id),)
    if state.rules.masked:
        round_ = mask_steps.count(round_, header)
        return replace(state, current=round_), (UpdateCounted(header=header, at=event.now),)
    if round_.phase != "collecting":
        raise RoundClosed(f"Round {round_.number} no longer collects updates.")
    asked = round_.asked
    if header.client_id not in asked:
        new = _joining(state, round_, header.client_id)
        if not new:
            raise RoundClosed(f"Round {round_.number} did not ask this client and is full.")
        asked = asked | new
    first = not round_.accepted
    charged = first and _is_noisy(state, round_) and state.rules.charges_updates
    round_ = replace(round_, asked=asked, accepted={**round_.accepted, header.client_id: header})
    counted = UpdateCounted(header=header, at=event.now, charged=charged)
    state = replace(state, charged=state.charged + charged)
    if not _is_complete(state, round_):
        return replace(state, current=round_), (counted,)
    state, changes = _close(state, round_, event.now)
    return state, (counted, *changes)


def _is_complete(state: State, round_: Round) -> bool:
    """Tell whether there is nothing to wait for: enough agree, or everybody who may was heard."""
    rules, agreeing, arrived = state.rules, round_.of_one_model, len(round_.accepted)
    if has_all(rules, round_, agreeing.keys()):
        return True
    room = len(round_.asked)
    if rules.most_summands is not None:
        room = min(room, rules.most_summands)
    return len(agreeing) < arrived and arrived >= max(room, rules.needed)


def _is_noisy(state: State, round_: Round) -> bool:
    """Tell whether what a round releases costs privacy, because noise has a budget."""
    return round_.kind == "train" and bool(state.rules.budget)


def _round_for(state: State, header: UploadHeader) -> Round:
    """Return the round in progress, if the header is about it."""
    round_ = _round_of(state, header.client_id, header.round)
    if (header.kind, header.base_round) != (round_.kind, round_.base_round):
        # Whoever reads the round would refuse all of it.
        raise ProtocolError(
            f"The update is of kind {header.kind} from version {header.base_round}; round "
            f"{round_.number} is of kind {round_.kind} from version {round_.base_round}.",
            remedy="Ask for a task again.",
        )
    # The collection of masks compares what the list is.
    if bool(header.key_list) != state.rules.masked:
        raise ProtocolError("A list of keys belongs to updates under masks, and to no others.")
    if not state.covers(round_.kind, header.rows):
        raise ProtocolError(
            f"The update covers {header.n_rows} item rows, or others than round "
            f"{round_.number}'s, which covers {state.rows_of(round_.kind).n_rows}.",
            remedy="This client's item counts differ from what was published. Keep its state "
            "folder and tell the operator; an intact copy of the folder goes on.",
        )
    if state.base_state not in (None, header.base_state):
        raise ProtocolError(
            f"The update starts from another model than version {round_.base_round}.",
            remedy="This client's shared model differs from the others'. Keep its state folder and "
            "tell the operator; an intact copy of the folder goes on.",
        )
    return round_


def _round_of(state: State, client_id: ClientId, number: RoundId) -> Round:
    """Return the round in progress, if a member's message is about it."""
    if client_id not in state.roster:
        raise NotInRoster("This client's key is not in the federation's roster.")
    if number > state.last_round:
        raise RoundError(f"Round {number} is not open; the last one is round {state.last_round}.")
    if state.current is None or number != state.current.number:
        raise RoundClosed(f"Round {number} is over.")
    return state.current


def _mask_heard(state: State, event: MaskHeard) -> Step:
    message = event.message
    if not state.rules.masked:
        raise ProtocolError("The federation's protection takes no messages of this kind.")
    round_ = _round_of(state, message.client_id, message.round)
    most, advertised = state.rules.most_counted, round_.messages["keys"]
    is_new = message.step == "keys" and message.client_id not in advertised
    full = most is not None and len(advertised) >= most
    if is_new and full and not state.rules.partition.cell_size:
        raise RoundClosed(f"Round {round_.number} has enough clients.")
    may_join = bool(_joining(state, round_, message.client_id))
    round_, changes = mask_steps.hear(round_, event, may_join=may_join)
    return replace(state, current=round_), changes


def _mask_closed(state: State, event: MaskStepClosed) -> Step:
    if state.current is None or state.current.number != event.round:
        return state, ()
    round_ = state.current
    if round_.phase == event.phase and round_.phase in ("collecting", "sharing", "masking"):
        # As early as may be: a masked vector costs users of their privacy budget.
        left = mask_steps.arrived(round_) - event.left_out
        if round_.phase == "masking":
            state = after_silence(state, round_, round_.accepted)
        ended = lacks(state, round_, left, event.now)
        if ended is not None:
            return ended
    # From here on clients give shares: with enough of them the coordinator can read the sum,
    # also where the round is then abandoned.
    opens = round_.phase == event.phase == "signing"
    charged = opens and _is_noisy(state, round_)
    round_, changes = mask_steps.close(state.rules, round_, event, charged=charged)
    return replace(state, current=round_, charged=state.charged + charged), changes


def _close(state: State, round_: Round, now: float) -> Step:
    """End collecting with the updates that start from one model; the others are left out.

    So are those of clients that are only summed with others whose updates are not here.
    """
    agreeing, rules = round_.of_one_model, state.rules
    given_up = lacks(state, round_, agreeing, now)
    if given_up is not None:
        return given_up
    counted = counted_of(rules, round_, agreeing)
    kept = {who: header for who, header in round_.accepted.items() if who in counted}
    if not rules.suffices(counted):
        return abandon(state, round_, _too_few(rules, round_, agreeing), now)
    left_out = frozenset(round_.accepted) - counted
    state = after_silence(state, round_, round_.accepted)
    ended = CollectingEnded(round=round_.number, counted=len(kept), left_out=left_out, at=now)
    return replace(state, current=replace(round_, phase="summing", accepted=kept)), (ended,)


def _too_few(rules: Rules, round_: Round, agreeing: Collection[ClientId]) -> str:
    missing = missing_from(rules.partition, agreeing)
    reason = f"{len(agreeing)} of the needed {rules.needed} updates arrived in time"
    if missing:
        reason = f"{len(missing)} without whom the others are not summed did not answer in time"
    astray = len(round_.accepted) - len(agreeing)
    return f"{reason}; {astray} more start from another model" if astray else reason


def _summed(state: State, event: Summed) -> Step:
    round_ = state.current
    if round_ is None or round_.number != event.round or round_.phase != "summing":
        return state, ()
    seen = state.rules.charges_updates or state.rules.masked
    charged = _is_noisy(state, round_) and not seen
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
    if state.rules.masked and round_.phase in mask_steps.STEP_OF:
        # Too few are left for the secrets to be put together again.
        ended = lacks(state, round_, mask_steps.arrived(round_), event.now)
        if ended is not None:
            return ended
    return abandon(state, round_, event.reason, event.now)


def _unfit(state: State, event: Unfit) -> Step:
    """Go on without updates that were refused, if the others are enough."""
    round_ = state.current
    if round_ is None or round_.number != event.round or round_.phase != "summing":
        return state, ()
    state = after_spoiling(state, round_, event.clients)
    kept = {who: one for who, one in round_.accepted.items() if who not in event.clients}
    left_out = frozenset(round_.accepted) - kept.keys()
    refused = UpdatesRefused(round=round_.number, left_out=left_out, at=event.now)
    is_enough, missed = state.rules.suffices(kept), state.expected(round_.kind) - kept.keys()
    if is_enough and missed and state.last_count is not None:
        # Divided by what all of them counted, the sum of the others would be wrong.
        state = replace(state, last_count=replace(state.last_count, unanswered=True))
    if missed or not is_enough:
        return then(refused, abandon(state, round_, OUT_OF_BOUNDS, event.now))
    return replace(state, current=replace(round_, accepted=kept)), (refused,)


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
        return replace(state, retry_at=0.0), ()
    if round_.epoch != state.rules.epoch:
        return abandon(state, round_, EPOCH_CHANGED, now)
    seconds = state.rules.rounds.deadline_seconds
    if state.rules.masked:
        seconds = mask_steps.seconds_of(state.rules, round_.phase)
    return replace(state, current=replace(round_, deadline_at=now + seconds)), ()


def _resumed(state: State, now: float) -> Step:
    if state.ending is None or state.next_kind is None:
        return state, ()
    resumed = RunResumed(after_round=state.last_round, at=now)
    state = replace(
        state,
        ending=None,
        stop_asked=False,
        abandoned_in_row=0,
        gave_up="",
        unanswered=frozenset(),
        retry_at=0.0,
    )
    return state, (resumed,)


def _rotated(state: State, event: EpochInstalled) -> Step:
    """Begin a newer epoch: at once where it removes somebody, else when no round is in progress.

    Another revealer has no key for the round in progress, which nobody could open any more.
    """
    round_ = state.current
    if event.rules.epoch <= state.rules.epoch:
        return state, ()
    same = event.rules.revealer == state.rules.revealer
    if round_ is not None and same and state.roster <= event.roster:
        return state, ()
    if round_ is not None and same and is_opening(state, round_):
        # Repeated without the removed member, the two sums would give its update away.
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
