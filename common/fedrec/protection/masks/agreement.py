"""What two participants share: the key of their common mask, and a box for shares.

Keys come from X25519 and HKDF-SHA256. Everything that names the round, the whole list of keys,
both participants and the direction enters the derivation, so that nothing made for one round or
pair is of use in another. Every key is used once, which is why nonces may be fixed.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedrec.errors import BadSignature
from fedrec.identity.sealing import derive
from fedrec.ids import canonical, digest
from fedrec.protection.masks.keys import exchange
from fedrec.protection.masks.shamir import SHARE_BYTES

__all__ = [
    "SEALED_BYTES",
    "open_shares",
    "pair_mask_key",
    "seal_shares",
    "self_commitment",
    "self_mask_key",
]

NONCE = bytes(12)
TAG_BYTES = 16
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""Bytes of one holder's encrypted shares of the two secrets."""


def pair_mask_key(
    round_digest: bytes, private: X25519PrivateKey, public: bytes, *, own: int, other: int
) -> bytes:
    """Return the 32-byte key of the mask that two participants have in common.

    Args:
        round_digest: `KeyList.digest`.
        private: the mask key of the participant at position ``own``.
        public: that of the one at position ``other``.
    """
    low, high = min(own, other), max(own, other)
    info = canonical("fedrec pair mask v1", round_digest, low, high, "low adds, high subtracts")
    return derive(exchange(private, public), salt=b"", info=info, length=32)


def self_mask_key(round_digest: bytes, seed: bytes, *, own: int) -> bytes:
    """Return the 32-byte key of a participant's own mask."""
    return derive(
        seed, salt=b"", info=canonical("fedrec self mask v1", round_digest, own), length=32
    )


def self_commitment(round_digest: bytes, seed: bytes, *, own: int) -> bytes:
    """Return 32 bytes by which a seed that was put together is recognised; they hide it."""
    return digest("fedrec self mask commitment v1", round_digest, own, seed)


def seal_shares(
    round_digest: bytes,
    private: X25519PrivateKey,
    public: bytes,
    *,
    owner: int,
    holder: int,
    self_share: bytes,
    key_share: bytes,
) -> bytes:
    """Return a holder's shares of the owner's two secrets, encrypted to it by the owner."""
    key = _box_key(round_digest, private, public, owner, holder)
    return AESGCM(key).encrypt(NONCE, self_share + key_share, None)


def open_shares(
    round_digest: bytes,
    private: X25519PrivateKey,
    public: bytes,
    *,
    owner: int,
    holder: int,
    sealed: bytes,
) -> tuple[bytes, bytes]:
    """Return the share of the owner's mask seed and that of its mask key.

    Raises:
        BadSignature: when they were encrypted for another pair or round, or changed.
    """
    key = _box_key(round_digest, private, public, owner, holder)
    try:
        plain = AESGCM(key).decrypt(NONCE, sealed, None)
    except InvalidTag:
        plain = b""
    if len(plain) != 2 * SHARE_BYTES:
        raise BadSignature(
            "Encrypted shares do not open: they were changed, or made for another pair or round."
        )
    return plain[:SHARE_BYTES], plain[SHARE_BYTES:]


def _box_key(
    round_digest: bytes, private: X25519PrivateKey, public: bytes, owner: int, holder: int
) -> bytes:
    info = canonical("fedrec mask share v1", round_digest, owner, holder, "owner to holder")
    return derive(exchange(private, public), salt=b"", info=info, length=32)
