"""What participants and the collector send each other after the keys, as plain values.

Participants are named by their position in the round's `KeyList`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.errors import MalformedUpdate
from fedrec.ids import canonical
from fedrec.protection.masks.agreement import SEALED_BYTES
from fedrec.protection.masks.shamir import SHARE_BYTES

__all__ = ["GivenShares", "Inbox", "ShareBundle", "survivors_statement"]


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
