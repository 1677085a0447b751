"""A round under masks: five steps, each closed for good before the next one opens.

Keys are advertised while the round collects; then follow shares, masked vectors, signatures and
answers. Here is who may send what and when; whether enough arrived for the secrets to be put
together again, which depends on the graph, is `fedrec_server.masks.collection`'s question.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from fedrec.errors import ConflictingUpload, RoundClosed, RoundError
from fedrec.ids import ClientId
from fedrec.wire.messages import MaskStep, MaskTask, UploadHeader
from fedrec_server.rounds.changes import AlreadyCounted, Change, MaskKept, MaskStepEnded
from fedrec_server.rounds.events import MaskHeard, MaskStepClosed
from fedrec_server.rounds.state import Phase, Round, Rules

__all__ = [
    "AFTER",
    "STEP_OF",
    "arrived",
    "close",
    "count",
    "hear",
    "invited",
    "is_enough",
    "seconds_of",
    "shortened",
    "task_of",
    "without",
    "without_vectors",
]

T = TypeVar("T")

STEP_OF: Mapping[Phase, MaskStep] = {
    "collecting": "keys",
    "sharing": "shares",
    "masking": "vector",
    "signing": "signature",
    "unmasking": "answer",
}
AFTER: Mapping[Phase, Phase] = {
    "collecting": "sharing",
    "sharing": "masking",
    "masking": "signing",
    "signing": "unmasking",
    "unmasking": "summing",
}


def seconds_of(rules: Rules, phase: Phase) -> float:
    """Return how long a phase may take."""
    if phase == "collecting":
        return rules.rounds.deadline_seconds
    if phase == "masking":
        return max(rules.rounds.mask_step_seconds, rules.vector_seconds)
    return rules.rounds.mask_step_seconds


def invited(round_: Round) -> frozenset[ClientId]:
    """Return who is to send the message of the present step."""
    match round_.phase:
        case "sharing":
            return frozenset(round_.messages["keys"])
        case "masking":
            return frozenset(round_.messages["shares"])
        case "signing":
            # A client that was left out of the sum still helps to take the others' masks off.
            return frozenset(round_.accepted).union(round_.messages["vector"])
        case "unmasking":
            return frozenset(round_.messages["signature"])
    return round_.asked


def arrived(round_: Round) -> frozenset[ClientId]:
    """Return whose message of the present step is here."""
    step = STEP_OF[round_.phase]
    return frozenset(round_.accepted if step == "vector" else round_.messages[step])


def task_of(round_: Round, client_id: ClientId) -> MaskTask | None:
    """Return a participant's next step, once the keys are advertised."""
    if round_.phase not in STEP_OF or round_.phase == "collecting":
        return None
    if client_id not in invited(round_) or client_id in arrived(round_):
        return None
    return MaskTask(round=round_.number, step=STEP_OF[round_.phase], epoch=round_.epoch)


def hear(round_: Round, event: MaskHeard, *, may_join: bool) -> tuple[Round, tuple[Change, ...]]:
    """Keep a client's message of the present step.

    Args:
        may_join: whether a client that was not asked may take part.

    Raises:
        RoundClosed: when the step is over, has not begun, or is not for this client.
        ConflictingUpload: when the client sent something else before.
    """
    message, client_id = event.message, event.message.client_id
    kept = round_.messages[message.step].get(client_id)
    if kept is not None:
        if kept != message.body:
            raise ConflictingUpload(
                f"Another message of this client for step {message.step} of round "
                f"{round_.number} is kept already."
            )
        return round_, (AlreadyCounted(round=round_.number, client_id=client_id),)
    if STEP_OF.get(round_.phase) != message.step or message.step == "vector":
        raise RoundClosed(f"Round {round_.number} does not collect {message.step} now.")
    asked = round_.asked
    if client_id not in invited(round_):
        if not may_join:
            raise RoundClosed(f"Round {round_.number} goes on without this client.")
        asked = asked | {client_id}
    of_step = {**round_.messages[message.step], client_id: message.body}
    round_ = replace(round_, asked=asked, messages={**round_.messages, message.step: of_step})
    change = MaskKept(
        round=round_.number, client_id=client_id, step=message.step, body=message.body
    )
    return round_, (change,)


def count(round_: Round, header: UploadHeader) -> Round:
    """Return the round with a masked vector in it.

    Raises:
        RoundClosed: when vectors are not, or no longer, collected, or not from this client.
    """
    if round_.phase != "masking":
        raise RoundClosed(f"Round {round_.number} does not collect vectors now.")
    if header.client_id not in invited(round_):
        raise RoundClosed(f"Round {round_.number} goes on without this client.")
    return replace(round_, accepted={**round_.accepted, header.client_id: header})


def close(
    rules: Rules, round_: Round, event: MaskStepClosed, *, charged: bool = False
) -> tuple[Round, tuple[Change, ...]]:
    """Go on to the next phase, without the clients that are left out.

    Nothing happens for a phase that is over.

    Args:
        charged: whether the privacy ledger counts the round from now on.

    Raises:
        RoundError: when fewer are left than a sum must have; those whose vector is in it may go.
    """
    if round_.phase != event.phase:
        return round_, ()
    left = len(arrived(round_) - event.left_out)
    if round_.phase in ("collecting", "sharing", "masking") and not is_enough(
        rules, round_, arrived(round_) - event.left_out
    ):
        raise RoundError(f"{left} of the needed {rules.needed} clients are left.")
    after = AFTER[round_.phase]
    ended = MaskStepEnded(
        round=round_.number,
        step=STEP_OF[round_.phase],
        phase=after,
        left_out=event.left_out,
        counted=left,
        deadline_at=event.now + seconds_of(rules, after),
        at=event.now,
        charged=charged,
    )
    round_ = replace(round_, phase=after, deadline_at=ended.deadline_at)
    if ended.step == "vector":
        return without_vectors(round_, event.left_out), (ended,)
    messages = {step: without(found, event.left_out) for step, found in round_.messages.items()}
    return replace(round_, messages=messages), (ended,)


def is_enough(rules: Rules, round_: Round, here: Collection[ClientId]) -> bool:
    """Tell whether a round can go on with those whose message of the present step is here."""
    whole = rules.summable(here)
    return rules.may_begin(whole) if round_.phase == "collecting" else rules.suffices(whole)


def without_vectors(round_: Round, left_out: frozenset[ClientId]) -> Round:
    """Return a round without some of the vectors; their clients go on taking part."""
    return replace(
        round_,
        accepted=without(round_.accepted, left_out),
        messages={**round_.messages, "vector": dict.fromkeys(left_out, b"")},
    )


def without(found: Mapping[ClientId, T], left_out: frozenset[ClientId]) -> dict[ClientId, T]:
    """Return what is there of the clients that are not left out."""
    return {client: value for client, value in found.items() if client not in left_out}


def shortened(rules: Rules, round_: Round, now: float) -> Round:
    """Return the round with no more time than a phase may take: a clock may be set back."""
    latest = now + seconds_of(rules, round_.phase)
    return replace(round_, deadline_at=latest) if round_.deadline_at > latest else round_
