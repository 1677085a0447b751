"""Applying to become a member: the coordinator relays who asks, the key authority decides."""

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

__all__ = ["SHOWN_CHARS", "join", "sign_guest_consent", "waiting_detail"]

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


def join(
    link: Link, identity: Identity, settings: Settings, journal: RoundJournal, backoff: Backoff
) -> None:
    """Apply with the invitation, wait to be admitted, and keep the certificate.

    Returns once this client's certificate is in its place; the invitation is gone then.

    Args:
        link: the coordinator, called with the invitation; patient.
        identity: whose public half is handed in.
        settings: name the invitation, and where the certificate belongs.
        journal: told that the client waits.
        backoff: how long to pause between questions; a request to stop ends it.

    Raises:
        InvitationUsed: somebody else applied with the invitation.
        KeysError: the invitation is of another authority, or the coordinator sent a certificate
            that is not this client's.
        Stopped: somebody asked to stop.
    """
    invitation, issuer = invitation_of(settings)
    goes_on = settings.client.when_away == "go_on"
    consent = sign_guest_consent(identity, settings.federation.name) if goes_on else b""
    application = SignedApplication.make(identity.public, invitation, consent=consent).to_json()
    asked = 0
    while not (found := link.apply(application)).listed:
        if not asked:
            journal.tell("waiting_to_join", detail=waiting_detail(identity))
        backoff.pause(asked)
        asked += 1
    check_certificate(
        found.certificate, identity.public.tls_key, issuer, "what the coordinator sent"
    )
    write_public(certificate_path(settings), found.certificate)
    # It is worth nothing any more, and a mistyped folder must not look like a first start.
    with suppress(StorageError):
        destroy_secret(Path(settings.client.invitation or ""))
