"""Dealing users out to the silos of a federation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedrec.data.interactions import Interactions
from fedrec.data.ordering import encode_ids
from fedrec.errors import DataError
from fedrec.ids import digest


def user_groups(user_ids: Sequence[str], n_parts: int, *, seed: int = 0) -> list[NDArray[np.int64]]:
    """Return the positions of each part's users, ascending; parts may be empty.

    Users are ordered by a hash of (seed, id) and dealt out in turn, so that part sizes differ by at
    most one user and neither their order nor the machine matters. Adding a user may move others.

    Raises:
        DataError: `n_parts` is below 1.
    """
    if n_parts < 1:
        raise DataError(f"{n_parts} parts were asked for.", remedy="Ask for 1 or more.")
    hashes = [digest("fedrec partition", seed, user) for user in user_ids]
    dealt = np.array(sorted(range(len(user_ids)), key=hashes.__getitem__), dtype=np.int64)
    return [np.sort(dealt[part::n_parts]) for part in range(n_parts)]


def partition_users(interactions: Interactions, n_parts: int, seed: int = 0) -> list[Interactions]:
    """Give every user, with all rows, to exactly one of `n_parts` parts, by `user_groups`.

    Rows of a part are in canonical order; parts may be empty.

    Raises:
        DataError: `n_parts` is below 1.
    """
    ordered = interactions.canonical()
    users, user_index = encode_ids(ordered.user_ids)
    part_of_user = np.empty(len(users), dtype=np.int64)
    for part, group in enumerate(user_groups(users, n_parts, seed=seed)):
        part_of_user[group] = part
    part_of_row = part_of_user[user_index]
    return [ordered.take(part_of_row == part) for part in range(n_parts)]
