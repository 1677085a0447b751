"""Draw users' samples of a round: positives, and negatives that users don't hold.

Negatives come from the sorted complement of the excluded items. The r-th item that a user doesn't
hold is r plus the number of excluded items at or below it. One binary search finds it, without
rejection. A user trains only the rows of the distinct items in its samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.cohort import Chunk
from fedrec.random_streams import Purpose, mix, shift_right, stream_key, user_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The training samples of a chunk in one round. Each table has its users one after the other.

    Attributes:
        row: each sample's position among its user's distinct items, int64 (n_samples,). A user's
            positives come first.
        pointers: the start of each user's samples, int64 (n_users + 1,).
        item: the distinct active item positions of each user, ascending, int64 (n_distinct,).
        label: 1 for a positive, 0 for a negative, float32 (n_distinct,).
        count: the number of samples of the item, float32 (n_distinct,).
        row_pointers: the start of each user's distinct items, int64 (n_users + 1,).
        n_rows, n_samples: the numbers of distinct items and samples of each user, on the host,
            int64 (n_users,). All shapes follow from them. Nothing else is read from the device.
    """

    row: torch.Tensor
    pointers: torch.Tensor
    item: torch.Tensor
    label: torch.Tensor
    count: torch.Tensor
    row_pointers: torch.Tensor
    n_rows: NDArray[np.int64]
    n_samples: NDArray[np.int64]


def _owners(sizes: torch.Tensor, total: int) -> torch.Tensor:
    """Return the user of every value. The given total avoids waiting for the device."""
    users = torch.arange(len(sizes), device=sizes.device)
    return users.repeat_interleave(sizes, output_size=total)


def draw_negatives(
    chunk: Chunk,
    *,
    seed: int,
    round_id: int,
    per_positive: int,
    purpose: Purpose = Purpose.NEGATIVES,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw items that users don't hold, uniformly and independently.

    Args:
        per_positive: the number of negatives for each positive of a user.

    Returns:
        (local user, active item position), int64, ordered by user and counter.
    """
    n_items = chunk.n_items
    excluded = chunk.excluded_pointers[1:] - chunk.excluded_pointers[:-1]
    holder = _owners(excluded, len(chunk.excluded))
    place = torch.arange(len(holder), device=holder.device) - chunk.excluded_pointers[holder]
    # The number of free items below each excluded one ascends over all users.
    ladder = holder * n_items + (chunk.excluded - place)
    free = n_items - excluded
    per_user = chunk.sizes * per_positive
    user = _owners(per_user, len(chunk.positives) * per_positive)
    begin = (chunk.pointers[:-1] * per_positive).index_select(0, user)
    counter = torch.arange(len(user), device=holder.device) - begin
    keys = user_stream(stream_key(seed, purpose, round_id), chunk.user_keys)
    words = shift_right(mix(keys.index_select(0, user) + counter), 32)
    chosen = (words * free.index_select(0, user)) >> 32
    below = torch.searchsorted(ladder, user * n_items + chosen, right=True)
    return user, chosen + below - chunk.excluded_pointers.index_select(0, user)


def draw_samples(chunk: Chunk, *, seed: int, round_id: int, negatives_per_positive: int) -> Samples:
    """Return every positive once, and `negatives_per_positive` negatives for each."""
    holder, drawn = draw_negatives(
        chunk, seed=seed, round_id=round_id, per_positive=negatives_per_positive
    )
    owner = chunk.owner
    total = len(owner) * (1 + negatives_per_positive)
    pointers = chunk.pointers * (1 + negatives_per_positive)
    # A user's positives come first, followed by its negatives in the order of their draws.
    place = torch.arange(len(drawn), device=owner.device)
    own = place[: len(owner)] + negatives_per_positive * chunk.pointers.index_select(0, owner)
    key = torch.empty(total, dtype=torch.int64, device=owner.device)
    key[own] = owner * chunk.n_items + chunk.positives
    key[place + chunk.pointers.index_select(0, holder + 1)] = holder * chunk.n_items + drawn
    label = torch.zeros(total, device=owner.device)
    label[own] = 1.0
    order = argsorted(key)
    ordered = key.index_select(0, order)
    first = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=first[1:])
    row = torch.cumsum(first, 0) - 1
    user = torch.div(ordered, chunk.n_items, rounding_mode="floor")
    n_rows = torch.zeros(chunk.n_users, dtype=torch.int64, device=owner.device)
    n_rows.index_add_(0, user, first.to(torch.int64))
    # Training waits for its device only here.
    host = torch.stack([n_rows, pointers[1:] - pointers[:-1]]).cpu().numpy()
    row_pointers = torch.zeros_like(pointers)
    torch.cumsum(n_rows, 0, out=row_pointers[1:])
    n_distinct = int(host[0].sum())
    # Samples of one row write the same values.
    item = row.new_empty(n_distinct).index_copy_(0, row, ordered - user * chunk.n_items)
    row_label = label.new_empty(n_distinct).index_copy_(0, row, label.index_select(0, order))
    # CUDA adds in no fixed order, but whole numbers below 2^24 are exact in float32.
    count = label.new_zeros(n_distinct).index_add_(0, row, torch.ones_like(label))
    within = torch.empty_like(row)
    within[order] = row - row_pointers.index_select(0, user)
    return Samples(
        row=within,
        pointers=pointers,
        item=item,
        label=row_label,
        count=count,
        row_pointers=row_pointers,
        n_rows=host[0],
        n_samples=host[1],
    )


def with_every_row(samples: Samples, n_items: int) -> Samples:
    """Return the same samples with rows for every item of each user, most without samples."""
    n_users, device = len(samples.n_rows), samples.item.device
    owner = _owners(samples.row_pointers.diff(), len(samples.item))
    place = owner * n_items + samples.item
    user = _owners(samples.pointers.diff(), len(samples.row))
    first = samples.row_pointers.index_select(0, user)
    return replace(
        samples,
        row=samples.item.index_select(0, first + samples.row),
        item=torch.arange(n_items, device=device).repeat(n_users),
        label=samples.label.new_zeros(n_users * n_items).index_copy_(0, place, samples.label),
        count=samples.count.new_zeros(n_users * n_items).index_copy_(0, place, samples.count),
        row_pointers=torch.arange(n_users + 1, device=device) * n_items,
        n_rows=np.full(n_users, n_items),
    )


def argsorted(keys: torch.Tensor) -> torch.Tensor:
    """Return an order in which int64 keys ascend. Equal keys come in any order.

    On a CPU, numpy sorts several times as fast as torch.
    """
    if keys.device.type == "cpu":
        return torch.from_numpy(np.argsort(keys.numpy()))
    return torch.argsort(keys)
