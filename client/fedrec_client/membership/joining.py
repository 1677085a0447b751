"""Backoff to become a member: the coordinator relays who asks, the key authority decides."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedrec.config.schema import Settings
from fedrec.errors import StorageError
from fedrec.identity.application import SignedApplication
from fedrec.identity.cells import guest_consent
from fedrec.identity.certificates import check_certificate
from fedrec.identity.identity import Identity
from fedrec.identity.key_files import destroy_secret, write_public
from fedrec.wire.link import Link
from fedrec_client.link.backoff import Backoff
from fedrec_client.link.connecting import certificate_path, invitation_of
from fedrec_client.state.round_journal import RoundJournal

__all__ = ["SHOWN_CHARS", "Applying", "sign_guest_consent", "waiting_detail"]

SHOWN_CHARS = 16
"""So much of a client id is enough for `fedrec keys roster admit`."""


def sign_guest_consent(identity: Identity, federation: str) -> bytes:
    """Return this client's signature that it may be missing from sums of a federation."""
    return identity.sign(guest_consent(federation, identity.client_id))


def waiting_detail(identity: Identity) -> str:
    """Return for whom this client waits, for people."""
    client_id = identity.client_id
    return (
        f"waiting for the data owners: client id {client_id}; where they compare it by telephone "
        f"they run `fedrec keys roster admit {client_id[:SHOWN_CHARS]}`"
    )


class Applying:
    """Applies with an invitation, waits to be admitted and keeps the certificate.

    Args:
        link: the coordinator, called with the invitation; patient.
        identity: whose public half is handed in.
        settings: name the invitation, and where the certificate belongs.
        journal: told that the client waits.
        backoff: how long to pause between questions; a request to stop ends it.

    Raises:
        KeysError: the invitation is of another authority.
    """

    def __init__(
        self,
        link: Link,
        identity: Identity,
        settings: Settings,
        journal: RoundJournal,
        backoff: Backoff,
    ) -> None:
        self._link = link
        self._identity = identity
        self._settings = settings
        self._invitation, self._issuer = invitation_of(settings)
        self._journal = journal
        self._backoff = backoff

    def join(self) -> None:
        """Return once this client's certificate is in its place; the invitation is gone then.

        Raises:
            InvitationUsed: somebody else applied with the invitation.
            KeysError: the coordinator sent a certificate that is not this client's.
            Stopped: somebody asked to stop.
        """
        certificate, key = self._wait(), self._identity.public.tls_key
        check_certificate(certificate, key, self._issuer, "what the coordinator sent")
        write_public(certificate_path(self._settings), certificate)
        # It is worth nothing any more, and a mistyped folder must not look like a first start.
        with suppress(StorageError):
            destroy_secret(Path(self._settings.client.invitation or ""))

    def _wait(self) -> bytes:
        consent = b""
        if self._settings.client.when_away == "go_on":
            consent = sign_guest_consent(self._identity, self._settings.federation.name)
        application = SignedApplication.make(
            self._identity.public, self._invitation, consent=consent
        ).to_json()
        asked = 0
        while True:
            found = self._link.apply(application)
            if found.listed:
                return found.certificate
            if not asked:
                self._journal.tell("waiting_to_join", detail=waiting_detail(self._identity))
            self._backoff.pause(asked)
            asked += 1
