"""Group users into blocks of one shape for training steps.

The matrix products of a processor choose their kernels, and with them their rounding, by shape. A
user's shapes therefore follow from that user alone. The number of steps is the user's own, and its
rows are padded to the next quarter of a power of two. A minibatch is as wide as `batch_size`, or as
the rows if one step covers them all. A block holds users of one size only, and always has the same
number of places, of which the last may be padding. Neighbours, chunks and order then change no bit.

A device promises no bits, and the starts of its operations cost it more than their work. There
sizes are few (`coarse`): users with fewer minibatches than others of their block skip the missing
steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from fedrec.algorithms.cohort import Chunk
from fedrec.random_streams import Purpose, mix, shift_right, stream_key, user_stream
from fedrec.training.samples import Samples


def sorted_rows(keys: torch.Tensor) -> torch.Tensor:
    """Sort int64 keys in ascending order along the last axis."""
    if keys.device.type == "cpu":
        return torch.from_numpy(np.sort(keys.numpy(), axis=-1))
    return torch.sort(keys, dim=-1).values


BLOCK_USERS = 8
"""The number of users in a block on a CPU.

Fewer than four change bits, and more don't fit into its cache."""
_CELLS_AT_ONCE = 1 << 20
_FEW_SAMPLES = 1 << 24
"""A device trains this many samples faster than it starts the operations of another size."""
_PLACE_BITS = 21
"""A user has fewer than 2^21 samples.

42 bits of the word decide the order before the position does."""
_LAST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Users that are trained at once: B of them, with R rows each and M of those in a minibatch.

    Attributes:
        users: the users' positions in the chunk, int64 (B,). Padding repeats the first user.
        n_users: the number of users. Padding comes after them.
        item: active item positions, or n_items for padding, int64 (B, R).
        label: float (B, R).
        share: each minibatch's share of the user's samples, float (n_steps, B). It weights the
            minibatch's loss in the user's mean.
        index: the rows of each minibatch, numbered through the block, int64 (epochs, n_steps, B x
            M). None if every step covers all rows.
        weight: a row's share of its minibatch's samples, 0 for padding, float (epochs, n_steps, B,
            M or R). It has one epoch if all are alike.
        live: 1 where a user has the minibatch, float (n_steps, B). None if all have all of them.
    """

    users: torch.Tensor
    n_users: int
    item: torch.Tensor
    label: torch.Tensor
    share: torch.Tensor
    index: torch.Tensor | None
    weight: torch.Tensor
    live: torch.Tensor | None = None

    def minibatches(
        self, epoch: int
    ) -> Iterator[tuple[torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        """Yield (rows or None, weight, share, live or None) for the steps of an epoch."""
        epoch = min(epoch, len(self.weight) - 1)
        for step in range(len(self.share)):
            index = None if self.index is None else self.index[epoch, step]
            live = None if self.live is None else self.live[step]
            yield index, self.weight[epoch, step], self.share[step], live


def padded(n_rows: int) -> int:
    """Return the padded number of rows of a user's table: above `n_rows`, and of few sizes."""
    unit = max(8, 1 << max(int(n_rows).bit_length() - 3, 0))
    return (n_rows // unit + 1) * unit


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSize:
    """The values that determine a user's shapes.

    Attributes:
        n_steps: the number of minibatches in an epoch.
        n_rows: the padded number of rows of the user's table.
        batch_size: the number of samples in a minibatch.
        epochs: the number of passes over the user's samples in all phases.
        gathers: whether a step covers only its minibatch's rows instead of all of a user's rows.
        together: the number of samples in a group of a positive and its negatives, if groups stay
            whole and a step covers all minibatches of an epoch. 0 if every minibatch is a step.
        uneven: whether users may have fewer minibatches than `n_steps`.
    """

    n_steps: int
    n_rows: int
    batch_size: int
    epochs: int
    gathers: bool
    together: int = 0
    uneven: bool = False


class Room(Protocol):
    """The number of users whose blocks fit where they are trained."""

    def users(self, size: BlockSize, n_users: int) -> int:
        """Return the maximum number of users of a block, given the users of its size."""

    def shrink(self, size: BlockSize, users: int) -> None:
        """Record that no more users than these fit."""


def buckets_of(
    samples: Samples,
    *,
    batch_size: int,
    epochs: int,
    gathers: bool,
    together: int = 0,
    coarse: int = 0,
    uneven: bool = False,
) -> Iterator[tuple[BlockSize, torch.Tensor]]:
    """Yield the users of each size, as their positions in the chunk, int64 (n_members,).

    All positions go to the device at once, so nothing waits for a copy of its own.

    Args:
        coarse: the number of items if tables have few sizes: 64 rows, four times as many and so on,
            and at most those of all items, or a single size for few samples. 0 for the sizes of
            `padded`.
        uneven: whether numbers of steps are rounded up to powers of two, or to the largest for few
            samples.
    """
    n_samples = samples.n_samples
    n_steps = np.ones_like(n_samples) if together else -(-n_samples // batch_size)
    n_rows = np.array([padded(n) for n in samples.n_rows.tolist()], dtype=np.int64)
    if coarse:
        whole = np.maximum(n_rows, padded(coarse))
        n_rows = np.minimum(
            whole, 4 ** np.maximum(3, np.ceil(np.log2(n_rows) / 2)).astype(np.int64)
        )
    if uneven:
        n_steps = 1 << np.ceil(np.log2(n_steps.clip(min=1))).astype(np.int64)
    most = n_samples.max(initial=1) if together else n_steps.max(initial=1) * batch_size
    if coarse and most * len(n_steps) <= _FEW_SAMPLES:
        n_rows[:] = n_rows.max(initial=0)
        n_steps[:] = n_steps.max(initial=1) if uneven else n_steps
    order = np.lexsort((n_rows, n_steps))
    sizes = np.stack([n_steps[order], n_rows[order]])
    ends = np.nonzero((sizes[:, 1:] != sizes[:, :-1]).any(0))[0] + 1
    there, bounds = torch.from_numpy(order).to(samples.item.device), [0, *ends, len(order)]
    for begin, end in pairwise(bounds):
        if begin < end:
            first = order[begin]
            size = BlockSize(
                n_steps=int(n_steps[first]),
                n_rows=int(n_rows[first]),
                batch_size=batch_size,
                epochs=epochs,
                gathers=gathers,
                together=together,
                uneven=uneven and int(n_steps[first]) > 1,
            )
            yield size, there[begin:end]


def blocks_of(
    chunk: Chunk,
    samples: Samples,
    members: torch.Tensor,
    size: BlockSize,
    *,
    seed: int,
    round_id: int,
    dtype: torch.dtype,
    block_users: int = BLOCK_USERS,
    together: bool = True,
) -> Iterator[Block]:
    """Yield blocks of users of one size, in their order.

    Args:
        members: users from `buckets_of`.
        block_users: the number of places in a block.
        together: whether to make the tables of several blocks at once, which is faster.
    """
    width = size.batch_size if size.gathers and size.n_steps > 1 else size.n_rows
    cells = block_users * size.epochs * size.n_steps * max(width, size.batch_size)
    at_once = max(1, _CELLS_AT_ONCE // cells) if together else 1
    for begin in range(0, len(members), at_once * block_users):
        part = members[begin : begin + at_once * block_users]
        group = _Group(chunk, samples, part, size, block_users, dtype)
        yield from group.blocks(*group.minibatches(seed=seed, round_id=round_id))


class _Group:
    """Make the tables of several blocks of one size together."""

    def __init__(
        self,
        chunk: Chunk,
        samples: Samples,
        members: torch.Tensor,
        size: BlockSize,
        block_users: int,
        dtype: torch.dtype,
    ) -> None:
        device = samples.item.device
        self._n_users, self._block_users = len(members), block_users
        self._samples, self._dtype, self._size = samples, dtype, size
        self._n_steps, self._batch_size = size.n_steps, size.batch_size
        places = -(-len(members) // block_users) * block_users
        # Padding is the first user of the chunk with no samples.
        real = torch.arange(places, device=device) < len(members)
        self._users = torch.nn.functional.pad(members, (0, places - len(members)))
        self._sizes = torch.where(
            real, (samples.pointers[1:] - samples.pointers[:-1])[self._users], 0
        )
        self._keys = chunk.user_keys[self._users]
        self._begin = samples.pointers[:-1][self._users]
        self._height = size.n_rows
        row = torch.arange(self._height, device=device)
        n_rows = (samples.row_pointers[1:] - samples.row_pointers[:-1])[self._users]
        self._there = (row < n_rows[:, None]) & real[:, None]
        where = samples.row_pointers[:-1][self._users][:, None] + row
        where = torch.where(self._there, where, 0)
        self._where = where
        self._item = torch.where(self._there, samples.item[where], chunk.n_items)
        self._label = torch.where(self._there, samples.label[where], 0.0).to(dtype)

    def minibatches(self, *, seed: int, round_id: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return rows and weights of all minibatches (see `Block`)."""
        if self._size.together:
            weights = [
                self._summed(stream_key(seed, Purpose.SHUFFLE, round_id, epoch))
                for epoch in range(self._size.epochs)
            ]
            return None, torch.stack(weights)[:, None]
        if self._n_steps == 1:
            # One minibatch has all samples, in any order.
            return None, (self._count() / self._sizes.clamp(min=1)[:, None])[None, None]
        gathers = self._size.gathers
        found = [
            self._epoch(stream_key(seed, Purpose.SHUFFLE, round_id, epoch), gathers)
            for epoch in range(self._size.epochs)
        ]
        index = torch.stack([index for index, _ in found]) if gathers else None
        return index, torch.stack([weight for _, weight in found])

    def _count(self) -> torch.Tensor:
        """Return the number of samples of each row, (places, R)."""
        return torch.where(self._there, self._samples.count[self._where], 0.0).to(self._dtype)

    def _summed(self, key: int) -> torch.Tensor:
        """Return the sum of rows' shares over their minibatches, (places, R).

        All minibatches but the last one are equally large, so only the last one's content depends
        on the order. Whole numbers are counted, and each is divided once.
        """
        size, together = self._size, self._size.together
        place = torch.arange(self._height, device=self._users.device)
        n_positives = torch.div(self._sizes, together, rounding_mode="floor")[:, None]
        order = self._shuffled(key, place, place < n_positives)
        n_last = (self._sizes.clamp(min=1) - 1) % size.batch_size + 1
        within = torch.arange(size.batch_size, device=place.device)
        at = (self._sizes - n_last).clamp(min=0)[:, None] + within
        there = at < self._sizes[:, None]
        group = torch.div(at, together, rounding_mode="floor").clamp(max=self._height - 1)
        positive, number = order.gather(1, group), at % together
        negative = n_positives + positive * (together - 1) + number - 1
        sample = self._begin[:, None] + torch.where(number == 0, positive, negative)
        row = self._samples.row[torch.where(there, sample, 0)]
        row = torch.where(there, row, self._height - 1)
        last = torch.zeros_like(self._label).scatter_add_(1, row, there.to(self._dtype))
        return (self._count() - last) / size.batch_size + last / n_last[:, None]

    def _shuffled(self, key: int, place: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Return the existing positions in a random order, with the missing ones after them."""
        streams = user_stream(key, self._keys)
        words = shift_right(mix(streams[:, None] + place), 22)
        mixed = sorted_rows(torch.where(there, (words << _PLACE_BITS) | place, _LAST))
        return mixed & ((1 << _PLACE_BITS) - 1)

    def _epoch(self, key: int, gathers: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows and weights of an epoch, (n_steps, places, M) each."""
        device, batch_size = self._users.device, self._batch_size
        n_places, width = len(self._users), self._n_steps * batch_size
        place = torch.arange(width, device=device)
        there = place < self._sizes[:, None]
        sample = self._begin[:, None] + self._shuffled(key, place, there)
        # The last row of a table is padding. Positions without a sample use it.
        padding = self._height - 1
        row = torch.where(there, self._samples.row[torch.where(there, sample, 0)], padding)
        row = row.view(n_places, self._n_steps, batch_size)
        total = self._minibatch_sizes().T[:, :, None]
        if not gathers:
            weight = torch.zeros(
                (n_places, self._n_steps, self._height), dtype=self._dtype, device=device
            )
            weight.scatter_add_(2, row, torch.ones_like(row, dtype=self._dtype))
            weight[:, :, padding] = 0.0
            return row, (weight / total.clamp(min=1)).transpose(0, 1)
        row = sorted_rows(row)
        first = torch.ones_like(row, dtype=torch.bool)
        torch.ne(row[:, :, 1:], row[:, :, :-1], out=first[:, :, 1:])
        slot = torch.cumsum(first, 2) - 1
        weight = torch.zeros_like(row, dtype=self._dtype)
        weight.scatter_add_(2, slot, (row != padding).to(self._dtype))
        # Samples of one row write the same row.
        distinct = torch.full_like(row, padding).scatter_(2, slot, row)
        offset = torch.arange(n_places, device=device) % self._block_users * self._height
        return (
            (distinct + offset[:, None, None]).transpose(0, 1),
            (weight / total.clamp(min=1)).transpose(0, 1),
        )

    def _minibatch_sizes(self) -> torch.Tensor:
        """Return the number of samples in every minibatch, int64 (n_steps, places)."""
        number = torch.arange(self._n_steps, device=self._users.device)[:, None]
        return (self._sizes[None] - number * self._batch_size).clamp(0, self._batch_size)

    def _shares(self) -> torch.Tensor:
        """Return the weight of each step's loss in a user's mean, (n_steps, places)."""
        if self._size.together:
            # The loss is a sum over minibatches, but their mean is reported.
            n_minibatches = -(-self._sizes // self._batch_size)
            return ((n_minibatches > 0).to(self._dtype) / n_minibatches.clamp(min=1))[None]
        return self._minibatch_sizes().to(self._dtype) / self._sizes.clamp(min=1)

    def blocks(self, index: torch.Tensor | None, weight: torch.Tensor) -> Iterator[Block]:
        """Yield the blocks. `index` and `weight` cover all places."""
        share, live = self._shares(), None
        if self._size.uneven:
            live = (share > 0).to(self._dtype)
            # Padding trains, as in other blocks.
            live[0] = 1.0
        for begin in range(0, len(self._users), self._block_users):
            part = slice(begin, begin + self._block_users)
            yield Block(
                users=self._users[part],
                n_users=min(self._n_users - begin, self._block_users),
                item=self._item[part],
                label=self._label[part],
                share=share[:, part],
                index=None if index is None else index[:, :, part].flatten(2),
                weight=weight[:, :, part].contiguous(),
                live=None if live is None else live[:, part],
            )
