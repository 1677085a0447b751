"""Rounds of several steps. Each step is closed for good before the next one opens.

The protection defines the steps (`fedrec.protection.round_protocol`). The first one is open while
the round collects. This module decides which client may send what and when.
`fedrec_server.stepped_rounds` decides whether enough arrived for the sum. A round of one step only
collects vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import replace
from typing import TypeVar

from fedrec.errors import ConflictingUpload, RoundClosed, RoundError
from fedrec.ids import ClientId
from fedrec.protection.round_protocol import COLLECTING
from fedrec.wire.messages import StepTask
from fedrec_server.rounds.by_client import ByClient, Counted
from fedrec_server.rounds.changes import AlreadyCounted, Change, StepEnded, StepKept
from fedrec_server.rounds.events import StepClosed, StepHeard
from fedrec_server.rounds.state import Round, Rules

T = TypeVar("T")


def seconds_of(rules: Rules, phase: str) -> float:
    """Return how long a phase may take."""
    if phase == COLLECTING or rules.steps.in_phase(phase) is None:
        return rules.rounds.deadline_seconds
    if phase == rules.steps.vector.phase:
        return max(rules.rounds.mask_step_seconds, rules.vector_seconds)
    return rules.rounds.mask_step_seconds


def invited(rules: Rules, round_: Round) -> Set[ClientId]:
    """Return the clients that send the current step's message: those that sent the one before."""
    return frozenset().union(*_invited(rules, round_))


def is_invited(rules: Rules, round_: Round, client_id: ClientId) -> bool:
    """Return whether a client is to send a message of the current step. See `invited`."""
    return any(client_id in some for some in _invited(rules, round_))


def _invited(rules: Rules, round_: Round) -> tuple[Collection[ClientId], ...]:
    """Return `invited` in disjoint parts, which are not copied for each message."""
    step = rules.steps.in_phase(round_.phase)
    if step is None or step == rules.steps.first:
        return (round_.asked,)
    before = rules.steps.all[rules.steps.place(step.name) - 1]
    sent = round_.sent(before.name)
    # A client that was left out of the sum still helps to open it.
    return (sent, round_.accepted) if before.brings_vector else (sent,)


def all_arrived(rules: Rules, round_: Round, gone: Set[ClientId]) -> bool:
    """Return whether every invited client sent its message of the current step.

    Args:
        gone: clients that did not send it and are not awaited.
    """
    here = arrived(rules, round_)
    if len(here) + len(gone) < sum(map(len, _invited(rules, round_))):
        return False
    return here >= invited(rules, round_) - gone


def arrived(rules: Rules, round_: Round) -> Set[ClientId]:
    """Return the clients whose message of the current step has arrived."""
    step = rules.steps.in_phase(round_.phase)
    if step is None or step.brings_vector:
        return round_.accepted.keys()
    return round_.sent(step.name).keys()


def task_of(rules: Rules, round_: Round, client_id: ClientId) -> StepTask | None:
    """Return a participant's next step, once its first message has arrived."""
    step = rules.steps.in_phase(round_.phase)
    if step is None or step == rules.steps.first:
        return None
    if not is_invited(rules, round_, client_id) or client_id in arrived(rules, round_):
        return None
    return StepTask(round=round_.number, step=step.name, epoch=round_.epoch)


def hear(
    rules: Rules, round_: Round, event: StepHeard, *, may_join: bool
) -> tuple[Round, tuple[Change, ...]]:
    """Keep a client's message of the current step.

    Args:
        may_join: whether a client that was not asked may take part.

    Raises:
        RoundClosed: if the step is over, has not begun, or is not for this client.
        ConflictingUpload: if the client sent something else before.
    """
    message, client_id = event.message, event.message.client_id
    kept = round_.sent(message.step).get(client_id)
    if kept is not None:
        if kept != message.body:
            raise ConflictingUpload(
                f"Another message of this client is already kept for step {message.step} of round "
                f"{round_.number}."
            )
        return round_, (AlreadyCounted(round=round_.number, client_id=client_id),)
    present = rules.steps.in_phase(round_.phase)
    if present is None or present.name != message.step or present.brings_vector:
        raise RoundClosed(f"Round {round_.number} does not collect {message.step} now.")
    asked = round_.asked
    if not is_invited(rules, round_, client_id):
        if not may_join:
            raise RoundClosed(f"This client has dropped out of round {round_.number}.")
        asked = asked.adding({client_id})
    of_step = round_.sent(message.step).adding(client_id, message.body)
    round_ = replace(round_, asked=asked, messages={**round_.messages, message.step: of_step})
    change = StepKept(
        round=round_.number, client_id=client_id, step=message.step, body=message.body
    )
    return round_, (change,)


def check_sender(rules: Rules, round_: Round, client_id: ClientId) -> None:
    """Refuse a vector that a round does not accept.

    Raises:
        RoundClosed: if the round collects no vectors now, or none from this client.
    """
    if round_.phase != rules.steps.vector.phase:
        raise RoundClosed(f"Round {round_.number} does not collect vectors now.")
    if not is_invited(rules, round_, client_id):
        raise RoundClosed(f"This client has dropped out of round {round_.number}.")


def close(
    rules: Rules, round_: Round, event: StepClosed, *, charged: bool = False
) -> tuple[Round, tuple[Change, ...]]:
    """Begin the next phase without the clients that are left out.

    If the phase is already over, do nothing.

    Args:
        charged: whether the privacy ledger counts the round from now on.

    Raises:
        RoundError: if fewer are left than a sum requires. Clients whose vector is in the sum may
            drop out.
    """
    if round_.phase != event.phase:
        return round_, ()
    step = rules.steps.in_phase(round_.phase)
    if step is None:
        return round_, ()
    here = arrived(rules, round_) - event.left_out
    if rules.steps.is_until_vectors(round_.phase) and not is_enough(rules, round_, here):
        raise RoundError(f"{len(here)} of the required {rules.needed} clients are left.")
    after = rules.steps.after(round_.phase)
    ended = StepEnded(
        round=round_.number,
        step=step.name,
        phase=after,
        brought_vectors=step.brings_vector,
        left_out=event.left_out,
        counted=len(here),
        deadline_at=event.now + seconds_of(rules, after),
        at=event.now,
        charged=charged,
    )
    round_ = replace(round_, phase=after, deadline_at=ended.deadline_at)
    if step.brings_vector:
        return without_vectors(rules, round_, event.left_out), (ended,)
    messages = {
        name: ByClient(without(found, event.left_out)) for name, found in round_.messages.items()
    }
    return replace(round_, messages=messages), (ended,)


def is_enough(rules: Rules, round_: Round, here: Collection[ClientId]) -> bool:
    """Return whether enough clients sent the current step's message for the round to continue."""
    whole = rules.summable(here)
    return rules.may_begin(whole) if round_.phase == COLLECTING else rules.suffices(whole)


def without_vectors(rules: Rules, round_: Round, left_out: frozenset[ClientId]) -> Round:
    """Return a round without some of the vectors. Their clients stay participants."""
    return replace(
        round_,
        accepted=Counted(without(round_.accepted, left_out)),
        messages={
            **round_.messages,
            rules.steps.vector.name: ByClient(dict.fromkeys(left_out, b"")),
        },
    )


def without(found: Mapping[ClientId, T], left_out: frozenset[ClientId]) -> dict[ClientId, T]:
    """Return the entries of the clients that are not left out."""
    return {client: value for client, value in found.items() if client not in left_out}


def shortened(rules: Rules, round_: Round, now: float) -> Round:
    """Return the round with no more than a phase's time left, even if the clock was set back."""
    latest = now + seconds_of(rules, round_.phase)
    return replace(round_, deadline_at=latest) if round_.deadline_at > latest else round_
