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

__all__ = ["N_CANDIDATES", "Protocol", "held_out_ranks"]

Protocol = Literal["full", "sampled", "paper"]

N_CANDIDATES = 99
"""Negatives that a held-out item is ranked among under `sampled` and `paper`."""


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
            recommended. Left unchanged.
        users: the same users in the same order.

    Returns:
        float64 (n_users,): number of candidates with a higher score plus half the number of
        other candidates with an equal one; -1 for users without a held-out item.
    """
    where = _locate(users, scores.device)
    target = where.validation if split == "validation" else where.test
    present = target >= 0
    row = torch.arange(len(target), device=scores.device)
    own = scores[row, target.clamp(min=0)][:, None]
    if protocol == "full":
        above, equal = _against_all(scores, where, split, own, row)
    else:
        above, equal = _against_drawn(scores, users, where, own, seed)
    ranks = above.to(torch.float64) + 0.5 * equal.to(torch.float64)
    return np.asarray(torch.where(present, ranks, -1.0).cpu().numpy())


def _against_all(
    scores: torch.Tensor,
    where: _Interactions,
    split: Split,
    own: torch.Tensor,
    row: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Count better and equal candidates: all items, less those that are no candidates."""
    better, same = scores > own, scores == own
    better[where.training] = False
    same[where.training] = False
    if split == "test":
        has = where.validation >= 0
        better[row[has], where.validation[has]] = False
        same[row[has], where.validation[has]] = False
    return better.sum(1), same.sum(1) - 1


def _against_drawn(
    scores: torch.Tensor,
    users: UserSplit,
    where: _Interactions,
    own: torch.Tensor,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Count better and equal ones among the drawn candidates."""
    n_users, n_items = scores.shape
    keys = torch.from_numpy(users.user_keys()).to(scores.device)
    streams = user_stream(stream_key(seed, Purpose.EVALUATION_NEGATIVES), keys)
    order = torch.arange(n_items, device=scores.device)
    words = shift_right(mix(streams[:, None] + order[None, :]), 1)
    # The candidates are the items with the smallest words: distinct, and no item the user has.
    last = torch.iinfo(torch.int64).max
    words[where.training] = last
    row = torch.arange(n_users, device=scores.device)
    for held in (where.validation, where.test):
        has = held >= 0
        words[row[has], held[has]] = last
    drawn = torch.topk(words, min(N_CANDIDATES, n_items), dim=1, largest=False)
    usable = drawn.values < last
    candidate = scores.gather(1, drawn.indices)
    return ((candidate > own) & usable).sum(1), ((candidate == own) & usable).sum(1)
