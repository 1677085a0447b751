"""Check the signatures that confirm a model.

The key authority's revealer opens a round's sum alone, so its statement is enough. Without a
statement under this epoch's key, and in the papers' protocol, the reports of two members that have
the same model are needed.
"""

from __future__ import annotations

from fedrec.errors import BadSignature, RefusedError
from fedrec.identity.public import verify
from fedrec.identity.roster import Roster
from fedrec.ids import RoundId
from fedrec.wire.messages import Report, RevealStatement

About = tuple[str, str, RoundId, int]
"""Federation, run, round and epoch."""

_LEAST_REPORTS = 2
_REMEDY = "Stop here, and tell the data owners that the coordinator published this."


def check_statement(statement: RevealStatement | None, *, roster: Roster, about: About) -> None:
    """Check the key authority's statement that it opened a round.

    Raises:
        BadSignature: there is no statement, or the key authority didn't sign it.
        RefusedError: the statement is about another round, or it is a refusal.
    """
    revealer = roster.revealer
    if statement is None or revealer is None or statement.client_id != revealer.client_id:
        raise BadSignature(
            f"Round {about[2]} isn't signed by the key authority, the only party that opens sums.",
            remedy=_REMEDY,
        )
    _check_about(statement, about)
    if statement.refused:
        raise RefusedError(f"The key authority refused to open round {about[2]}.", remedy=_REMEDY)
    verify(revealer.signing_key, statement.statement(), statement.signature)


def check_follows(statement: RevealStatement, known: RevealStatement | None) -> None:
    """Check that a statement comes after a known one, and names it if it is the next.

    Raises:
        RefusedError: the statement doesn't follow. It is an earlier one, or there are two chains of
            statements.
    """
    if known is None:
        return
    expected = "a later one"
    if statement.sequence == known.sequence + 1 and statement.previous != known.digest():
        expected = "one that names it"
    elif statement.sequence > known.sequence:
        return
    raise RefusedError(
        f"Statement {statement.sequence} of the key authority, on round {statement.round}, doesn't "
        f"follow {known.sequence}, on round {known.round}: expected {expected}.",
        remedy="Stop here, and tell the data owners. The key authority may run from two folders.",
    )


def check_reports(reports: tuple[Report, ...], *, roster: Roster, about: About) -> Report:
    """Check that at least two members have the same model after a round. Return a report.

    Raises:
        RefusedError: the reports differ, or they are about another round.
        NotInRoster: an author isn't a member.
        BadSignature: there are too few reports, or an author didn't sign one.
    """
    members = {report.client_id for report in reports}
    if len(members) < _LEAST_REPORTS:
        raise BadSignature(
            f"Round {about[2]} has reports from {len(members)} distinct members, but needs "
            f"{_LEAST_REPORTS}."
        )
    for report in reports:
        _check_about(report, about)
        verify(roster.member(report.client_id).signing_key, report.statement(), report.signature)
        if report.model != reports[0].model:
            raise RefusedError(f"The reports on round {about[2]} contradict each other.")
    return reports[0]


def _check_about(signed: RevealStatement | Report, about: About) -> None:
    found = (signed.federation, signed.run, signed.round, signed.epoch)
    if found != about:
        raise RefusedError(f"A statement is about {found}, but {about} was expected.")
