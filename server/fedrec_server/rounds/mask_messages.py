"""Messages of a round under masks, and the ends of its steps, as steps of the run's state."""

from __future__ import annotations

from dataclasses import replace

from fedrec.errors import ProtocolError, RoundClosed
from fedrec_server.rounds import mask_steps
from fedrec_server.rounds.backoff import after_silence
from fedrec_server.rounds.collecting import is_noisy, joined_by, round_of
from fedrec_server.rounds.endings import Step, lacks
from fedrec_server.rounds.events import MaskHeard, MaskStepClosed
from fedrec_server.rounds.state import State

__all__ = ["received", "step_closed"]


def received(state: State, event: MaskHeard) -> Step:
    """Keep a client's message of the present step.

    Raises:
        RoundError: the round does not take it.
        ProtocolError: the protection has no such messages.
    """
    message = event.message
    if not state.rules.masked:
        raise ProtocolError("The federation's protection takes no messages of this kind.")
    round_ = round_of(state, message.client_id, message.round)
    most, advertised = state.rules.most_counted, round_.messages["keys"]
    is_new = message.step == "keys" and message.client_id not in advertised
    full = most is not None and len(advertised) >= most
    if is_new and full and not state.rules.partition.cell_size:
        raise RoundClosed(f"Round {round_.number} has enough clients.")
    may_join = bool(joined_by(state, round_, message.client_id))
    round_, changes = mask_steps.hear(round_, event, may_join=may_join)
    return replace(state, current=round_), changes


def step_closed(state: State, event: MaskStepClosed) -> Step:
    """End a step; the round goes on with those who are left, if they are enough."""
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
    charged = opens and is_noisy(state, round_)
    round_, changes = mask_steps.close(state.rules, round_, event, charged=charged)
    return replace(state, current=round_, charged=state.charged + charged), changes
