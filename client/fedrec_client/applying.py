"""Waiting to become a member: the coordinator relays who asks, the key authority decides."""

from __future__ import annotations

from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import Credentials
from fedrec.identity.identity import Identity
from fedrec.wire.link import Link
from fedrec_client.round_journal import RoundJournal
from fedrec_client.waiting import Waiting

__all__ = ["SHOWN_CHARS", "Applying", "waiting_words"]

SHOWN_CHARS = 16
"""So much of a client id is enough for `fedrec keys roster add`."""


def waiting_words(identity: Identity) -> str:
    """Return for whom this client waits, for people."""
    client_id = identity.client_id
    return (
        f"waiting for the data owners: client id {client_id}; where they compare it by telephone "
        f"they run `fedrec keys roster add {client_id[:SHOWN_CHARS]}`"
    )


class Applying:
    """Applies with an invitation and waits for the certificate.

    Args:
        link: the coordinator, called with the invitation; patient.
        identity: whose public half is handed in.
        invitation: signs the application.
        journal: told that the client waits.
        waiting: how long to pause between questions; a request to stop ends it.
    """

    def __init__(
        self,
        link: Link,
        identity: Identity,
        invitation: Credentials,
        journal: RoundJournal,
        waiting: Waiting,
    ) -> None:
        self._link = link
        self._identity = identity
        self._invitation = invitation
        self._journal = journal
        self._waiting = waiting

    def wait(self) -> bytes:
        """Return this client's certificate (PEM) once the roster lists it; it is not checked.

        Raises:
            InvitationUsed: somebody else applied with the invitation.
            Stopped: somebody asked to stop.
        """
        application = SignedApplication.make(self._identity.public, self._invitation).to_json()
        asked = 0
        while True:
            found = self._link.apply(application)
            if found.listed:
                return found.certificate
            if not asked:
                self._journal.tell("waiting_to_join", detail=waiting_words(self._identity))
            self._waiting.pause(asked)
            asked += 1
