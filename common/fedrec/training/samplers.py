"""Negatives and minibatches of a chunk of users, drawn on the device, as fixed work.

Negatives come from the sorted complement of what is excluded: the r-th item that a user does not
hold is r plus the number of excluded items at or below it, one binary search instead of
rejection. Minibatches are laid out step by step, so that a training step is one slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedrec.streams import Purpose, mix, shift_right, stream_key, user_stream
from fedrec.training.cohort import Chunk

__all__ = ["Samples", "Step", "draw_negatives", "draw_samples", "steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A round's training samples of a chunk.

    The distinct (user, item) pairs of a user fill the first places of its row of a padded table
    with `width` columns; the rest of the row belongs to no pair.

    Attributes:
        user: local user of every sample, int64 (n_samples,), ascending.
        cell: user x n_items + active item position, int64.
        pair: user x width + the pair's place in the user's row, int64.
        label: 1 for a positive, 0 for a negative, float32.
        pointers: where each user's samples begin, int64 (n_users + 1,).
        ends: how many samples the steps of an epoch have up to each of them, on the host: the
            only thing that is read from the device, once.
        width: columns of the padded table; follows from the user's own activity alone.
        pair_item: active item position of every place, n_items where there is no pair,
            int64 (n_users, width).
    """

    user: torch.Tensor
    cell: torch.Tensor
    pair: torch.Tensor
    label: torch.Tensor
    pointers: torch.Tensor
    ends: tuple[int, ...]
    width: int
    pair_item: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One minibatch of every user who still has one.

    Attributes:
        index: position among all steps of the round; a user's own activity decides it, never
            its neighbours', so that sums over earlier steps have the same order everywhere.
        samples: positions in `Samples`, by user.
        sizes: minibatch size of every user of the chunk (0 where a user sits out), int64.
    """

    index: int
    samples: torch.Tensor
    sizes: torch.Tensor


def _owners(sizes: torch.Tensor, total: int) -> torch.Tensor:
    """Return every value's user; the total is known here, so that nobody asks the device."""
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
    """Draw items that users do not hold, uniformly and independently.

    Args:
        per_positive: how many for each positive of a user.

    Returns:
        (local user, active item position), int64, ordered by user and counter.
    """
    n_items = chunk.n_items
    excluded = chunk.excluded_pointers[1:] - chunk.excluded_pointers[:-1]
    holder = _owners(excluded, len(chunk.excluded))
    place = torch.arange(len(holder), device=holder.device) - chunk.excluded_pointers[holder]
    # Ascending over all users: the number of free items below each excluded one.
    ladder = holder * n_items + (chunk.excluded - place)
    free = n_items - excluded
    per_user = (chunk.pointers[1:] - chunk.pointers[:-1]) * per_positive
    user = _owners(per_user, len(chunk.positives) * per_positive)
    begin = (chunk.pointers[:-1] * per_positive).index_select(0, user)
    counter = torch.arange(len(user), device=holder.device) - begin
    keys = user_stream(stream_key(seed, purpose, round_id), chunk.user_keys)
    words = shift_right(mix(keys.index_select(0, user) + counter), 32)
    chosen = (words * free.index_select(0, user)) >> 32
    below = torch.searchsorted(ladder, user * n_items + chosen, right=True)
    return user, chosen + below - chunk.excluded_pointers.index_select(0, user)


def draw_samples(
    chunk: Chunk, *, seed: int, round_id: int, negatives_per_positive: int, batch_size: int
) -> Samples:
    """Return every positive once and `negatives_per_positive` negatives for each."""
    holder, drawn = draw_negatives(
        chunk, seed=seed, round_id=round_id, per_positive=negatives_per_positive
    )
    owner = _owners(chunk.pointers[1:] - chunk.pointers[:-1], len(chunk.positives))
    total = len(owner) * (1 + negatives_per_positive)
    pointers = chunk.pointers * (1 + negatives_per_positive)
    cell = torch.empty(total, dtype=torch.int64, device=owner.device)
    label = torch.zeros(total, dtype=torch.float32, device=owner.device)
    place = torch.arange(len(drawn), device=owner.device)
    own = place[: len(owner)] + negatives_per_positive * chunk.pointers.index_select(0, owner)
    cell[own] = owner * chunk.n_items + chunk.positives
    label[own] = 1.0
    cell[place + chunk.pointers.index_select(0, holder + 1)] = holder * chunk.n_items + drawn
    sizes = pointers[1:] - pointers[:-1]
    user = _owners(sizes, total)
    touched = torch.zeros((chunk.n_users, chunk.n_items), dtype=torch.int32, device=owner.device)
    touched.view(-1)[cell] = 1
    within = torch.cumsum(touched, 1, dtype=torch.int32).view(-1).take(cell) - 1
    width = min(chunk.n_items, chunk.n_steps * batch_size)
    pair = user * width + within
    pair_item = torch.full_like(touched[:, :1], chunk.n_items, dtype=torch.int64)
    pair_item = pair_item.repeat(1, width)
    pair_item.view(-1)[pair] = cell - user * chunk.n_items
    return Samples(
        user=user,
        cell=cell,
        pair=pair,
        label=label,
        pointers=pointers,
        ends=tuple(torch.cumsum(_batches(sizes, chunk.n_steps, batch_size).sum(1), 0).tolist()),
        width=width,
        pair_item=pair_item,
    )


def _batches(sizes: torch.Tensor, n_steps: int, batch_size: int) -> torch.Tensor:
    """Return the size of every minibatch of an epoch, int64 (n_steps, n_users)."""
    number = torch.arange(n_steps, device=sizes.device)[:, None]
    return (sizes[None, :] - number * batch_size).clamp(0, batch_size)


def steps(
    chunk: Chunk, samples: Samples, *, seed: int, round_id: int, epoch: int, batch_size: int
) -> Iterator[Step]:
    """Yield an epoch's minibatches: every user's samples shuffled, then cut into batches."""
    keys = user_stream(stream_key(seed, Purpose.SHUFFLE, round_id, epoch), chunk.user_keys)
    place = torch.arange(len(samples.user), device=samples.user.device)
    within = place - samples.pointers.index_select(0, samples.user)
    words = mix(keys.index_select(0, samples.user) + within)
    shuffled = torch.argsort((samples.user << 42) | shift_right(words, 22), stable=True)
    sizes = samples.pointers[1:] - samples.pointers[:-1]
    table = _batches(sizes, chunk.n_steps, batch_size)
    begin = (torch.cumsum(table.reshape(-1), 0) - table.reshape(-1)).reshape(table.shape)
    batch = torch.div(within, batch_size, rounding_mode="floor")
    target = begin.view(-1).take(batch * chunk.n_users + samples.user)
    target += within - batch * batch_size
    ordered = torch.empty_like(shuffled)
    ordered[target] = shuffled
    start = 0
    for index, end in enumerate(samples.ends):
        if end > start:
            yield Step(
                index=epoch * chunk.n_steps + index,
                samples=ordered[start:end],
                sizes=table[index],
            )
        start = end
