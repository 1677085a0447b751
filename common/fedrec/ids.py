"""Identifiers as distinct types, so that a user's id is never used as an item's id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from numbers import Integral
from typing import Any, NewType, Protocol

UserId = NewType("UserId", str)
ItemId = NewType("ItemId", str)
ClientId = NewType("ClientId", str)
"""The hexadecimal SHA-256 fingerprint of a client's Ed25519 public key, 64 characters."""
RoundId = NewType("RoundId", int)
"""Rounds count from 1. Version v of the shared model is the one that round v published."""


def id_text(value: object) -> object:
    """Return an integer id as its decimal digits, as a data file has it. Other values stay."""
    is_number = isinstance(value, Integral) and not isinstance(value, bool)
    return str(value) if is_number else value


class Array(Protocol):
    """An array that may lie in files, with `dtype.itemsize` bytes for each of `len` values."""

    @property
    def dtype(self) -> Any:
        """The type of its values."""

    def __len__(self) -> int:
        """Return the number of its values."""

    def __getitem__(self, part: slice, /) -> Any:
        """Return some neighbouring values as an array of numpy."""


def digest(domain: str, *parts: bytes | str | int | Array) -> bytes:
    """Return the SHA-256 of a domain and its parts, each prefixed by its length.

    The length prefixes make the encoding injective: two different lists of parts never hash the
    same bytes. Integers are written in decimal. An array counts as its bytes, which are read in
    parts.
    """
    hashed = hashlib.sha256()
    for piece in _pieces(domain, *parts):
        hashed.update(piece)
    return hashed.digest()


def canonical(domain: str, *parts: bytes | str | int) -> bytes:
    """Return the injective byte string that `digest` hashes and that signatures cover."""
    return b"".join(_pieces(domain, *parts))


_VALUES_AT_ONCE = 1 << 20


def _pieces(*parts: bytes | str | int | Array) -> Iterator[bytes]:
    for part in parts:
        if not isinstance(part, bytes | str | int):
            yield (len(part) * part.dtype.itemsize).to_bytes(8, "big")
            for begin in range(0, len(part), _VALUES_AT_ONCE):
                yield part[begin : begin + _VALUES_AT_ONCE].tobytes()
            continue
        raw = part if isinstance(part, bytes) else str(part).encode()
        yield len(raw).to_bytes(8, "big")
        yield raw
