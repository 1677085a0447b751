"""Public keys of clients with their fingerprints, and of the key authority."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedrec.errors import BadSignature, KeysError
from fedrec.identity.document import (
    MAX_TEXT_CHARS,
    Document,
    JsonValue,
    encode_bytes,
    read_public,
    write_document,
    write_public,
)
from fedrec.ids import ClientId, canonical

KIND = "fedrec public identity"
MAX_BYTES = 16 * 1024
TLS_KEY_BYTES = 91


def fingerprint(signing_key: bytes) -> ClientId:
    """Return the client id of an Ed25519 public key."""
    return ClientId(hashlib.sha256(signing_key).hexdigest())


def verify(signing_key: bytes, statement: bytes, signature: bytes) -> None:
    """Check an Ed25519 signature.

    Raises:
        BadSignature: the owner of `signing_key` did not sign `statement`.
    """
    try:
        Ed25519PublicKey.from_public_bytes(signing_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        raise BadSignature(
            "A signature does not verify under its supposed author's key.",
            remedy="Fetch the message again. If the error persists, the message was changed in "
            "transit.",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicIdentity:
    """A client's public keys, which its owner gives to the key authority.

    Attributes:
        label: the name that its owner gave it, for display only.
        signing_key: Ed25519 public key, 32 bytes.
        exchange_key: X25519 public key, 32 bytes.
        tls_key: P-256 public key of its connections, as SubjectPublicKeyInfo, 91 bytes.
        proof: the client's own signature over the other fields. People compare the signing key's
            fingerprint, and the proof keeps a relay from swapping the other keys.
    """

    label: str
    signing_key: bytes
    exchange_key: bytes
    tls_key: bytes
    proof: bytes = b""

    def __post_init__(self) -> None:
        if len(self.label) > MAX_TEXT_CHARS or not self.label.isprintable():
            raise KeysError(
                f"The label {self.label[:80]!r} is longer than {MAX_TEXT_CHARS} characters or has "
                "unprintable ones.",
                remedy="Set client.label to a shorter, printable name.",
            )
        lengths = (len(self.signing_key), len(self.exchange_key), len(self.tls_key))
        if lengths != (32, 32, TLS_KEY_BYTES) or len(self.proof) not in (0, 64):
            raise KeysError(
                f"The signing, exchange and TLS keys of {self.label!r} have {lengths} bytes and "
                f"the proof {len(self.proof)}. Expected (32, 32, {TLS_KEY_BYTES}) and 64.",
                remedy="Ask the client's owner for its *.pub.json again.",
            )

    @property
    def client_id(self) -> ClientId:
        """The fingerprint of the signing key."""
        return fingerprint(self.signing_key)

    def statement(self) -> bytes:
        """Return the bytes that `proof` covers."""
        return canonical(
            "fedrec public identity v2",
            self.label,
            self.signing_key,
            self.exchange_key,
            self.tls_key,
        )

    def check_proof(self) -> None:
        """Check that the signing key's owner vouches for the other keys.

        Raises:
            BadSignature: the proof is not a signature over these keys.
        """
        verify(self.signing_key, self.statement(), self.proof)

    def fields(self) -> dict[str, JsonValue]:
        """Return the identity as a JSON object."""
        return {
            "label": self.label,
            "signing_key": encode_bytes(self.signing_key),
            "exchange_key": encode_bytes(self.exchange_key),
            "tls_key": encode_bytes(self.tls_key),
            "proof": encode_bytes(self.proof),
        }

    @classmethod
    def from_fields(cls, document: Document) -> PublicIdentity:
        """Read the object that `fields` returned, without checking the proof."""
        found = cls(
            label=document.text("label"),
            signing_key=document.raw("signing_key", length=32),
            exchange_key=document.raw("exchange_key", length=32),
            tls_key=document.raw("tls_key", length=TLS_KEY_BYTES),
            proof=document.raw("proof"),
        )
        document.finish()
        return found

    def to_json(self) -> bytes:
        """Return the canonical JSON."""
        return write_document(KIND, self.fields())

    @classmethod
    def from_json(cls, raw: bytes) -> PublicIdentity:
        """Parse the output of `to_json` and check its proof.

        Raises:
            KeysError: the document is damaged.
            BadSignature: a key was replaced.
        """
        found = cls.from_fields(Document.parse(raw, KIND, "The public identity"))
        found.check_proof()
        return found

    def save(self, path: Path) -> None:
        """Write the JSON to a file, by convention `*.pub.json`."""
        write_public(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> PublicIdentity:
        """Read a file that `save` wrote and check its proof."""
        return cls.from_json(
            read_public(path, max_bytes=MAX_BYTES, remedy="Ask the client's owner for the file.")
        )


_KIND = "fedrec authority key"
_MAX_BYTES = 16 * 1024


def read_authority_key(path: Path) -> bytes:
    """Return the authority's Ed25519 public key, 32 bytes.

    Raises:
        KeysError: the file is missing or is not an authority's public key.
    """
    return _read(path)[0]


def read_issuer(path: Path) -> bytes:
    """Return the certificate (PEM) that issued all others of the federation.

    Raises:
        KeysError: the file is missing or is not an authority's public key.
    """
    return _read(path)[1]


def write_authority_key(path: Path, public_key: bytes, issuer: bytes) -> None:
    """Write the file that `read_authority_key` and `read_issuer` read."""
    fields = {"public_key": encode_bytes(public_key), "issuer": encode_bytes(issuer)}
    write_public(path, write_document(_KIND, fields))


def _read(path: Path) -> tuple[bytes, bytes]:
    raw = read_public(
        path,
        max_bytes=_MAX_BYTES,
        remedy="Ask the data owners, not the coordinator, for the authority's public key.",
    )
    document = Document.parse(raw, _KIND, str(path))
    key, issuer = document.raw("public_key", length=32), document.raw("issuer")
    document.finish()
    return key, issuer
