"""Waiting to become a member: the coordinator relays who asks, the data owners decide."""

from __future__ import annotations

from fedrec.errors import TooLarge
from fedrec.identity.identity import Identity
from fedrec.wire.link import Link
from fedrec_client.round_journal import RoundJournal
from fedrec_client.waiting import Waiting

__all__ = ["SHOWN_CHARS", "Applying"]

SHOWN_CHARS = 16
"""So much of a client id is enough for `fedrec keys roster add`."""


class Applying:
    """Asks to be listed and waits until the present roster lists this client.

    Args:
        link: the coordinator; patient.
        identity: whose public half is handed in.
        journal: told that the client waits.
        waiting: how long to pause between questions; a request to stop ends it.
    """

    def __init__(
        self, link: Link, identity: Identity, journal: RoundJournal, waiting: Waiting
    ) -> None:
        self._link = link
        self._identity = identity
        self._journal = journal
        self._waiting = waiting
        self._asked = 0

    def wait(self) -> None:
        """Return when the coordinator says that this client can enrol.

        Its word is only a hint: enrolling finds out. Being told so in vain costs a pause.

        Raises:
            Stopped: somebody asked to stop.
        """
        public = self._identity.public.to_json()
        while True:
            if self._asked:
                self._waiting.pause(self._asked)
            self._asked += 1
            try:
                if self._link.apply(public).listed:
                    return
            except TooLarge as error:
                self._tell(error.message)
                continue
            if self._asked == 1:
                self._tell("waiting for the data owners")

    def _tell(self, why: str) -> None:
        client_id = self._identity.client_id
        self._journal.tell(
            "waiting_to_join",
            detail=f"{why}: client id {client_id}; they compare it by telephone and run "
            f"`fedrec keys roster add {client_id[:SHOWN_CHARS]}`",
        )
