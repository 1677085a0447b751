"""Which of a client's users take part in a round, drawn with a secret that only this client has.

So nobody else can tell or choose who took part, and a crash gives nobody a second draw.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrec.durable import write_whole
from fedrec.errors import StorageError
from fedrec.ids import UserId, canonical

__all__ = ["SELECTION_FILE", "select_users", "selection_secret"]

SELECTION_FILE = "coin.key"
SECRET_BYTES = 32


def selection_secret(folder: Path) -> bytes:
    """Return this client's own secret, 32 bytes, made at first use and kept with a checksum.

    Raises:
        StorageError: the file is damaged or cannot be read or written.
    """
    path = folder / SELECTION_FILE
    if not path.exists():
        secret = secrets.token_bytes(SECRET_BYTES)
        write_whole(path, secret + hashlib.sha256(secret).digest(), private=True)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error}.", remedy="Check its permissions."
        ) from error
    secret, checksum = raw[:SECRET_BYTES], raw[SECRET_BYTES:]
    if hashlib.sha256(secret).digest() != checksum:
        raise StorageError(
            f"{path} is damaged: its checksum does not match.",
            remedy="Delete it; a new secret is drawn and chooses users from now on.",
        )
    return secret


def select_users(
    secret: bytes, run: str, number: int, user_ids: Sequence[UserId], fraction: float
) -> NDArray[np.bool_]:
    """Return who takes part, bool of shape (n_users,).

    A user's draw is the first 8 bytes of HMAC-SHA256 over run, number and user, read as a
    fraction of 2^64; the user takes part where it is below `fraction`.
    """
    if fraction >= 1.0:
        return np.ones(len(user_ids), dtype=np.bool_)
    prefix = canonical("fedrec coin v1", run, number)
    draws = b"".join(
        [hmac.digest(secret, prefix + canonical(user), "sha256")[:8] for user in user_ids]
    )
    values = np.frombuffer(draws, dtype=">u8").astype(np.float64)
    return values < fraction * 2.0**64
