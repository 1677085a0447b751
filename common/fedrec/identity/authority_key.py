"""The key authority's public halves, which a client gets from the data owners and pins."""

from __future__ import annotations

from pathlib import Path

from fedrec.identity.document import Document, encode_bytes, write_document
from fedrec.identity.key_files import read_public, write_public

__all__ = ["read_authority_key", "read_issuer", "write_authority_key"]

_KIND = "fedrec authority key"
_MAX_BYTES = 16 * 1024


def read_authority_key(path: Path) -> bytes:
    """Return the authority's Ed25519 public key, 32 bytes.

    Raises:
        KeysError: the file is missing or is no authority's public key.
    """
    return _read(path)[0]


def read_issuer(path: Path) -> bytes:
    """Return the certificate (PEM) from which all others of the federation come.

    Raises:
        KeysError: the file is missing or is no authority's public key.
    """
    return _read(path)[1]


def write_authority_key(path: Path, public_key: bytes, issuer: bytes) -> None:
    """Write what `read_authority_key` and `read_issuer` read."""
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
