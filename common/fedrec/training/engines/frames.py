"""How an engine and its worker processes speak over pipes: a header in JSON, then raw bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

__all__ = ["read_frame", "write_frame"]

_LENGTHS = struct.Struct("<IQ")


def write_frame(pipe: IO[bytes], header: Mapping[str, Any], body: bytes = b"") -> None:
    """Write a frame and send it off."""
    text = json.dumps(header, separators=(",", ":")).encode()
    pipe.write(_LENGTHS.pack(len(text), len(body)))
    pipe.write(text)
    pipe.write(body)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Return the next frame; None where the other side has gone, in the midst of one or not."""
    lengths = _exactly(pipe, _LENGTHS.size)
    if lengths is None:
        return None
    n_text, n_body = _LENGTHS.unpack(lengths)
    text, body = _exactly(pipe, n_text), _exactly(pipe, n_body)
    if text is None or body is None:
        return None
    return json.loads(text), body


def _exactly(pipe: IO[bytes], n_bytes: int) -> bytes | None:
    found = pipe.read(n_bytes)
    return found if len(found) == n_bytes else None
