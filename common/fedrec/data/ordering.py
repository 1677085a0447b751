"""Orders that depend on ids and never on the order in which rows were read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def sorted_ids(ids: Iterable[str]) -> list[str]:
    """Return the distinct ids in their canonical order.

    If every id consists of ASCII digits they are ordered by (length, text), which is the
    numeric order of ids without leading zeros; otherwise by Unicode code points.
    """
    distinct = set(ids)
    if all(id_.isascii() and id_.isdigit() for id_ in distinct):
        return sorted(distinct, key=lambda id_: (len(id_), id_))
    return sorted(distinct)


def encode_ids(ids: NDArray[np.object_]) -> tuple[list[str], NDArray[np.int64]]:
    """Replace ids by positions in their canonical order.

    Args:
        ids: strings, shape (n_rows,).

    Returns:
        The distinct ids in canonical order, and for each row the position of its id among
        them, shape (n_rows,).
    """
    rows: list[str] = ids.tolist()
    distinct = sorted_ids(rows)
    position = {id_: index for index, id_ in enumerate(distinct)}
    index = np.fromiter(map(position.__getitem__, rows), dtype=np.int64, count=len(rows))
    return distinct, index


def recency_keys(user_ids: Sequence[str], item_ids: Sequence[str]) -> NDArray[np.uint64]:
    """Return the numbers that order interactions of equal or missing time.

    The key is the first 8 bytes, big-endian, of SHA-256 of ``user<TAB>item`` in UTF-8; a larger
    key counts as more recent. It is part of the evaluation protocol, so it never changes.

    Args:
        user_ids: n_rows ids.
        item_ids: n_rows ids.

    Returns:
        Keys of shape (n_rows,).
    """
    sha256 = hashlib.sha256
    prefixes = b"".join(
        [
            sha256(f"{user}\t{item}".encode()).digest()[:8]
            for user, item in zip(user_ids, item_ids, strict=True)
        ]
    )
    return np.frombuffer(prefixes, dtype=">u8").astype(np.uint64)
