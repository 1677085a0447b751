"""Messages between participants and the collector after the keys, as values and as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fedrec.errors import KeysError, MalformedUpdate, ProtocolError
from fedrec.ids import ClientId, canonical
from fedrec.protection.masks.keys import SEALED_BYTES, KeyAdvertisement, KeyList
from fedrec.protection.masks.shamir import SHARE_BYTES
from fedrec.protection.masks.terms import MAX_CLIENTS
from fedrec.wire.convert import Codec
from fedrec.wire.fields import Digest, StepBody, WholeSignature, check_count
from fedrec.wire.v1 import masks_pb2

SIGNATURE_BYTES = 64


def _positions(found: Sequence[int], field: str) -> tuple[int, ...]:
    check_count(len(found), field, maximum=MAX_CLIENTS)
    return tuple(found)


def _pieces(raw: bytes, field: str, *, length: int) -> tuple[bytes, ...]:
    if len(raw) % length:
        raise MalformedUpdate(
            f"{field} has {len(raw)} bytes, but must have {length} bytes for each position."
        )
    return tuple(raw[start : start + length] for start in range(0, len(raw), length))


Positions = Annotated[tuple[int, ...], _positions]
Sealed = Annotated[tuple[bytes, ...], partial(_pieces, length=SEALED_BYTES), b"".join]
Shares = Annotated[tuple[bytes, ...], partial(_pieces, length=SHARE_BYTES), b"".join]


def pack(positions: Iterable[int], count: int) -> bytes:
    """Return ceil(count / 8) bytes, in which bit i of the little-endian number is position i."""
    number = 0
    for position in positions:
        number |= 1 << position
    return number.to_bytes(-(-count // 8), "little")


def unpack(packed: bytes, count: int) -> frozenset[int]:
    """Return the set that `pack` wrote.

    Raises:
        MalformedUpdate: the length is wrong, or a position isn't below ``count``.
    """
    number = int.from_bytes(packed, "little")
    if len(packed) != -(-count // 8) or number >> count:
        raise MalformedUpdate(f"The bytes aren't a set of positions below {count}.")
    return frozenset(position for position in range(count) if number >> position & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBundle:
    """One owner's encrypted shares.

    Attributes:
        holders: the positions of their holders, ascending.
        sealed: `SEALED_BYTES` bytes for each holder, which only that holder can open.
        commitment: 32 bytes that let the collector check the seed of the self mask.
    """

    holders: Positions
    sealed: Sealed
    commitment: StepBody

    def __post_init__(self) -> None:
        _check_pairs(self.holders, self.sealed, SEALED_BYTES)
        if len(self.commitment) != 32:
            raise MalformedUpdate("A commitment must have 32 bytes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """The collector's message to one holder of shares.

    Attributes:
        shared: the participants that sent a bundle, packed (`positions.pack`).
        owners: the positions of the clients that chose this holder, ascending.
        sealed: each owner's `SEALED_BYTES` bytes for it.
    """

    shared: StepBody
    owners: Positions
    sealed: Sealed

    def __post_init__(self) -> None:
        _check_pairs(self.owners, self.sealed, SEALED_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenShares:
    """A holder's answer, with one share for every owner, never both.

    Attributes:
        self_owners: the positions of survivors, ascending.
        self_shares: the shares of the seeds of their self masks.
        key_owners: the positions of clients that dropped out, ascending.
        key_shares: the shares of their mask keys.
    """

    self_owners: Positions
    self_shares: Shares
    key_owners: Positions
    key_shares: Shares

    def __post_init__(self) -> None:
        _check_pairs(self.self_owners, self.self_shares, SHARE_BYTES)
        _check_pairs(self.key_owners, self.key_shares, SHARE_BYTES)
        if set(self.self_owners) & set(self.key_owners):
            raise MalformedUpdate("The answer has both shares of one participant.")


def survivors_statement(round_digest: bytes, shared: bytes, survivors: bytes) -> bytes:
    """Return the bytes that survivors sign: the list of keys, the sharers and the summed clients.

    Args:
        round_digest: `KeyList.digest`.
        shared: the clients that sent bundles, packed.
        survivors: the clients whose vectors are in the sum, packed.
    """
    return canonical("fedrec mask survivors v1", round_digest, shared, survivors)


def _check_pairs(positions: tuple[int, ...], contents: tuple[bytes, ...], length: int) -> None:
    ascending = all(a < b for a, b in zip((-1, *positions), positions, strict=False))
    if not ascending or len(positions) != len(contents):
        raise MalformedUpdate("Positions must ascend, with one content each.")
    if any(len(content) != length for content in contents):
        raise MalformedUpdate(f"Every content must have {length} bytes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstKeys:
    """A client's keys without its id, and the digest of the model that it starts from."""

    base_state: Digest
    mask_key: Digest
    share_key: Digest
    signature: WholeSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signatures:
    """The survivors' signatures by position."""

    positions: Positions
    signatures: Annotated[tuple[bytes, ...], partial(_pieces, length=SIGNATURE_BYTES), b"".join]


_FIRST = Codec(_FirstKeys, masks_pb2.MaskKeys, "keys")
_SIGNATURES = Codec(_Signatures, masks_pb2.MaskSignatures, "signatures")
Codec(KeyAdvertisement, masks_pb2.MaskListedKeys, "keys")
KEY_LIST = Codec(KeyList, masks_pb2.MaskKeyList, "keys")
BUNDLE = Codec(ShareBundle, masks_pb2.MaskShares, "shares")
INBOX = Codec(Inbox, masks_pb2.MaskInbox, "inbox")
GIVEN = Codec(GivenShares, masks_pb2.MaskAnswer, "answer")


def keys_to_bytes(keys: KeyAdvertisement, base_state: bytes) -> bytes:
    """Write a client's keys and the digest of the model that it starts from."""
    first = _FirstKeys(
        base_state=base_state,
        mask_key=keys.mask_key,
        share_key=keys.share_key,
        signature=keys.signature,
    )
    return _FIRST.to_bytes(first)


def keys_from_bytes(client_id: ClientId, raw: bytes) -> tuple[KeyAdvertisement, bytes]:
    """Read the keys that `keys_to_bytes` wrote, without verifying the signature."""
    found = _FIRST.from_bytes(raw)
    keys = KeyAdvertisement(
        client_id=client_id,
        mask_key=found.mask_key,
        share_key=found.share_key,
        signature=found.signature,
    )
    return keys, found.base_state


def base_state_from_bytes(raw: bytes) -> bytes:
    """Read the digest of the model that `keys_to_bytes` wrote."""
    return _FIRST.from_bytes(raw).base_state


def key_list_from_bytes(raw: bytes) -> KeyList:
    """Read the list that `KEY_LIST` wrote, without verifying signatures.

    Raises:
        ProtocolError: the bytes aren't a list of keys, or a client or a key appears twice.
    """
    try:
        return KeyList.of(KEY_LIST.from_bytes(raw).keys)
    except KeysError as error:
        raise ProtocolError(error.message) from None


def signatures_to_bytes(signatures: Mapping[int, bytes]) -> bytes:
    """Write signatures by position."""
    known = sorted(signatures.items())
    positions, content = tuple(one for one, _ in known), tuple(one for _, one in known)
    return _SIGNATURES.to_bytes(_Signatures(positions=positions, signatures=content))


def signatures_from_bytes(raw: bytes) -> dict[int, bytes]:
    """Read the signatures that `signatures_to_bytes` wrote."""
    found = _SIGNATURES.from_bytes(raw)
    if len(found.positions) != len(found.signatures):
        raise MalformedUpdate(f"{len(found.positions)} positions need as many signatures.")
    return dict(zip(found.positions, found.signatures, strict=True))
