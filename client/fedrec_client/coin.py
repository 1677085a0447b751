"""The coin that chooses which of a client's users take part in a round.

Keyed with a secret that only this client has, so that nobody else can tell or choose who took
part. It is the same coin after a crash, which gives nobody a second throw.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedrec.ids import RoundId, UserId, canonical

__all__ = ["throw_coins"]


def throw_coins(
    secret: bytes, run: str, round_id: RoundId, user_ids: Sequence[UserId], fraction: float
) -> NDArray[np.bool_]:
    """Return who takes part, bool of shape (n_users,).

    Each user's coin is the first 8 bytes of HMAC-SHA256 over run, round and user, read as a
    fraction of 2^64, and falls on yes below `fraction`.
    """
    if fraction >= 1.0:
        return np.ones(len(user_ids), dtype=np.bool_)
    prefix = canonical("fedrec coin v1", run, round_id)
    draws = b"".join(
        [hmac.digest(secret, prefix + canonical(user), "sha256")[:8] for user in user_ids]
    )
    values = np.frombuffer(draws, dtype=">u8").astype(np.float64)
    return values < fraction * 2.0**64
