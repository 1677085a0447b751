"""What a fuzz target is: a reader of bytes that a peer controls, and bytes that it takes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError, Message

from fedrec.errors import FedrecError

Reader = Callable[[bytes], object]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One parser.

    Attributes:
        read: raises `FedrecError` for what it refuses, and nothing else.
        seeds: valid inputs, as this version writes them.
    """

    read: Reader
    seeds: tuple[bytes, ...]


def is_refused(target: Target, data: bytes) -> bool:
    """Tell whether a parser refuses bytes as it may; whatever else it raises, rises."""
    try:
        target.read(data)
    except FedrecError:
        return True
    return False


def from_proto(kind: type[Message], read: Callable[[Any], object]) -> Reader:
    """Return the reader of a message: what is none is refused by the service before it."""

    def found(data: bytes) -> object:
        try:
            message = kind.FromString(data)
        except DecodeError:
            return None
        return read(message)

    return found


def from_file(name: str, read: Callable[[Path], object]) -> Reader:
    """Return the reader of a file's content."""
    folder = tempfile.TemporaryDirectory(prefix="fedrec-fuzz-")
    path = Path(folder.name) / name

    def found(data: bytes) -> object:
        assert folder.name
        path.touch(mode=0o600)
        path.write_bytes(data)
        return read(path)

    return found
