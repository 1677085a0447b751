"""The public metrics of a round, locked until two key holders said the same about it.

A key holder can be handed any list of contributions once. If it answered with readable metrics,
a coordinator that hands two lists to two holders would see the difference of their metric sums,
which is one client's. So every statement carries the metrics encrypted under a key that follows
from all that was revealed, and one share of that key: two statements about the same content open
it, two statements about different contents open nothing.

The key is used for one plaintext only, since the metrics are part of the content that it is
derived from. Therefore the nonce may be constant, and all key holders make the same box.
"""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedrec.errors import BadSignature, KeysError
from fedrec.identity.sealing import derive
from fedrec.identity.shamir import PRIME, combine, share_at
from fedrec.ids import canonical

__all__ = ["BOX_OVERHEAD_BYTES", "box_of", "share_of", "unlock"]

KEY_BYTES = 32
SLOPE_BYTES = 48
"""More than the prime has, so that reducing it leaves no bias worth speaking of."""
NONCE = bytes(12)
BOX_OVERHEAD_BYTES = 16


def box_of(group_key: bytes, content: bytes, metrics: bytes) -> bytes:
    """Return the metrics encrypted for whoever has two shares.

    Args:
        group_key: the epoch's key, 32 bytes.
        content: names the round and everything that was revealed in it, metrics included.
        metrics: what two statements give away together.
    """
    key, _ = _key_and_slope(group_key, content)
    return AESGCM(key).encrypt(NONCE, metrics, None)


def share_of(group_key: bytes, content: bytes, place: int, *, alone: bool = False) -> bytes:
    """Return the share of the key holder at a place of the committee, from 1.

    Args:
        alone: whether this share is enough by itself, because nobody else opens sums.
    """
    key, slope = _key_and_slope(group_key, content)
    secret = int.from_bytes(key, "big")
    return share_at((secret,) if alone else (secret, slope), place)


def unlock(box: bytes, shares: Mapping[int, bytes]) -> bytes:
    """Return the metrics.

    Args:
        shares: of two key holders, by their places; or the one of a revealer.

    Raises:
        BadSignature: when the shares are not of this box.
    """
    try:
        return AESGCM(combine(shares)).decrypt(NONCE, box, None)
    except (InvalidTag, KeysError, ValueError):
        raise BadSignature("The key holders' shares do not open the round's metrics.") from None


def _key_and_slope(group_key: bytes, content: bytes) -> tuple[bytes, int]:
    info = canonical("fedrec metrics lock v1", content)
    made = derive(group_key, salt=b"", info=info, length=KEY_BYTES + SLOPE_BYTES)
    return made[:KEY_BYTES], int.from_bytes(made[KEY_BYTES:], "big") % PRIME
