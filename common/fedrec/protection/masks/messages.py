"""What participants and the collector send each other after the keys, as values and as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from fedrec.errors import KeysError, MalformedUpdate, ProtocolError
from fedrec.ids import ClientId, canonical
from fedrec.protection.masks.keys import SEALED_BYTES, KeyAdvertisement, KeyList
from fedrec.protection.masks.shamir import SHARE_BYTES
from fedrec.protection.masks.terms import MAX_CLIENTS
from fedrec.wire.fields import check_client_id, check_count, check_exact
from fedrec.wire.v1 import masks_pb2


def pack(positions: Iterable[int], count: int) -> bytes:
    """Return ceil(count / 8) bytes; bit i of the little-endian number stands for position i."""
    number = 0
    for position in positions:
        number |= 1 << position
    return number.to_bytes(-(-count // 8), "little")


def unpack(packed: bytes, count: int) -> frozenset[int]:
    """Return the set that `pack` wrote.

    Raises:
        MalformedUpdate: for another length, or positions from ``count`` on.
    """
    number = int.from_bytes(packed, "little")
    if len(packed) != -(-count // 8) or number >> count:
        raise MalformedUpdate(f"The bytes are no set of positions below {count}.")
    return frozenset(position for position in range(count) if number >> position & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBundle:
    """One owner's encrypted shares.

    Attributes:
        holders: positions of those who shall hold them, ascending.
        sealed: for each holder `SEALED_BYTES` bytes that only it can open.
        self_commitment: 32 bytes by which the collector recognises the seed of the self mask.
    """

    holders: tuple[int, ...]
    sealed: tuple[bytes, ...]
    self_commitment: bytes

    def __post_init__(self) -> None:
        _check_pairs(self.holders, self.sealed, SEALED_BYTES)
        if len(self.self_commitment) != 32:
            raise MalformedUpdate("A commitment has 32 bytes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """What the collector hands to one holder.

    Attributes:
        shared: all participants that sent a bundle, packed (`positions.pack`).
        owners: positions of those who chose this holder, ascending.
        sealed: each owner's `SEALED_BYTES` bytes for it.
    """

    shared: bytes
    owners: tuple[int, ...]
    sealed: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _check_pairs(self.owners, self.sealed, SEALED_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenShares:
    """A holder's answer: for every owner one share, never both.

    Attributes:
        self_owners: survivors, ascending.
        self_shares: shares of the seeds of their self masks.
        key_owners: those who dropped out, ascending.
        key_shares: shares of their mask keys.
    """

    self_owners: tuple[int, ...]
    self_shares: tuple[bytes, ...]
    key_owners: tuple[int, ...]
    key_shares: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _check_pairs(self.self_owners, self.self_shares, SHARE_BYTES)
        _check_pairs(self.key_owners, self.key_shares, SHARE_BYTES)
        if set(self.self_owners) & set(self.key_owners):
            raise MalformedUpdate("Both shares of one participant are given.")


def survivors_statement(round_digest: bytes, shared: bytes, survivors: bytes) -> bytes:
    """Return what every survivor signs: who, of which list of keys, shared and is in the sum.

    Args:
        round_digest: `KeyList.digest`.
        shared: those who sent bundles, packed.
        survivors: those whose vectors are in the sum, packed.
    """
    return canonical("fedrec mask survivors v1", round_digest, shared, survivors)


def _check_pairs(positions: tuple[int, ...], contents: tuple[bytes, ...], length: int) -> None:
    ascending = all(a < b for a, b in zip((-1, *positions), positions, strict=False))
    if not ascending or len(positions) != len(contents):
        raise MalformedUpdate("Positions must ascend, with one content each.")
    if any(len(content) != length for content in contents):
        raise MalformedUpdate(f"Every content must have {length} bytes.")


SIGNATURE_BYTES = 64
Parsed = TypeVar("Parsed")


def keys_to_bytes(keys: KeyAdvertisement, base_state: bytes) -> bytes:
    """Write a client's keys and the digest of the model that it starts from."""
    return _written(
        masks_pb2.MaskKeys(
            base_state=base_state,
            mask_key=keys.mask_key,
            share_key=keys.share_key,
            signature=keys.signature,
        )
    )


def keys_from_bytes(client_id: ClientId, raw: bytes) -> tuple[KeyAdvertisement, bytes]:
    """Read what `keys_to_bytes` wrote; the signature is not verified."""
    found = _parse(masks_pb2.MaskKeys, raw)
    keys = KeyAdvertisement(
        client_id=client_id,
        mask_key=found.mask_key,
        share_key=found.share_key,
        signature=check_exact(found.signature, "keys.signature", SIGNATURE_BYTES),
    )
    return keys, check_exact(found.base_state, "keys.base_state", 32)


def base_state_from_bytes(raw: bytes) -> bytes:
    """Read the digest of the model in what `keys_to_bytes` wrote."""
    found = _parse(masks_pb2.MaskKeys, raw)
    return check_exact(found.base_state, "keys.base_state", 32)


def shares_to_bytes(bundle: ShareBundle) -> bytes:
    """Write a client's encrypted shares."""
    return _written(
        masks_pb2.MaskShares(
            holders=bundle.holders,
            sealed=b"".join(bundle.sealed),
            commitment=bundle.self_commitment,
        )
    )


def shares_from_bytes(raw: bytes) -> ShareBundle:
    """Read what `shares_to_bytes` wrote."""
    found = _parse(masks_pb2.MaskShares, raw)
    return ShareBundle(
        holders=tuple(found.holders),
        sealed=_pieces(found.sealed, SEALED_BYTES, found.holders),
        self_commitment=found.commitment,
    )


def answer_to_bytes(given: GivenShares) -> bytes:
    """Write the shares that a client gives."""
    return _written(
        masks_pb2.MaskAnswer(
            self_owners=given.self_owners,
            self_shares=b"".join(given.self_shares),
            key_owners=given.key_owners,
            key_shares=b"".join(given.key_shares),
        )
    )


def answer_from_bytes(raw: bytes) -> GivenShares:
    """Read what `answer_to_bytes` wrote."""
    found = _parse(masks_pb2.MaskAnswer, raw)
    return GivenShares(
        self_owners=tuple(found.self_owners),
        self_shares=_pieces(found.self_shares, SHARE_BYTES, found.self_owners),
        key_owners=tuple(found.key_owners),
        key_shares=_pieces(found.key_shares, SHARE_BYTES, found.key_owners),
    )


def key_list_to_bytes(key_list: KeyList) -> bytes:
    """Write the participants' keys."""
    listed = [
        masks_pb2.MaskListedKeys(
            client_id=one.client_id,
            mask_key=one.mask_key,
            share_key=one.share_key,
            signature=one.signature,
        )
        for one in key_list.keys
    ]
    return _written(masks_pb2.MaskKeyList(keys=listed))


def key_list_from_bytes(raw: bytes) -> KeyList:
    """Read what `key_list_to_bytes` wrote; signatures are not verified.

    Raises:
        ProtocolError: when it is none, or a client or a key appears twice.
    """
    found = _parse(masks_pb2.MaskKeyList, raw)
    check_count(len(found.keys), "keys", maximum=MAX_CLIENTS)
    try:
        return KeyList.of(
            KeyAdvertisement(
                client_id=check_client_id(one.client_id, "keys.client_id"),
                mask_key=one.mask_key,
                share_key=one.share_key,
                signature=check_exact(one.signature, "keys.signature", SIGNATURE_BYTES),
            )
            for one in found.keys
        )
    except KeysError as error:
        raise ProtocolError(error.message) from None


def inbox_to_bytes(inbox: Inbox) -> bytes:
    """Write what one holder gets."""
    return _written(
        masks_pb2.MaskInbox(shared=inbox.shared, owners=inbox.owners, sealed=b"".join(inbox.sealed))
    )


def inbox_from_bytes(raw: bytes) -> Inbox:
    """Read what `inbox_to_bytes` wrote."""
    found = _parse(masks_pb2.MaskInbox, raw)
    return Inbox(
        shared=found.shared,
        owners=tuple(found.owners),
        sealed=_pieces(found.sealed, SEALED_BYTES, found.owners),
    )


def signatures_to_bytes(signatures: Mapping[int, bytes]) -> bytes:
    """Write signatures by position."""
    positions = sorted(signatures)
    return _written(
        masks_pb2.MaskSignatures(
            positions=positions, signatures=b"".join(signatures[position] for position in positions)
        )
    )


def signatures_from_bytes(raw: bytes) -> dict[int, bytes]:
    """Read what `signatures_to_bytes` wrote."""
    found = _parse(masks_pb2.MaskSignatures, raw)
    pieces = _pieces(found.signatures, SIGNATURE_BYTES, found.positions)
    return dict(zip(found.positions, pieces, strict=True))


def _pieces(raw: bytes, length: int, names: Sequence[int]) -> tuple[bytes, ...]:
    check_count(len(names), "positions", maximum=MAX_CLIENTS)
    if len(raw) != length * len(names):
        raise MalformedUpdate(f"{len(names)} positions need {length} bytes each.")
    return tuple(raw[start : start + length] for start in range(0, len(raw), length))


def _written(message: Any) -> bytes:
    raw: bytes = message.SerializeToString(deterministic=True)
    return raw


def _parse(kind: type[Parsed], raw: bytes) -> Parsed:
    message = kind()
    try:
        message.ParseFromString(raw)  # type: ignore[attr-defined]  # generated
    except DecodeError:
        raise ProtocolError("The bytes are no message of this step.") from None
    return message
