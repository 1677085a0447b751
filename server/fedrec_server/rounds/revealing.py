"""Who says what is in a sum that the coordinator cannot read.

The key authority, whose word publishes a round; a closed round waits for it as long as it takes,
and nothing is trained again. In the papers' protocol the ciphertext sum is published as it is, each
client tells what it decrypted, and what two of them say alike is believed and shown.
"""

from __future__ import annotations

from dataclasses import replace

from fedrec.errors import (
    ConflictingUpload,
    NotInRoster,
    ProtocolError,
    RefusedError,
    RoundClosed,
    RoundError,
)
from fedrec_server.rounds.changes import ReportKept, RoundMeasured
from fedrec_server.rounds.endings import Step, abandon, finish, publish, then
from fedrec_server.rounds.events import Reported, Spoke
from fedrec_server.rounds.state import Reporting, State

__all__ = ["AWAITED_REPORTS", "DISAGREE", "begun_again", "heard", "reported", "waited"]

DISAGREE = "clients disagree"
FEW = "fewer than two clients reported"
AWAITED_REPORTS = "two clients that say alike what is in the last sum"


def heard(state: State, event: Spoke) -> Step:
    """Publish a round on the key authority's word, or give it up where it refused the sum.

    Raises:
        RoundClosed: when the round is not being revealed.
        RefusedError: when somebody else says it.
        ProtocolError: when what it opened is not with it, or does not fit the count.
    """
    round_, said = state.current, event.statement
    if round_ is None or round_.phase != "revealing" or said.round != round_.number:
        raise RoundClosed(f"Round {said.round} is not being revealed.")
    if said.client_id != state.rules.revealer:
        raise RefusedError(f"The key authority alone opens round {round_.number}.")
    if said.refused:
        reason = f"the key authority refused the sum: {said.refused.rstrip('.')}"
        return abandon(state, round_, reason, event.now)
    if event.blob is None or event.blob.digest != said.published_digest:
        raise ProtocolError("The sealed sum is not the one that the key authority signed.")
    _check_rows(state, said.n_rows)
    return publish(state, round_, blob=event.blob, statement=said, now=event.now)


def reported(state: State, event: Reported) -> Step:
    """Keep a client's word on the published sum; later ones are of no use.

    Raises:
        NotInRoster: when it is no member's.
        RoundError: when the round is not published.
        ProtocolError: when it does not fit the count.
        ConflictingUpload: when the client said something else before.
    """
    report, waiting = event.report, state.reporting
    if report.client_id not in state.roster:
        raise NotInRoster("This client's key is not in the federation's roster.")
    if report.round > state.published:
        raise RoundError(f"Round {report.round} is not published.")
    if waiting is None or report.round != waiting.round:
        return state, ()
    before = waiting.reports.get(report.client_id)
    if before is not None:
        if before.content() != report.content():
            raise ConflictingUpload("This client reported something else on this round before.")
        return state, ()
    _check_rows(state, report.n_rows)
    waiting = replace(waiting, reports={**waiting.reports, report.client_id: report})
    kept = ReportKept(report=report)
    if waiting.agreed is None:
        return replace(state, reporting=waiting), (kept,)
    return then(kept, _measured(state, waiting, ""))


def waited(state: State, waiting: Reporting, now: float) -> Step:
    """Let time pass: a run goes on without clients' word, but not without what they counted."""
    latest = now + state.rules.report_seconds(waiting.kind, len(state.roster))
    if waiting.until > latest:
        # A clock that was set back must not lengthen it.
        return replace(state, reporting=replace(waiting, until=latest)), ()
    if now < waiting.until:
        return state, ()
    reason = DISAGREE if len(waiting.reports) > 1 else FEW
    if state.rows is not None:
        return _measured(state, waiting, reason)
    if reason == FEW:
        return state, ()
    return finish(state, f"{DISAGREE} about the items that they counted", True, now)


def begun_again(state: State, waiting: Reporting, now: float) -> Reporting:
    """Return what is waited for after a restart or in a new epoch, in which members report anew."""
    until = now + state.rules.report_seconds(waiting.kind, len(state.roster))
    present = {
        who: report for who, report in waiting.reports.items() if report.epoch == state.rules.epoch
    }
    return replace(waiting, until=until, reports=present)


def _measured(state: State, waiting: Reporting, reason: str) -> Step:
    agreed = waiting.agreed
    rows = state.rows if agreed is None else agreed.rows
    if rows is None:
        raise RoundError("Nobody said which rows the count leads to.")
    known = None if agreed is None else (agreed.epoch, agreed.state_tag)
    measured = RoundMeasured(round=waiting.round, agreed=agreed, reason=reason, rows=rows)
    return replace(state, reporting=None, rows=rows, known=known), (measured,)


def _check_rows(state: State, stated: int) -> None:
    if state.rows is not None and stated != state.rows.n_rows:
        raise ProtocolError(
            f"The statement says that {stated} item rows travel; since the count they are "
            f"{state.rows.n_rows}."
        )
