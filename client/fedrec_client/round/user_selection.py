"""Which of a client's users take part in a round, drawn with a secret that only this client has.

So nobody else can tell or choose who took part, and a crash gives nobody a second draw.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedrec.ids import UserId, canonical
from fedrec_client.state.private_store import PrivateStore

__all__ = ["select_users", "selection_secret"]

_RECORD = "selection_secret"
SECRET_BYTES = 32


def selection_secret(store: PrivateStore) -> bytes:
    """Return this client's own secret, 32 bytes, made at first use and kept for good."""
    secret = store.own(_RECORD)
    if secret is None:
        secret = secrets.token_bytes(SECRET_BYTES)
        store.keep_own(_RECORD, secret)
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
