"""Ranking the held-out items: `full`, `sampled` and `paper` (DESIGN section 5).

`full` ranks every item except the user's training items and, at test, its validation item.
`sampled` and `paper` rank the held-out item among 99 items drawn once per user from outside all
its interactions; they differ in the training negatives only. Items that too few users hold are
never recommended: they rank below all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.evaluation.metrics import Split
from fedrec.streams import Purpose, mix, shift_right, stream_key, user_stream

__all__ = ["N_CANDIDATES", "Protocol", "draw_candidates", "held_out_ranks"]

Protocol = Literal["full", "sampled", "paper"]

N_CANDIDATES = 99
"""Negatives that a held-out item is ranked among under `sampled` and `paper`."""

_WORDS_AT_ONCE = 1 << 23
"""Random words in memory while candidates are drawn; each takes about 40 bytes."""


@dataclass(frozen=True, slots=True)
class _Interactions:
    """Where in a (n_users, n_items) matrix the users' interactions lie, on the device."""

    training: tuple[torch.Tensor, torch.Tensor]
    validation: torch.Tensor
    test: torch.Tensor


def _locate(users: UserSplit, device: torch.device) -> _Interactions:
    sizes = np.diff(users.train_indptr)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return _Interactions(
        (torch.from_numpy(owner).to(device), torch.from_numpy(users.train_items).to(device)),
        torch.from_numpy(users.validation_items).to(device),
        torch.from_numpy(users.test_items).to(device),
    )


def held_out_ranks(
    scores: torch.Tensor,
    users: UserSplit,
    split: Split,
    *,
    protocol: Protocol,
    seed: int,
) -> NDArray[np.float64]:
    """Return the expected 0-based rank of every user's held-out item.

    Args:
        scores: float (n_users, n_items) over the whole catalogue; -inf for items that are never
            recommended. Left unchanged. A held-out item whose score is not a number ranks last.
        users: the same users in the same order.

    Returns:
        float64 (n_users,): number of candidates with a higher score plus half the number of
        other candidates with an equal one; -1 for users without a held-out item.
    """
    where = _locate(users, scores.device)
    target = where.validation if split == "validation" else where.test
    own = scores.gather(1, target.clamp(min=0)[:, None])
    if protocol == "full":
        above, equal = _against_all(scores, where, split, own)
    else:
        above, equal = _against_drawn(scores, users, own, seed)
    ranks = above.to(torch.float64) + 0.5 * equal.to(torch.float64)
    return np.asarray(torch.where(target >= 0, ranks, -1.0).cpu().numpy())


def _against_all(
    scores: torch.Tensor, where: _Interactions, split: Split, own: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Count better and equal candidates: all items, less those that are no candidates."""
    # "Not lower or equal" instead of "higher", so that nothing gains by not being a number.
    better, same = ~(scores <= own), scores == own
    row = torch.arange(len(scores), device=scores.device)
    target = where.validation if split == "validation" else where.test
    left_out = [where.training, (row, target.clamp(min=0))]
    if split == "test":
        has = where.validation >= 0
        left_out.append((row[has], where.validation[has]))
    for cells in left_out:
        better[cells] = False
        same[cells] = False
    return better.sum(1), same.sum(1)


def _against_drawn(
    scores: torch.Tensor, users: UserSplit, own: torch.Tensor, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Count better and equal ones among the drawn candidates."""
    items, usable = draw_candidates(users, scores.shape[1], seed=seed, device=scores.device)
    candidate = scores.gather(1, items)
    return (~(candidate <= own) & usable).sum(1), ((candidate == own) & usable).sum(1)


def draw_candidates(
    users: UserSplit, n_items: int, *, seed: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw every user's 99 distinct items from outside all its interactions.

    They depend on the seed and the user alone, neither on the round nor on the split.

    Returns:
        (items, usable), int64 and bool (n_users, n_candidates). Places are unusable where a
        user has fewer free items than there are places.
    """
    n_users = len(users)
    width = min(N_CANDIDATES, n_items)
    items = torch.empty((n_users, width), dtype=torch.int64, device=device)
    usable = torch.empty((n_users, width), dtype=torch.bool, device=device)
    keys = torch.from_numpy(users.user_keys()).to(device)
    streams = user_stream(stream_key(seed, Purpose.EVALUATION_NEGATIVES), keys)
    order = torch.arange(n_items, device=device)
    last = torch.iinfo(torch.int64).max
    owner, held = _all_interactions(users)
    at_once = max(1, _WORDS_AT_ONCE // n_items)
    for start in range(0, n_users, at_once):
        part = slice(start, min(n_users, start + at_once))
        words = shift_right(mix(streams[part, None] + order[None, :]), 1)
        begin, end = np.searchsorted(owner, [part.start, part.stop]).tolist()
        cells = (owner[begin:end] - start, held[begin:end])
        words[tuple(torch.from_numpy(axis).to(device) for axis in cells)] = last
        # The candidates are the items with the smallest words: distinct and free.
        drawn = torch.topk(words, width, dim=1, largest=False)
        items[part], usable[part] = drawn.indices, drawn.values < last
    return items, usable


def _all_interactions(users: UserSplit) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (user position, item) of all interactions, held-out ones included, by user."""
    everybody = np.arange(len(users), dtype=np.int64)
    owner = np.concatenate(
        [np.repeat(everybody, np.diff(users.train_indptr)), everybody, everybody]
    )
    held = np.concatenate([users.train_items, users.validation_items, users.test_items])
    order = np.argsort(owner, kind="stable")
    owner, held = owner[order], held[order]
    return owner[held >= 0], held[held >= 0]
