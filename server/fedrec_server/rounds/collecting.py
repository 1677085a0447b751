"""Collect updates and messages: which clients may join, which updates count, when a round ends."""

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
from fedrec.identity.cells import missing_from
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import UploadHeader
from fedrec_server.rounds import steps
from fedrec_server.rounds.backoff import after_silence, dispensable, is_left_out
from fedrec_server.rounds.by_client import Asked, Counted
from fedrec_server.rounds.changes import (
    AlreadyCounted,
    ClientJoined,
    CollectingEnded,
    UpdateCounted,
)
from fedrec_server.rounds.endings import Step, abandon, lacks, then
from fedrec_server.rounds.events import Polled, StepClosed, StepHeard, Uploaded
from fedrec_server.rounds.selection import (
    counted_of,
    has_all,
    joining,
    lacking,
    may_have_all,
)
from fedrec_server.rounds.state import Round, Rules, State


def polled(state: State, event: Polled) -> Step:
    """Give a client that asks for a task a seat, if one is free."""
    round_ = state.current
    if round_ is None or event.client_id in round_.asked:
        return state, ()
    if is_left_out(state, event.client_id, round_.number):
        return state, ()
    new = joined_by(state, round_, event.client_id, event.live & state.roster)
    joined = tuple(ClientJoined(round=round_.number, client_id=each) for each in sorted(new))
    round_ = replace(round_, asked=round_.asked.adding(new), complete_from=0)
    return replace(state, current=round_), joined


def joined_by(
    state: State,
    round_: Round,
    client_id: ClientId,
    live: frozenset[ClientId] = frozenset(),
) -> frozenset[ClientId]:
    """Return the clients that get a seat together with a late one. Empty if it may not join."""
    fixed = round_.phase != "collecting" or state.expected(round_.kind)
    if fixed or client_id not in state.roster:
        return frozenset()
    return joining(state.rules, round_, live, client_id)


def uploaded(state: State, event: Uploaded) -> Step:
    """Count an update. The last awaited one ends the collecting.

    Raises:
        RoundError: the round does not accept the update, or another update of the client counts.
        ProtocolError: the update was made for a different round, kind or model.
    """
    header = event.header
    round_, counted = taken(state, header)
    if counted:
        return state, (AlreadyCounted(round=round_.number, client_id=header.client_id),)
    if header.client_id not in round_.asked:
        asked = round_.asked.adding(joined_by(state, round_, header.client_id))
        round_ = replace(round_, asked=asked, complete_from=0)
    several = state.rules.steps.are_several
    first = not round_.accepted and not several
    charged = first and is_noisy(state, round_) and state.rules.charges_updates
    round_ = replace(round_, accepted=round_.accepted.with_update(header))
    goes_on = round_ if several else _collecting_on(state.rules, round_)
    state = replace(state, current=goes_on or round_, charged=state.charged + charged)
    change = UpdateCounted(header=header, at=event.now, charged=charged)
    if goes_on is not None:
        return state, (change,)
    return then(change, close(state, round_, event.now))


def taken(state: State, header: UploadHeader) -> tuple[Round, bool]:
    """Return the round with an update added, and whether the round already had it.

    Raises:
        RoundError, ProtocolError: as in `uploaded`.
    """
    round_ = _round_for(state, header)
    if header.client_id in round_.accepted:
        if round_.accepted[header.client_id].digest != header.digest:
            raise ConflictingUpload(
                f"Another update of this client already counts in round {round_.number}."
            )
        return round_, True
    if state.rules.steps.are_several:
        steps.check_sender(state.rules, round_, header.client_id)
        return round_, False
    if round_.phase != "collecting":
        raise RoundClosed(f"Round {round_.number} no longer collects updates.")
    if header.client_id not in round_.asked and not joined_by(state, round_, header.client_id):
        raise RoundClosed(f"Round {round_.number} did not select this client, and it is full.")
    return round_, False


def _round_for(state: State, header: UploadHeader) -> Round:
    """Return the round in progress, if the header belongs to it."""
    round_ = round_of(state, header.client_id, header.round)
    if (header.kind, header.base_round) != (round_.kind, round_.base_round):
        # A reader of the round would refuse all of its updates.
        raise ProtocolError(
            f"The update is of kind {header.kind} from version {header.base_round}. Round "
            f"{round_.number} is of kind {round_.kind} from version {round_.base_round}.",
            remedy="Ask for a task again.",
        )
    # The collection of steps compares the content.
    if bool(header.key_list) != state.rules.steps.are_several:
        raise ProtocolError(
            "An update names an agreement of its clients only in rounds of several steps."
        )
    if not state.covers(round_.kind, header.rows):
        raise ProtocolError(
            f"The update covers {header.n_rows} item rows, which aren't the "
            f"{state.rows_of(round_.kind).n_rows} rows of round {round_.number}.",
            remedy="This client's item counts differ from the published ones. Keep its state "
            "folder and tell the operator. An intact copy of the folder can continue.",
        )
    if state.base_state not in (None, header.base_state):
        raise ProtocolError(
            f"The update starts from a different model than version {round_.base_round}.",
            remedy="This client's shared model differs from that of other clients. Keep its state "
            "folder, and tell the operator. An intact copy of the folder can continue.",
        )
    return round_


def round_of(state: State, client_id: ClientId, number: RoundId) -> Round:
    """Return the round in progress, if a member's message belongs to it."""
    if client_id not in state.roster:
        raise NotInRoster("This client's key is not in the federation's roster.")
    if number > state.last_round:
        raise RoundError(f"Round {number} is not open. The last one is round {state.last_round}.")
    if state.current is None or number != state.current.number:
        raise RoundClosed(f"Round {number} is over.")
    return state.current


def has_all_but(state: State, round_: Round, gone: Collection[ClientId]) -> bool:
    """Return whether a round lacks only clients that said goodbye."""
    rules, arrived = state.rules, round_.accepted
    gone = dispensable(rules, gone)
    left = frozenset(one for one in gone if one in round_.asked and one not in arrived)
    if not left or not may_have_all(rules, round_, len(arrived), len(left)):
        return False
    return _collecting_on(rules, replace(round_, asked=Asked(round_.asked - left))) is None


def _collecting_on(rules: Rules, round_: Round) -> Round | None:
    """Return the round, or None if enough updates agree or no more can come."""
    agreeing, arrived = round_.n_of_one_model, len(round_.accepted)
    if may_have_all(rules, round_, agreeing):
        if has_all(rules, round_, round_.of_one_model.keys()):
            return None
        if rules.rounds.cells_per_round:
            more = lacking(rules, round_, round_.accepted)
            round_ = replace(round_, complete_from=arrived + more)
    room = len(round_.asked)
    if rules.most_summands is not None:
        room = min(room, rules.most_summands)
    return None if agreeing < arrived and arrived >= max(room, rules.needed) else round_


def is_noisy(state: State, round_: Round) -> bool:
    """Return whether a round's release costs privacy, because its noise has a budget."""
    return round_.kind == "train" and state.rules.mechanism is not None


def close(state: State, round_: Round, now: float) -> Step:
    """End collecting with the updates that start from one model, and leave the others out.

    Members of incomplete cells are left out too.
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
    return replace(state, current=replace(round_, phase="summing", accepted=Counted(kept))), (
        ended,
    )


def _too_few(rules: Rules, round_: Round, agreeing: Collection[ClientId]) -> str:
    missing, n_cells = missing_from(rules.partition, agreeing), rules.n_cells(agreeing)
    reason = f"{len(agreeing)} of the required {rules.needed} updates arrived in time"
    if missing:
        reason = f"{len(missing)} clients that every sum needs did not answer in time"
    elif n_cells < rules.fewest_cells:
        reason = f"{n_cells} of the required {rules.fewest_cells} cells answered in time"
    astray = len(round_.accepted) - len(agreeing)
    return f"{reason}, and {astray} more start from another model" if astray else reason


def received(state: State, event: StepHeard) -> Step:
    """Keep a client's message for the current step.

    Raises:
        RoundError: the round does not accept it.
        ProtocolError: the protection has no such messages.
    """
    message = event.message
    if not state.rules.steps.are_several:
        raise ProtocolError("The federation's protection does not use messages of this kind.")
    round_ = round_of(state, message.client_id, message.round)
    most, first = state.rules.most_counted, state.rules.steps.first.name
    begun = round_.sent(first)
    is_new = message.step == first and message.client_id not in begun
    full = most is not None and len(begun) >= most
    if is_new and full and not state.rules.partition.cell_size:
        raise RoundClosed(f"Round {round_.number} has enough clients.")
    # Most clients were asked. For others, every cell would have to be checked.
    unasked = message.client_id not in round_.asked
    may_join = unasked and bool(joined_by(state, round_, message.client_id))
    round_, changes = steps.hear(state.rules, round_, event, may_join=may_join)
    return replace(state, current=round_), changes


def step_closed(state: State, event: StepClosed) -> Step:
    """End a step. If enough clients are left, the round continues with them."""
    if state.current is None or state.current.number != event.round:
        return state, ()
    round_ = state.current
    rules = state.rules
    if round_.phase == event.phase and rules.steps.is_until_vectors(round_.phase):
        # As early as possible: a vector costs users some of their privacy budget.
        left = steps.arrived(rules, round_) - event.left_out
        if round_.phase == rules.steps.vector.phase:
            state = after_silence(state, round_, round_.accepted)
        ended = lacks(state, round_, left, event.now)
        if ended is not None:
            return ended
    # From here on the coordinator may be able to read the sum, even if the round is abandoned
    # later.
    opens = round_.phase == event.phase and rules.steps.opens_next(round_.phase)
    charged = opens and is_noisy(state, round_)
    round_, changes = steps.close(rules, round_, event, charged=charged)
    return replace(state, current=round_, charged=state.charged + charged), changes
