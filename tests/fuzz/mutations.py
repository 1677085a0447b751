"""Damaged copies of valid bytes, drawn from a seed."""

from __future__ import annotations

import json
import random
from typing import Any

STRANGE_BYTES = (b"", b"\0", b"\xff" * 9, b"\x80" * 10 + b"\x01", b"\xed\xa0\x80", b"[" * 2_000)
STRANGE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    2**64,
    10**400,
    1e308,
    1.5,
    "",
    "\0",
    "\ud800",
    "A" * 5_000,
    "====",
    [],
    {},
    [[]],
    [{}],
    {"kind": "?"},
)


def mutated(choose: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """Return one of the seeds after one or a few damages."""
    data = choose.choice(seeds)
    if data[:1] == b"{" and choose.random() < 0.6:
        return _other_json(choose, data)
    for _ in range(choose.choice([1, 1, 1, 2, 4])):
        data = _damaged(choose, data, seeds)
    return data


def _damaged(choose: random.Random, data: bytes, seeds: tuple[bytes, ...]) -> bytes:
    start = choose.randrange(len(data) + 1)
    end = min(len(data), start + choose.choice([1, 1, 4, 32, 1_000]))
    match choose.randrange(7):
        case 0:
            return data[:start]
        case 1:
            return data[:start] + data[end:]
        case 2:
            return data[:start] + data[start:end] * 2 + data[end:]
        case 3:
            return data[:start] + choose.choice(STRANGE_BYTES) + data[end:]
        case 4:
            other = choose.choice(seeds)
            return data[:start] + other[choose.randrange(len(other) + 1) :]
        case 5:
            return data[:start] + choose.randbytes(end - start) + data[end:]
    if start == len(data):
        return data + b"\0"
    flipped = data[start] ^ (1 << choose.randrange(8))
    return data[:start] + bytes([flipped]) + data[start + 1 :]


def _other_json(choose: random.Random, data: bytes) -> bytes:
    """Return the document with one value of another kind, missing or moved."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return data
    place = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = choose.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and choose.random() < 0.8:
            place = place[key]
            continue
        if choose.random() < 0.1:
            del place[key]
        else:
            place[key] = choose.choice(STRANGE_VALUES)
        break
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
