"""Seal bytes under the group key or for one recipient, and compute keyed tags.

Sealing is HKDF-SHA256 (RFC 5869) and AES-256-GCM (NIST SP 800-38D). Every message has its own key
and nonce, derived from a fresh salt or an ephemeral key, so no counter has to survive a restart.
The purpose and context of a message enter the derivation, so that bytes sealed for one round or
recipient do not open as another's.

It does not give secrecy towards other holders of the group key, or forward secrecy for a recipient
whose exchange key is stolen later. A group-key seal does not show *which* holder wrote it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedrec.errors import BadSignature, KeysError, MalformedUpdate
from fedrec.identity.identity import Identity
from fedrec.ids import canonical

KEY_BYTES = 32
SALT_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
SEAL_OVERHEAD_BYTES = 1 + SALT_BYTES + TAG_BYTES
"""Bytes that `seal` and `wrap` add to a plaintext."""
VERSION = b"\x01"


def seal(group_key: bytes, purpose: str, context: bytes, plaintext: bytes) -> bytes:
    """Seal bytes for the holders of the group key.

    Args:
        group_key: the epoch's key, 32 bytes.
        purpose: the kind of message.
        context: identifies the message. The same bytes are needed to open it.
        plaintext: the bytes to hide.

    Returns:
        version byte || 32-byte salt || AES-256-GCM ciphertext with its tag.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    return VERSION + salt + _encrypt(_group_keys(group_key, salt, purpose, context), plaintext)


def seal_same(group_key: bytes, purpose: str, context: bytes, plaintext: bytes) -> bytes:
    """Seal bytes deterministically: every holder of the group key gets the same result.

    The salt is a keyed digest of purpose, context and plaintext, so that key and nonce are never
    used for a second plaintext. Equal plaintexts in one context are visibly equal. This is
    intended.
    """
    salt = keyed_tag(group_key, "salt", canonical("fedrec same v1", purpose, context, plaintext))
    return VERSION + salt + _encrypt(_group_keys(group_key, salt, purpose, context), plaintext)


def unseal(group_key: bytes, purpose: str, context: bytes, sealed: bytes) -> bytes:
    """Open the output of `seal`.

    Raises:
        MalformedUpdate: the output is too short or of a different version.
        BadSignature: the key, purpose or context differs, or a bit was changed.
    """
    salt, ciphertext = _split(sealed)
    return _decrypt(_group_keys(group_key, salt, purpose, context), ciphertext)


def wrap(recipient_exchange_key: bytes, context: bytes, plaintext: bytes) -> bytes:
    """Seal bytes for the owner of an X25519 key.

    Any party can do so, so it does not prove the sender.

    Returns:
        version byte || ephemeral public key, 32 bytes || AES-256-GCM ciphertext with its tag.

    Raises:
        KeysError: the recipient's key is not a valid X25519 key.
    """
    ephemeral = X25519PrivateKey.generate()
    ephemeral_key = ephemeral.public_key().public_bytes_raw()
    try:
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient_exchange_key))
    except ValueError:
        raise KeysError(
            "The recipient's exchange key is not a valid X25519 key.",
            remedy="Ask its owner for a new *.pub.json.",
        ) from None
    keys = _wrapping_keys(shared, ephemeral_key, recipient_exchange_key, context)
    return VERSION + ephemeral_key + _encrypt(keys, plaintext)


def unwrap(identity: Identity, context: bytes, sealed: bytes) -> bytes:
    """Open bytes that `wrap` sealed for this identity.

    Raises:
        MalformedUpdate: the bytes are too short or of a different version.
        BadSignature: the bytes were sealed for a different recipient or context, or changed.
    """
    ephemeral_key, ciphertext = _split(sealed)
    try:
        shared = identity.agree(ephemeral_key)
    except KeysError:
        raise _does_not_open() from None
    keys = _wrapping_keys(shared, ephemeral_key, identity.public.exchange_key, context)
    return _decrypt(keys, ciphertext)


def keyed_tag(group_key: bytes, purpose: str, data: bytes) -> bytes:
    """Return an HMAC-SHA256 of data that only holders of the group key can compute or verify."""
    key = derive(_checked(group_key), salt=b"", info=canonical("fedrec tag v1", purpose), length=32)
    return hmac.new(key, data, hashlib.sha256).digest()


def derive(key: bytes, *, salt: bytes, info: bytes, length: int) -> bytes:
    """Return `length` bytes of HKDF-SHA256 (RFC 5869)."""
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(key)


def _group_keys(group_key: bytes, salt: bytes, purpose: str, context: bytes) -> bytes:
    info = canonical("fedrec seal v1", purpose, context)
    return derive(_checked(group_key), salt=salt, info=info, length=KEY_BYTES + NONCE_BYTES)


def _wrapping_keys(shared: bytes, ephemeral: bytes, recipient: bytes, context: bytes) -> bytes:
    info = canonical("fedrec wrap v1", ephemeral, recipient, context)
    return derive(shared, salt=b"", info=info, length=KEY_BYTES + NONCE_BYTES)


def _encrypt(keys: bytes, plaintext: bytes) -> bytes:
    return AESGCM(keys[:KEY_BYTES]).encrypt(keys[KEY_BYTES:], plaintext, VERSION)


def _decrypt(keys: bytes, ciphertext: bytes) -> bytes:
    try:
        return AESGCM(keys[:KEY_BYTES]).decrypt(keys[KEY_BYTES:], ciphertext, VERSION)
    except InvalidTag:
        raise _does_not_open() from None


def _split(sealed: bytes) -> tuple[bytes, bytes]:
    if len(sealed) < SEAL_OVERHEAD_BYTES:
        raise MalformedUpdate(
            f"A sealed message has {len(sealed)} bytes, expected at least {SEAL_OVERHEAD_BYTES}.",
            remedy="Fetch it again.",
        )
    if sealed[:1] != VERSION:
        raise MalformedUpdate(
            f"A sealed message has version {sealed[0]}, expected {VERSION[0]}.",
            remedy="Install the same fedrec version on every client.",
        )
    return sealed[1 : 1 + SALT_BYTES], sealed[1 + SALT_BYTES :]


def _checked(group_key: bytes) -> bytes:
    if len(group_key) != KEY_BYTES:
        raise KeysError(
            f"A group key has {len(group_key)} bytes, expected {KEY_BYTES}.",
            remedy="Use the epoch's key exactly as the key authority made it.",
        )
    return group_key


def _does_not_open() -> BadSignature:
    return BadSignature(
        "A sealed message does not open: it was changed, or sealed for another recipient or "
        "purpose.",
        remedy="Fetch it again. If the error persists, check that both parties use the same key "
        "epoch.",
    )
