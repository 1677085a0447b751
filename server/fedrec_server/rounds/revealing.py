"""Results of sums that the coordinator cannot read.

With a key authority, its statement publishes a round. A closed round waits for it as long as
needed, and clients don't train again. In the papers' protocol the ciphertext sum is published as it
is. Each client reports what it decrypted, and the coordinator shows what two of them agree on.
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
from fedrec.ids import RoundId
from fedrec.wire.messages import RevealStatement
from fedrec_server.rounds.by_client import Asked, Counted
from fedrec_server.rounds.changes import (
    CellsPaused,
    Change,
    ReportKept,
    RoundLearnt,
    RoundMeasured,
)
from fedrec_server.rounds.endings import REFUSED, Step, abandon, finish, publish, then
from fedrec_server.rounds.events import ReportReceived, StatementReceived, StatementShown
from fedrec_server.rounds.state import KnownModel, Reporting, Round, State

DISAGREE = "clients disagree"
FEW = "fewer than two clients reported"
AWAITED_REPORTS = "two clients that agree on the content of the last sum"


def statement_received(state: State, event: StatementReceived) -> Step:
    """Publish a round on the key authority's statement, or abandon it if that is a refusal.

    Raises:
        RoundClosed: if the round is not being revealed.
        RefusedError: if a different party made the statement.
        ProtocolError: if the opened sum is not attached, or is inconsistent with the count.
    """
    round_, statement = state.current, event.statement
    if round_ is None or round_.phase != "revealing" or statement.round != round_.number:
        raise RoundClosed(f"Round {statement.round} is not being revealed.")
    if statement.client_id != state.rules.revealer:
        raise RefusedError(f"The key authority alone opens round {round_.number}.")
    if statement.refused:
        state, round_, paused = _paused(state, round_, event)
        reason = f"{REFUSED}: {statement.refused.rstrip('.')}"
        state, changes = abandon(state, round_, reason, event.now)
        return state, (*paused, *changes)
    if event.blob is None or event.blob.digest != statement.published_digest:
        raise ProtocolError("The sealed sum is not the one that the key authority signed.")
    _check_rows(state, statement.n_rows)
    state, round_, paused = _paused(state, round_, event)
    if not state.rules.suffices(state.rules.summable(round_.accepted)):
        raise ProtocolError("The key authority published a sum of too few clients.")
    state, changes = publish(state, round_, blob=event.blob, statement=statement, now=event.now)
    return state, (*paused, *changes)


def _paused(
    state: State, round_: Round, event: StatementReceived
) -> tuple[State, Round, tuple[Change, ...]]:
    """Leave out the cells that the key authority names, in this round and in later ones."""
    partition, statement = state.rules.partition, event.statement
    if not {cell.id for cell in partition.in_use}.issuperset(statement.paused):
        raise ProtocolError("The key authority pauses cells that its roster does not have.")
    active = {cell.id for cell in partition.cells if cell.state == "active"}
    new = tuple(cell for cell in statement.paused if cell in active)
    gone = partition.members_of(statement.paused)
    left_out = gone & round_.accepted.keys()
    if not new and not left_out:
        return state, round_, ()
    paused = CellsPaused(
        round=round_.number, epoch=round_.epoch, cells=new, left_out=left_out, at=event.now
    )
    kept = {who: header for who, header in round_.accepted.items() if who not in gone}
    round_ = replace(round_, accepted=Counted(kept), asked=Asked(round_.asked - gone))
    return replace(state, rules=state.rules.without(new)), round_, (paused,)


def numbers_used(published: RoundId, epoch: int, present: int) -> RoundId:
    """Return the last round number that may have been used, given the last published one.

    Another round may have been in progress. In the same epoch its updates can be sent again. After
    a change of epoch they are useless, and clients answer no number twice.
    """
    return RoundId(published + (present > epoch))


def statement_shown(state: State, event: StatementShown) -> Step:
    """Continue from a later round, if none was opened since the folder was recovered.

    Raises:
        RoundError: the run has continued by itself, or the round is known.
    """
    statement = event.statement
    if not state.nothing_opened_since_recovery or statement.round <= state.published:
        raise RoundError(f"This run cannot continue from round {statement.round}.")
    last = max(state.last_round, numbers_used(statement.round, statement.epoch, state.rules.epoch))
    charged = max(state.charged, statement.charged)
    change = RoundLearnt(
        statement=statement,
        base_round=state.published,
        last_round=last,
        charged=charged,
        at=event.now,
    )
    state, paused = _learnt_paused(state, statement, event.now)
    state = replace(
        state,
        published=statement.round,
        last_round=last,
        recovered=statement.round,
        begins_at=last,
        counted=not state.rules.exact,
        trained=statement.trained,
        evaluated=statement.kind == "evaluate",
        charged=charged,
        known=KnownModel.named_by(statement),
        rows=statement.rows,
        last_count=None,
    )
    return state, (change, *paused)


def _learnt_paused(
    state: State, statement: RevealStatement, now: float
) -> tuple[State, tuple[Change, ...]]:
    """Leave out the cells that a later statement of this key epoch pauses."""
    active = {cell.id for cell in state.rules.partition.cells if cell.state == "active"}
    new = tuple(cell for cell in statement.paused if cell in active)
    if statement.epoch != state.rules.epoch or not new:
        return state, ()
    paused = CellsPaused(
        round=statement.round, epoch=statement.epoch, cells=new, left_out=frozenset(), at=now
    )
    return replace(state, rules=state.rules.without(new)), (paused,)


def report_received(state: State, event: ReportReceived) -> Step:
    """Keep a client's report on the published sum. Reports after an agreement are ignored.

    Raises:
        NotInRoster: if the report's sender is not a member.
        RoundError: if the round is not published.
        ProtocolError: if the report is inconsistent with the count.
        ConflictingUpload: if the client reported something else before.
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
    """Let time pass. A run continues without clients' reports, except after a count round."""
    latest = now + state.rules.report_seconds(waiting.kind, len(state.roster))
    if waiting.until > latest:
        # If the clock is set back, the wait must not last longer.
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
    """Return the reports to wait for after a restart or in a new epoch. Members report again."""
    until = now + state.rules.report_seconds(waiting.kind, len(state.roster))
    present = {
        who: report for who, report in waiting.reports.items() if report.epoch == state.rules.epoch
    }
    return replace(waiting, until=until, reports=present)


def _measured(state: State, waiting: Reporting, reason: str) -> Step:
    agreed = waiting.agreed
    rows = state.rows if agreed is None else agreed.rows
    if rows is None:
        raise RoundError("No statement names the rows that follow from the count.")
    known = None if agreed is None else KnownModel.named_by(agreed)
    measured = RoundMeasured(round=waiting.round, agreed=agreed, reason=reason, rows=rows)
    return replace(state, reporting=None, rows=rows, known=known), (measured,)


def _check_rows(state: State, stated: int) -> None:
    if state.rows is not None and stated != state.rows.n_rows:
        raise ProtocolError(
            f"The statement has {stated} travelling rows, but the count round led to "
            f"{state.rows.n_rows}."
        )
