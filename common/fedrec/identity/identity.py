"""A client's own keys: to sign what it says, to open what is sealed to it, to be let in.

They lie in its state folder, which is looked at before anything is made in it: a mistyped path is
told, never filled. A client started in the wrong folder would otherwise have new keys, apply to a
federation with them, and wait for people who know nothing of it.
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


_HARMLESS = frozenset({"lock", "lost+found"})
"""What an empty folder may hold: a start that was interrupted, or a volume of its own."""
REVEALER_SECRETS = "epoch-*.secret"
"""Beside the keys of who opens sums, which are no client's."""
_SHOWN = 4
_NEW = "`fedrec client identity SETTINGS` makes a new client's keys."


def known_identity(folder: Path, label: str = "") -> Identity:
    """Return the keys of a client that was made before; makes and changes nothing else.

    Args:
        folder: the client's state.
        label: what its keys were made with; empty takes any.

    Raises:
        SettingsError: there is no client's folder at that path, or another client's.
        KeysError: its keys are damaged or readable by others.
    """
    if not (folder / KEY_FILE).exists() or any(folder.glob(REVEALER_SECRETS)):
        raise SettingsError(
            f"client.state is {str(folder.absolute())!r}, {_found(folder)}: no client was made "
            "there.",
            remedy=f"Check client.state and --state. {_NEW}",
        )
    found = Identity.load_or_create(folder)
    if label and found.public.label != label:
        raise SettingsError(
            f"client.state is {str(folder.absolute())!r}, a folder of the client "
            f"{found.public.label!r}; client.label is {label!r}.",
            remedy="Check client.state and --state, or set client.label to what the keys say.",
        )
    return found


def new_or_known_identity(folder: Path, label: str) -> Identity:
    """Return the keys in a client's folder, made where it is new or empty.

    Raises:
        SettingsError: it holds something else, or nothing may be written there.
        KeysError: its keys are damaged or readable by others.
    """
    if not (folder / KEY_FILE).exists() and _content(folder):
        raise SettingsError(
            f"The state folder is {str(folder.absolute())!r}, {_found(folder)}, which is no "
            "client's.",
            remedy="Name a folder that is empty or not there yet.",
        )
    require_writable(folder, "client.state")
    return Identity.load_or_create(folder, label)


def _content(folder: Path) -> list[str]:
    if folder.exists() and not folder.is_dir():
        return [folder.name]
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    # Names of files that are being written begin with a dot.
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
