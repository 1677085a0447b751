"""A client's own keys: to sign what it says, to open what is sealed to it, to be let in."""

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

from fedrec.errors import KeysError
from fedrec.identity.certificates import Credentials, pem_of, private_key_of, spki_of
from fedrec.identity.document import Document, encode_bytes, write_document
from fedrec.identity.key_files import read_secret, write_secret
from fedrec.identity.public import PublicIdentity
from fedrec.identity.secret import Secret
from fedrec.ids import ClientId

KIND = "fedrec identity"
KEY_FILE = "identity.key"
PUBLIC_FILE = "identity.pub.json"


class Identity(Secret):
    """An Ed25519 signing key, an X25519 exchange key and a P-256 key for TLS.

    Args:
        label: a name for people.
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
        """Make new keys."""
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
        """What everybody may know."""
        return self._public

    def sign(self, statement: bytes) -> bytes:
        """Return the Ed25519 signature over a statement, 64 bytes."""
        return self._signing_key.sign(statement)

    def credentials(self, certificate: bytes, issuer: bytes) -> Credentials:
        """Return what this client shows in a handshake; the certificate is not checked."""
        return Credentials(
            private_key=pem_of(self._tls_key), certificate=certificate, issuer=issuer
        )

    def agree(self, exchange_key: bytes) -> bytes:
        """Return the X25519 secret shared with the owner of a public exchange key.

        It is input for a key derivation, never a key itself.

        Raises:
            KeysError: when the other key is none.
        """
        try:
            return self._exchange_key.exchange(X25519PublicKey.from_public_bytes(exchange_key))
        except ValueError:
            raise KeysError(
                "The other side's exchange key is no usable X25519 key.",
                remedy="Ask its owner for a new *.pub.json.",
            ) from None

    def save(self, folder: Path) -> None:
        """Write the keys, readable by the owner only, and beside them the public half.

        Raises:
            KeysError: when the folder holds an identity already.
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
            KeysError: when they are missing, damaged or readable by others.
        """
        path = folder / KEY_FILE
        remedy = "Check the path, or restore the folder from a copy."
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
        """Read the keys in a folder, or make them on the first start.

        An existing identity keeps the label that it was made with.
        """
        if not (folder / KEY_FILE).exists():
            made = cls.create(label)
            # Where another process was faster, its keys count.
            with contextlib.suppress(KeysError):
                made.save(folder)
        found = cls.load(folder)
        if not (folder / PUBLIC_FILE).exists():
            found.public.save(folder / PUBLIC_FILE)
        return found
