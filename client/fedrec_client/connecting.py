"""Connect to the coordinator, and send it a goodbye."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedrec.errors import FedrecError, KeysError
from fedrec.follower.patient_link import Stopped
from fedrec.identity.certificates import (
    CERTIFICATE_FILE,
    Credentials,
    certificate_sha256,
    is_invitation,
)
from fedrec.identity.document import read_public
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_issuer
from fedrec.ids import ClientId
from fedrec.settings.schema import Settings
from fedrec.wire.link import Link

MAX_CERTIFICATE_BYTES = 16 << 10


def certificate_path(settings: Settings) -> Path:
    """Return the path of this client's certificate, which exists once the client was admitted."""
    client = settings.client
    if client.certificate is not None:
        return Path(client.certificate)
    return Path(client.state) / CERTIFICATE_FILE


def open_link(settings: Settings) -> Link:
    """Return the gRPC link that the settings describe, without sending anything yet.

    Raises:
        KeysError: this client's certificate is missing, or is for a different key or federation.
        CertificateExpired: this machine's clock is outside the certificate's dates.
    """
    return _link(settings, own_credentials(settings))


def own_credentials(settings: Settings) -> Credentials:
    """Return this client's key and certificate.

    Raises:
        KeysError: the certificate is missing, or is for a different key or federation.
        CertificateExpired: this machine's clock is outside the certificate's dates.
    """
    path = certificate_path(settings)
    certificate = read_public(
        path,
        max_bytes=MAX_CERTIFICATE_BYTES,
        remedy="It is client.certificate. The key authority makes it from identity.pub.json "
        "(`fedrec keys roster admit`). If you were invited, set client.invitation.",
    )
    issuer = read_issuer(Path(settings.client.authority_key))
    own = Identity.load(Path(settings.client.state)).credentials(certificate, issuer)
    own.check(f"client.certificate: {path}")
    return own


def invitation_of(settings: Settings) -> tuple[Credentials, bytes]:
    """Return the invitation, and its issuer's certificate (PEM).

    Raises:
        KeysError: the invitation cannot be used, or a different authority issued it.
        CertificateExpired: the invitation expired, or this machine's clock is wrong.
    """
    client = settings.client
    found = Credentials.load(Path(client.invitation or ""), "client.invitation")
    if not is_invitation(found.certificate):
        raise KeysError(
            f"client.invitation: {client.invitation} is not an invitation, but a party's own "
            "credentials.",
            remedy="Name the file invitation.pem of this client's kit.",
        )
    issuer = read_issuer(Path(client.authority_key))
    if certificate_sha256(found.issuer) != certificate_sha256(issuer):
        raise KeysError(
            f"client.invitation: {client.invitation} was issued by a different key authority "
            f"than client.authority_key, {client.authority_key}.",
            remedy="Take both from the authority that invited this client.",
        )
    return found, issuer


def invited_link(settings: Settings) -> Link:
    """Return a link that is valid for an application only, without sending anything yet."""
    return _link(settings, invitation_of(settings)[0])


def _link(settings: Settings, own: Credentials) -> Link:
    from fedrec.wire.grpc_link import GrpcLink

    return GrpcLink(settings.client.coordinator, own)


PATIENCE_SECONDS = 10.0


@contextmanager
def saying_goodbye(reach: Callable[[], Link], client_id: ClientId) -> Iterator[None]:
    """Tell the coordinator how the client's work in this block ended.

    It sends nothing if the process must end now, as at a second Ctrl-C.

    Args:
        reach: returns the link to the coordinator, which may be opened only at the end.
    """
    try:
        yield
    except Stopped:
        _say(reach, client_id, "")
        raise
    except FedrecError as error:
        _say(reach, client_id, error.code)
        raise
    else:
        _say(reach, client_id, "")


def _say(reach: Callable[[], Link], client_id: ClientId, code: str) -> None:
    """Send it in a thread of its own, so signals only interrupt the wait."""

    def call() -> None:
        with suppress(FedrecError):
            reach().goodbye(client_id, code)

    thread = threading.Thread(target=call, name="goodbye", daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
