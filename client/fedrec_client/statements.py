"""Whose word about a round is believed, and how many must say the same.

Two members, of the round's committee where its sum was opened. Where the roster names a revealer
its word alone, and nobody else's: but for two members who attest which model they have, under the
key of an epoch in which nothing was published yet.
"""

from __future__ import annotations

from fedrec.errors import BadSignature, RefusedError
from fedrec.identity.public import verify
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.wire.committee import QUORUM
from fedrec.wire.messages import RevealStatement

__all__ = ["check_statements", "is_enough"]

_REMEDY = "Do not go on; tell the data owners that the coordinator published this."


def is_enough(roster: Roster, statements: tuple[RevealStatement, ...]) -> bool:
    """Tell whether as many different ones signed statements as it takes to believe them."""
    signers = {statement.client_id for statement in statements}
    return len(signers) >= QUORUM or _is_revealers(roster, statements)


def check_statements(
    statements: tuple[RevealStatement, ...],
    *,
    roster: Roster,
    about: tuple[str, str, RoundId, int],
    committee: tuple[ClientId, ...] = (),
) -> RevealStatement:
    """Check that enough of those who may say so signed the same about a round, and return it.

    Args:
        roster: of the epoch.
        about: federation, run, round and epoch.
        committee: whose words alone count; empty where any member's do.

    Raises:
        RefusedError: they differ, or are about something else.
        NotInRoster: by somebody else.
        BadSignature: too few of them, not the revealer's where there is one, or not signed by
            their authors.
    """
    signers = {statement.client_id for statement in statements}
    round_id = about[2]
    if not is_enough(roster, statements):
        wanted = QUORUM if roster.revealer is None else "the key authority"
        raise BadSignature(
            f"Round {round_id} is vouched for by {len(signers)} distinct clients, expected "
            f"{wanted}."
        )
    attested = all(statement.is_attestation for statement in statements)
    if roster.revealer is not None and not (attested or _is_revealers(roster, statements)):
        raise BadSignature(
            f"Round {round_id} is vouched for by members, but the key authority alone opens sums.",
            remedy=_REMEDY,
        )
    for statement in statements:
        signer = roster.holder(statement.client_id)
        found = (statement.federation, statement.run, statement.round, statement.epoch)
        if found != about:
            raise RefusedError(f"A statement is about {found}, expected {about}.")
        verify(signer.signing_key, statement.statement(), statement.signature)
        if statement.content() != statements[0].content():
            raise RefusedError(f"The statements about round {round_id} contradict each other.")
    if committee and not all(statement.share for statement in statements):
        raise RefusedError(f"A statement about round {round_id} is that of a snapshot.")
    if committee and not signers <= set(committee):
        raise RefusedError(
            f"Round {round_id} is vouched for by a client that is not in its committee.",
            remedy=_REMEDY,
        )
    return statements[0]


def _is_revealers(roster: Roster, statements: tuple[RevealStatement, ...]) -> bool:
    revealer = roster.revealer
    return (
        revealer is not None
        and bool(statements)
        and all(statement.client_id == revealer.client_id for statement in statements)
    )
