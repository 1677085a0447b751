"""Whose word about a model is believed.

That of the key authority's revealer, which opens a round's sum alone. Where it did not say
anything under this epoch's key, and in the papers' protocol, that of two members who have the same
model.
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
_REMEDY = "Do not go on; tell the data owners that the coordinator published this."


def check_statement(statement: RevealStatement | None, *, roster: Roster, about: About) -> None:
    """Check that the key authority says that it opened a round.

    Raises:
        BadSignature: it said nothing, or did not sign this.
        RefusedError: it is about something else, or a refusal.
    """
    revealer = roster.revealer
    if statement is None or revealer is None or statement.client_id != revealer.client_id:
        raise BadSignature(
            f"Round {about[2]} is not vouched for by the key authority, which alone opens sums.",
            remedy=_REMEDY,
        )
    _check_about(statement, about)
    if statement.refused:
        raise RefusedError(f"The key authority refused round {about[2]}.", remedy=_REMEDY)
    verify(revealer.signing_key, statement.statement(), statement.signature)


def check_follows(statement: RevealStatement, known: RevealStatement | None) -> None:
    """Check that a statement comes after one that is known, and names it where it is the next.

    Raises:
        RefusedError: it does not: somebody shows an earlier one, or two chains of them exist.
    """
    if known is None:
        return
    expected = "a later one"
    if statement.sequence == known.sequence + 1 and statement.previous != known.digest():
        expected = "one that names it"
    elif statement.sequence > known.sequence:
        return
    raise RefusedError(
        f"Statement {statement.sequence} of the key authority, on round {statement.round}, does "
        f"not follow {known.sequence}, on round {known.round}: expected {expected}.",
        remedy="Do not go on; tell the data owners: the key authority may run from two folders.",
    )


def check_reports(reports: tuple[Report, ...], *, roster: Roster, about: About) -> Report:
    """Check that two members or more have the same model after a round, and return a report.

    Raises:
        RefusedError: they differ, or are about something else.
        NotInRoster: by somebody else.
        BadSignature: too few of them, or not signed by their authors.
    """
    members = {report.client_id for report in reports}
    if len(members) < _LEAST_REPORTS:
        raise BadSignature(
            f"Round {about[2]} is vouched for by {len(members)} distinct members, expected "
            f"{_LEAST_REPORTS}."
        )
    for report in reports:
        _check_about(report, about)
        verify(roster.member(report.client_id).signing_key, report.statement(), report.signature)
        if report.model != reports[0].model:
            raise RefusedError(f"The reports on round {about[2]} contradict each other.")
    return reports[0]


def _check_about(said: RevealStatement | Report, about: About) -> None:
    found = (said.federation, said.run, said.round, said.epoch)
    if found != about:
        raise RefusedError(f"A statement is about {found}, expected {about}.")
