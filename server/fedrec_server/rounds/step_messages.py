"""Messages of a round's steps, and the ends of these, as steps of the run's state."""

from __future__ import annotations

from dataclasses import replace

from fedrec.errors import ProtocolError, RoundClosed
from fedrec_server.rounds import steps
from fedrec_server.rounds.backoff import after_silence
from fedrec_server.rounds.collecting import is_noisy, joined_by, round_of
from fedrec_server.rounds.endings import Step, lacks
from fedrec_server.rounds.events import StepClosed, StepHeard
from fedrec_server.rounds.state import State


def received(state: State, event: StepHeard) -> Step:
    """Keep a client's message of the present step.

    Raises:
        RoundError: the round does not take it.
        ProtocolError: the protection has no such messages.
    """
    message = event.message
    if not state.rules.steps.are_several:
        raise ProtocolError("The federation's protection takes no messages of this kind.")
    round_ = round_of(state, message.client_id, message.round)
    most, first = state.rules.most_counted, state.rules.steps.first.name
    begun = round_.sent(first)
    is_new = message.step == first and message.client_id not in begun
    full = most is not None and len(begun) >= most
    if is_new and full and not state.rules.partition.cell_size:
        raise RoundClosed(f"Round {round_.number} has enough clients.")
    # Most were asked; of the others' cells all would have to be looked at.
    unasked = message.client_id not in round_.asked
    may_join = unasked and bool(joined_by(state, round_, message.client_id))
    round_, changes = steps.hear(state.rules, round_, event, may_join=may_join)
    return replace(state, current=round_), changes


def step_closed(state: State, event: StepClosed) -> Step:
    """End a step; the round goes on with those who are left, if they are enough."""
    if state.current is None or state.current.number != event.round:
        return state, ()
    round_ = state.current
    rules = state.rules
    if round_.phase == event.phase and rules.steps.is_until_vectors(round_.phase):
        # As early as may be: a vector costs users of their privacy budget.
        left = steps.arrived(rules, round_) - event.left_out
        if round_.phase == rules.steps.vector.phase:
            state = after_silence(state, round_, round_.accepted)
        ended = lacks(state, round_, left, event.now)
        if ended is not None:
            return ended
    # From here on the coordinator may come to read the sum, also where the round is then abandoned.
    opens = round_.phase == event.phase and rules.steps.opens_next(round_.phase)
    charged = opens and is_noisy(state, round_)
    round_, changes = steps.close(rules, round_, event, charged=charged)
    return replace(state, current=round_, charged=state.charged + charged), changes
