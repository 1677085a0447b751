"""A round's fresh keys, and the masks and encrypted shares that participants derive from them."""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from fedrec.errors import BadSignature, KeysError, MalformedUpdate
from fedrec.identity.identity import Identity
from fedrec.identity.public import verify
from fedrec.identity.roster import Roster
from fedrec.identity.sealing import derive
from fedrec.identity.secret import Secret
from fedrec.ids import ClientId, canonical, digest
from fedrec.protection.masks.shamir import SHARE_BYTES
from fedrec.protection.masks.terms import MAX_CLIENTS, MaskTerms
from fedrec.wire.fields import Client, Digest, WholeSignature, check_count

KEY_BYTES = 32


def private_key(raw: bytes) -> X25519PrivateKey:
    """Return the X25519 key of 32 private bytes."""
    return X25519PrivateKey.from_private_bytes(raw)


def public_key(raw: bytes) -> bytes:
    """Return the X25519 public key of 32 private bytes."""
    return private_key(raw).public_key().public_bytes_raw()


def exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    """Return the X25519 secret of two keys, as input for a key derivation.

    Raises:
        KeysError: the public key isn't valid.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise KeysError("A participant's X25519 key can't be used.") from None


_TRIAL = X25519PrivateKey.from_private_bytes(bytes(range(32)))
"""A throwaway private key. Whether a public key is of low order doesn't depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAdvertisement:
    """One client's public keys for one round.

    Attributes:
        mask_key: the X25519 key for agreeing on masks, 32 bytes.
        share_key: the X25519 key that shares are encrypted to, 32 bytes.
        signature: the client's Ed25519 signature over `statement`, 64 bytes.
    """

    client_id: Client
    mask_key: Digest
    share_key: Digest
    signature: WholeSignature = b""

    def __post_init__(self) -> None:
        lengths = (len(self.mask_key), len(self.share_key), len(self.signature))
        if lengths not in ((32, 32, 64), (32, 32, 0)):
            raise MalformedUpdate(
                f"Mask key, share key and signature have {lengths} bytes, not (32, 32, 64)."
            )

    def statement(self, terms: MaskTerms) -> bytes:
        """Return the bytes that the signature covers."""
        return canonical(
            "fedrec mask keys v1", *terms.parts(), self.client_id, self.mask_key, self.share_key
        )

    def verify(self, terms: MaskTerms, roster: Roster) -> None:
        """Check that a member of the roster made these keys for this round.

        Raises:
            NotInRoster: the client isn't a member.
            BadSignature: a key was replaced, or belongs to a different round.
        """
        verify(roster.member(self.client_id).signing_key, self.statement(terms), self.signature)

    def check_usable(self) -> None:
        """Check that other clients can agree on secrets with these keys.

        Raises:
            MalformedUpdate: both keys are the same, or one gives every client the same secret (a
                point of low order, RFC 7748, section 6.1).
        """
        if self.mask_key == self.share_key:
            raise MalformedUpdate("The mask key and the share key are the same.")
        try:
            for key in (self.mask_key, self.share_key):
                exchange(_TRIAL, key)
        except KeysError as error:
            raise MalformedUpdate(error.message) from None


class RoundKeys(Secret):
    """One client's private keys for one round.

    Args:
        mask: the private X25519 key for masks, 32 bytes.
        share: the private X25519 key for shares, 32 bytes.
    """

    __slots__ = ("mask", "share")

    def __init__(self, *, mask: bytes, share: bytes) -> None:
        self.mask = mask
        self.share = share

    @classmethod
    def create(cls) -> RoundKeys:
        """Make new random keys."""
        return cls(mask=secrets.token_bytes(KEY_BYTES), share=secrets.token_bytes(KEY_BYTES))

    def public_halves(self) -> tuple[bytes, bytes]:
        """Return the public mask key and the public share key."""
        return public_key(self.mask), public_key(self.share)

    def advertise(self, terms: MaskTerms, identity: Identity) -> KeyAdvertisement:
        """Return the public keys, signed."""
        mask_key, share_key = self.public_halves()
        unsigned = KeyAdvertisement(
            client_id=identity.client_id, mask_key=mask_key, share_key=share_key
        )
        return replace(unsigned, signature=identity.sign(unsigned.statement(terms)))


def _few_enough(keys: Sequence[Any], field: str) -> Sequence[Any]:
    check_count(len(keys), field, maximum=MAX_CLIENTS)
    return keys


@dataclass(frozen=True, slots=True)
class KeyList:
    """All participants of a round, in the order of their client ids.

    A participant's position here identifies it in all later messages. Its shares have the place
    position + 1.
    """

    keys: Annotated[tuple[KeyAdvertisement, ...], _few_enough]
    _digests: dict[MaskTerms, bytes] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, keys: Iterable[KeyAdvertisement]) -> KeyList:
        """Sort advertisements by client.

        Raises:
            KeysError: a client or a key appears twice.
        """
        ordered = tuple(sorted(keys, key=_client))
        found = cls(ordered)
        every = [key for one in ordered for key in (one.mask_key, one.share_key)]
        if len(set(found.participants)) < len(ordered) or len(set(every)) < len(every):
            raise KeysError("A client or a key appears twice in the list of keys.")
        return found

    @property
    def participants(self) -> tuple[ClientId, ...]:
        """The client ids, sorted."""
        return tuple(one.client_id for one in self.keys)

    def position(self, client_id: ClientId) -> int:
        """Return a participant's position.

        Raises:
            KeysError: the client isn't a participant.
        """
        position = bisect_left(self.keys, client_id, key=_client)
        if position == len(self.keys) or self.keys[position].client_id != client_id:
            raise KeysError(f"The client {client_id[:16]}... isn't in the round's list of keys.")
        return position

    def digest(self, terms: MaskTerms) -> bytes:
        """Return the digest of the round, its participants and all their keys.

        It is computed once, because every step needs it and a list may have thousands of keys.
        """
        known = self._digests.get(terms)
        if known is None:
            parts = [
                part for one in self.keys for part in (one.client_id, one.mask_key, one.share_key)
            ]
            known = digest("fedrec mask key list v1", *terms.parts(), *parts)
            self._digests[terms] = known
        return known

    def verify(self, terms: MaskTerms, roster: Roster) -> None:
        """Check every signature (see `KeyAdvertisement.verify`)."""
        KeyList.of(self.keys)
        for one in self.keys:
            one.verify(terms, roster)


def _client(advertisement: KeyAdvertisement) -> ClientId:
    return advertisement.client_id


NONCE = bytes(12)
TAG_BYTES = 16
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""The number of bytes of one holder's encrypted shares of the two secrets."""


def pair_mask_key(
    round_digest: bytes, private: X25519PrivateKey, public: bytes, *, own: int, other: int
) -> bytes:
    """Return the 32-byte key of the mask that two participants have in common.

    Args:
        round_digest: `KeyList.digest`.
        private: the private mask key of the participant at position ``own``.
        public: the public mask key of the participant at position ``other``.
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
    """Return 32 bytes that identify a recovered seed without revealing it."""
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
    """Return the shares of the owner's mask seed and mask key.

    Raises:
        BadSignature: the shares were encrypted for another pair or round, or were changed.
    """
    key = _box_key(round_digest, private, public, owner, holder)
    try:
        plain = AESGCM(key).decrypt(NONCE, sealed, None)
    except InvalidTag:
        plain = b""
    if len(plain) != 2 * SHARE_BYTES:
        raise BadSignature(
            "Encrypted shares can't be decrypted: changed, or made for a different pair or round."
        )
    return plain[:SHARE_BYTES], plain[SHARE_BYTES:]


def _box_key(
    round_digest: bytes, private: X25519PrivateKey, public: bytes, owner: int, holder: int
) -> bytes:
    info = canonical("fedrec mask share v1", round_digest, owner, holder, "owner to holder")
    return derive(exchange(private, public), salt=b"", info=info, length=32)


Words = NDArray[np.uint32]

WORD = np.dtype("<u4")
WIDE = np.dtype("<u8")
WORD_BYTES = 4
BLOCK_BYTES = 1 << 20
_ZEROS = bytes(BLOCK_BYTES)
_AES_BLOCK = 16


def add_words(total: Words, words: Words, sign: int, *, n_wide: int) -> None:
    """Add words to a sum in place, or subtract them if ``sign`` is -1.

    Args:
        n_wide: the number of wide values at the start of both.
    """
    combine = np.add if sign > 0 else np.subtract
    end = 2 * n_wide
    wide = total[:end].view(WIDE)
    combine(wide, words[:end].view(WIDE), out=wide)
    combine(total[end:], words[end:], out=total[end:])


def add_mask(words: Words, key: bytes, sign: int, *, n_wide: int) -> None:
    """Add the mask of a key to ``words`` in place, or subtract it if ``sign`` is -1.

    Both the cipher and the sum release the interpreter's lock.

    Args:
        n_wide: the number of wide values at the start of the words.
    """
    encryptor = Cipher(AES256(key), CTR(bytes(_AES_BLOCK))).encryptor()
    step = BLOCK_BYTES // WORD_BYTES
    buffer = bytearray(min(BLOCK_BYTES, words.nbytes) + _AES_BLOCK - 1)
    for start in range(0, len(words), step):
        part = words[start : start + step]
        encryptor.update_into(memoryview(_ZEROS)[: part.nbytes], buffer)
        mask = np.frombuffer(buffer, dtype=WORD, count=len(part))
        wide_words = min(max(2 * n_wide - start, 0), len(part))
        add_words(part, mask, sign, n_wide=wide_words // 2)
