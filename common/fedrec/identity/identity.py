"""A client's own keys, for signatures, for sealed messages and for TLS.

They are in the client's state folder. A mistyped path is reported and never filled: a client in the
wrong folder would make new keys, apply with them, and wait for people that do not know about it.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedrec.durable import require_writable
from fedrec.errors import KeysError, SettingsError
from fedrec.identity.certificates import Credentials, pem_of, private_key_of, spki_of
from fedrec.identity.document import (
    Document,
    encode_bytes,
    read_secret,
    write_document,
    write_secret,
)
from fedrec.identity.public import PublicIdentity
from fedrec.identity.secret import Secret
from fedrec.ids import ClientId

KIND = "fedrec identity"
KEY_FILE = "identity.key"
PUBLIC_FILE = "identity.pub.json"


class Identity(Secret):
    """An Ed25519 signing key, an X25519 exchange key and a P-256 key for TLS.

    Args:
        label: a display name.
        signing_key: the Ed25519 private key.
        exchange_key: the X25519 private key.
        tls_key: the P-256 private key.
    """

    __slots__ = ("_exchange_key", "_public", "_signing_key", "_tls_key")

    def __init__(
        self,
        *,
        label: str,
        signing_key: Ed25519PrivateKey,
        exchange_key: X25519PrivateKey,
        tls_key: EllipticCurvePrivateKey,
    ) -> None:
        self._signing_key = signing_key
        self._exchange_key = exchange_key
        self._tls_key = tls_key
        unproven = PublicIdentity(
            label=label,
            signing_key=signing_key.public_key().public_bytes_raw(),
            exchange_key=exchange_key.public_key().public_bytes_raw(),
            tls_key=spki_of(tls_key),
        )
        self._public = replace(unproven, proof=self.sign(unproven.statement()))

    def __repr__(self) -> str:
        return f"<Identity of {self.client_id[:16]}, keys hidden>"

    @classmethod
    def create(cls, label: str = "") -> Identity:
        """Generate three new keys."""
        return cls(
            label=label,
            signing_key=Ed25519PrivateKey.generate(),
            exchange_key=X25519PrivateKey.generate(),
            tls_key=generate_private_key(SECP256R1()),
        )

    @property
    def client_id(self) -> ClientId:
        """The hexadecimal SHA-256 of the Ed25519 public key."""
        return self._public.client_id

    @property
    def public(self) -> PublicIdentity:
        """The public half of these keys."""
        return self._public

    def sign(self, statement: bytes) -> bytes:
        """Return the Ed25519 signature over a statement, 64 bytes."""
        return self._signing_key.sign(statement)

    def credentials(self, certificate: bytes, issuer: bytes) -> Credentials:
        """Return the credentials for a TLS handshake. The certificate is not checked."""
        return Credentials(
            private_key=pem_of(self._tls_key), certificate=certificate, issuer=issuer
        )

    def agree(self, exchange_key: bytes) -> bytes:
        """Return the X25519 secret shared with the owner of a public exchange key.

        Use it as input for a key derivation, never as a key.

        Raises:
            KeysError: the other key is not a valid X25519 key.
        """
        try:
            return self._exchange_key.exchange(X25519PublicKey.from_public_bytes(exchange_key))
        except ValueError:
            raise KeysError(
                "The other party's exchange key is not a valid X25519 key.",
                remedy="Ask its owner for a new *.pub.json.",
            ) from None

    def save(self, folder: Path) -> None:
        """Write the keys, readable by the owner only, and the public half next to them.

        Raises:
            KeysError: the folder already holds an identity.
        """
        fields = {
            "label": self._public.label,
            "signing_key": encode_bytes(self._signing_key.private_bytes_raw()),
            "exchange_key": encode_bytes(self._exchange_key.private_bytes_raw()),
            "tls_key": encode_bytes(pem_of(self._tls_key)),
        }
        write_secret(folder / KEY_FILE, write_document(KIND, fields))
        self._public.save(folder / PUBLIC_FILE)

    @classmethod
    def load(cls, folder: Path) -> Identity:
        """Read the keys that `save` wrote.

        Raises:
            KeysError: the keys are missing, damaged or readable by other users.
        """
        path = folder / KEY_FILE
        remedy = "Check the path, or restore the folder from a backup."
        document = Document.parse(read_secret(path, remedy=remedy), KIND, str(path))
        found = cls(
            label=document.text("label"),
            signing_key=Ed25519PrivateKey.from_private_bytes(
                document.raw("signing_key", length=32)
            ),
            exchange_key=X25519PrivateKey.from_private_bytes(
                document.raw("exchange_key", length=32)
            ),
            tls_key=private_key_of(document.raw("tls_key"), str(path)),
        )
        document.finish()
        return found

    @classmethod
    def load_or_create(cls, folder: Path, label: str = "") -> Identity:
        """Read the keys in a folder, or generate them on the first start.

        An existing identity keeps its label.
        """
        if not (folder / KEY_FILE).exists():
            made = cls.create(label)
            # If another process made keys in the meantime, use those.
            with contextlib.suppress(KeysError):
                made.save(folder)
        found = cls.load(folder)
        if not (folder / PUBLIC_FILE).exists():
            found.public.save(folder / PUBLIC_FILE)
        return found


_HARMLESS = frozenset({"lock", "lost+found"})
"""The entries that a new folder may contain, after an interrupted start or on a fresh volume."""
REVEALER_SECRETS = "epoch-*.secret"
"""The marker of a revealer's folder, which is not a client's folder."""
_SHOWN = 4
_NEW = "`fedrec client identity SETTINGS` makes keys for a new client."


def known_identity(folder: Path, label: str = "") -> Identity:
    """Return the keys of an existing client, without making or changing anything else.

    Args:
        folder: the client's state folder.
        label: the label that the keys must have, or empty for any.

    Raises:
        SettingsError: the path is not a client's folder, or belongs to a different client.
        KeysError: its keys are damaged or readable by other users.
    """
    if not (folder / KEY_FILE).exists() or any(folder.glob(REVEALER_SECRETS)):
        raise SettingsError(
            f"client.state is {str(folder.absolute())!r}, {_found(folder)}. No client has its "
            "state there.",
            remedy=f"Check client.state and --state. {_NEW}",
        )
    found = Identity.load_or_create(folder)
    if label and found.public.label != label:
        raise SettingsError(
            f"client.state is {str(folder.absolute())!r}, which belongs to the client "
            f"{found.public.label!r}. client.label is {label!r}.",
            remedy="Check client.state and --state, or set client.label to the label of the keys.",
        )
    return found


def new_or_known_identity(folder: Path, label: str) -> Identity:
    """Return the keys in a client's folder, or make them if the folder is new or empty.

    Raises:
        SettingsError: the folder holds something else, or it is not writable.
        KeysError: its keys are damaged or readable by other users.
    """
    if not (folder / KEY_FILE).exists() and _content(folder):
        raise SettingsError(
            f"client.state is {str(folder.absolute())!r}, {_found(folder)}. That is not a "
            "client's state folder.",
            remedy="Set client.state or --state to an empty or new folder.",
        )
    require_writable(folder, "client.state")
    return Identity.load_or_create(folder, label)


def _content(folder: Path) -> list[str]:
    if folder.exists() and not folder.is_dir():
        return [folder.name]
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    # Names of unfinished files begin with a dot.
    return sorted(name for name in names - _HARMLESS if not name.startswith("."))


def _found(folder: Path) -> str:
    if not folder.exists():
        return "which does not exist"
    if not folder.is_dir():
        return "a file"
    names = _content(folder)
    if not names:
        return "an empty folder"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"a folder with {', '.join(names[:_SHOWN])}{more} in it"
