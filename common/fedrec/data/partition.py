"""Dealing users out to the silos of a federation."""

from __future__ import annotations

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.data.ordering import encode_ids
from fedrec.errors import DataError
from fedrec.ids import digest

__all__ = ["partition_users"]


def partition_users(interactions: Interactions, n_parts: int, seed: int = 0) -> list[Interactions]:
    """Give every user, with all rows, to exactly one of `n_parts` parts.

    Users are ordered by a hash of (seed, id) and dealt out in turn, so that part sizes differ
    by at most one user and neither the order of rows nor the machine matters. Adding a user may
    move others. Rows of a part are in canonical order; parts may be empty.

    Raises:
        DataError: `n_parts` is below 1.
    """
    if n_parts < 1:
        raise DataError(f"{n_parts} parts were asked for.", remedy="Ask for 1 or more.")
    ordered = interactions.canonical()
    users, user_index = encode_ids(ordered.user_ids)
    hashes = [digest("fedrec partition", seed, user) for user in users]
    part_of_user = np.empty(len(users), dtype=np.int64)
    dealt = sorted(range(len(users)), key=hashes.__getitem__)
    part_of_user[dealt] = np.arange(len(users)) % n_parts
    part_of_row = part_of_user[user_index]
    return [ordered.take(part_of_row == part) for part in range(n_parts)]
