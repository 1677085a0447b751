"""Ends of rounds and runs. Each function returns the next state and the changes to store."""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import replace

from fedrec.errors import (
    FedrecError,
    KeysError,
    RevealRefused,
    RoundError,
    SettingsError,
    SumOutOfBounds,
)
from fedrec.ids import ClientId
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import RevealStatement
from fedrec_server.rounds.backoff import after_silence, pause_seconds
from fedrec_server.rounds.changes import Change, RoundAbandoned, RoundPublished, RunFinished
from fedrec_server.rounds.state import (
    Abandonments,
    Ending,
    KnownModel,
    LastCount,
    Reporting,
    Round,
    State,
)
from fedrec_server.rounds.steps import arrived

EPOCH_CHANGED = "the key epoch changed"
"""A reason to abandon a round that no client caused. It does not count against the run."""

OUT_OF_BOUNDS = "the sum is out of bounds, and one of these clients caused it"
REFUSED = "the key authority refused the sum"
"""The beginning of the reason."""

Step = tuple[State, tuple[Change, ...]]


def reason_of(error: FedrecError) -> str:
    """Return why a round was abandoned, for operators."""
    if isinstance(error, SumOutOfBounds):
        # The message contains an item id.
        return OUT_OF_BOUNDS
    if isinstance(error, RoundError | RevealRefused | KeysError | SettingsError):
        return error.message.rstrip(".")
    return "a stored update is damaged"


def publish(
    state: State,
    round_: Round,
    *,
    blob: Blob,
    now: float,
    statement: RevealStatement | None = None,
    metrics: bytes = b"",
    rows: StatedRows | None = None,
) -> Step:
    """Publish a round's result. The last planned round ends the run.

    If clients decrypt the sum, the next round or the run's end waits until two of them agree on its
    content.

    Args:
        rows: the item rows that follow from a count round, if the coordinator can read it.
    """
    rules = state.rules
    # The same list is named in every round, under its epoch's key. A later count moves no rows.
    first = None if state.counted else rows
    if statement is not None:
        after: StatedRows | None = statement.rows
    elif rules.shares_key and not state.counted:
        after = None
    else:
        after = first or state.rows_of("train")
    until = None
    if rules.shares_key:
        until = now + rules.report_seconds(round_.kind, len(round_.accepted))
    published = RoundPublished(
        round=round_.number,
        kind=round_.kind,
        statement=statement,
        blob=blob,
        metrics=metrics if statement is None else statement.metrics,
        counted=len(round_.accepted),
        bytes_received=sum(header.length for header in round_.accepted.values()),
        seconds=max(0.0, now - round_.opened_at),
        at=now,
        rows=after,
        reports_until=until,
    )
    known = None if statement is None else KnownModel.named_by(statement)
    state = state.with_published(round_.kind, round_.number, known, after)
    if round_.kind == "count" and rules.exact:
        who = frozenset(round_.accepted)
        counted = LastCount(clients=who, asked=frozenset(round_.asked), trained=state.trained)
        state = replace(state, last_count=counted)
    if until is not None:
        reporting = Reporting(round=round_.number, kind=round_.kind, until=until)
        return replace(state, reporting=reporting), (published,)
    if state.stop_asked:
        return then(published, finish(state, "the operator stopped the run", False, now))
    if state.next_kind is None:
        return then(published, finish(state, "all rounds are published", False, now))
    return state, (published,)


def is_opening(state: State, round_: Round) -> bool:
    """Return whether the round's sum may have been opened, or is about to be."""
    rules = state.rules
    if rules.steps.are_several:
        return not rules.steps.is_until_vectors(round_.phase)
    return state.rules.revealer is not None and round_.phase == "revealing"


def abandon(state: State, round_: Round, reason: str, now: float) -> Step:
    """Abandon a round. After several in a row, pauses grow."""
    blamed = reason != EPOCH_CHANGED
    before = state.abandonments
    in_row = before.in_row + blamed
    pause = pause_seconds(state.rules, in_row) if blamed else 0.0
    # If the deadline did not cause it, all clients did what was asked.
    answered: Set[ClientId] = round_.asked
    if blamed and state.rules.steps.is_until_vectors(round_.phase):
        answered = arrived(state.rules, round_)
        state = after_silence(state, round_, answered)
    abandoned = RoundAbandoned(
        round=round_.number,
        kind=round_.kind,
        reason=reason,
        counted=len(round_.accepted),
        at=now,
        pause_seconds=pause,
    )
    state = replace(
        state,
        current=None,
        abandoned=state.abandoned + 1,
        abandonments=Abandonments(
            in_row=in_row,
            reason=reason if blamed else before.reason,
            unanswered=frozenset(round_.asked - answered) if blamed else before.unanswered,
            retry_at=now + pause,
        ),
    )
    if state.stop_asked:
        return then(abandoned, finish(state, "the operator stopped the run", False, now))
    return state, (abandoned,)


def lacks(state: State, round_: Round, here: Collection[ClientId], now: float) -> Step | None:
    """Abandon a round and count again, if a client is missing that the sum must include."""
    missing = state.expected(round_.kind) - frozenset(here)
    if not missing or state.last_count is None:
        return None
    state = replace(state, last_count=replace(state.last_count, unanswered=True))
    reason = f"{len(missing)} of the counted clients did not answer"
    return abandon(state, round_, reason, now)


def finish(state: State, reason: str, failed: bool, now: float) -> Step:
    """End the run."""
    finished = RunFinished(reason=reason, failed=failed, at=now)
    return replace(state, ending=Ending(reason=reason, failed=failed)), (finished,)


def then(change: Change, after: Step) -> Step:
    """Put a change in front of a step's changes."""
    state, changes = after
    return state, (change, *changes)
