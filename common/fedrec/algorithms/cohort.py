"""Cohorts of users: their interactions in one table, and the changes that training produces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.tensor_products import one_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some users of similar activity, on the training device.

    Attributes:
        user_index: positions of the users in the cohort, int64 (n_users,).
        user_keys: their identities for random streams, int64 (n_users,).
        pointers: int64 (n_users + 1,), the start of each user's positives.
        positives: active positions of their training items, ascending within a user.
        excluded_pointers, excluded: items that are never drawn as negatives, in the same form.
        n_items: number of active items.
        n_steps: the largest number of steps (minibatches of an epoch) of any user in the chunk.
    """

    user_index: torch.Tensor
    user_keys: torch.Tensor
    pointers: torch.Tensor
    positives: torch.Tensor
    excluded_pointers: torch.Tensor
    excluded: torch.Tensor
    n_items: int
    n_steps: int

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.user_index)

    @property
    def sizes(self) -> torch.Tensor:
        """Number of training items of each user, int64 (n_users,)."""
        return self.pointers[1:] - self.pointers[:-1]

    @property
    def owner(self) -> torch.Tensor:
        """The user of each of `positives`, int64.

        Their number is known, so this needs no device round trip.
        """
        users = torch.arange(self.n_users, device=self.positives.device)
        return users.repeat_interleave(self.sizes, output_size=len(self.positives))

    def summed(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum of each user's items' rows, (n_users, width)."""
        if not len(self.positives):
            return rows.new_zeros((self.n_users, rows.shape[1]))
        # With several threads, this once crashed a process after the number of threads had changed.
        # A single thread computes it without OpenMP, so such a change starts and ends no threads.
        with one_thread():
            return torch.nn.functional.embedding_bag(
                self.positives, rows, self.pointers, mode="sum", include_last_offset=True
            )

    def halves(self) -> tuple[Chunk, Chunk]:
        """Split it into its first users and the others. This reads two numbers from the device."""
        middle = self.n_users // 2
        end, excluded_end = (
            int(pointers[middle]) for pointers in (self.pointers, self.excluded_pointers)
        )
        first = replace(
            self,
            user_index=self.user_index[:middle],
            user_keys=self.user_keys[:middle],
            pointers=self.pointers[: middle + 1],
            positives=self.positives[:end],
            excluded_pointers=self.excluded_pointers[: middle + 1],
            excluded=self.excluded[:excluded_end],
        )
        second = replace(
            self,
            user_index=self.user_index[middle:],
            user_keys=self.user_keys[middle:],
            pointers=self.pointers[middle:] - end,
            positives=self.positives[end:],
            excluded_pointers=self.excluded_pointers[middle:] - excluded_end,
            excluded=self.excluded[excluded_end:],
        )
        return first, second


def _rows_of(
    pointers: NDArray[np.int64], values: NDArray[np.unsignedinteger], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pointers and values of some rows of a compressed table."""
    sizes = pointers[rows + 1] - pointers[rows]
    out = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(sizes, out=out[1:])
    where = np.arange(out[-1]) - np.repeat(out[:-1], sizes) + np.repeat(pointers[rows], sizes)
    return out, values[where].astype(np.int64)


_USERS_AT_ONCE = 1 << 14
_FEW_STEPS = 1 << 16
"""A device trains this many minibatches faster than it starts another chunk."""


def _compress(
    users: UserSplit, position: NDArray[np.int64], held: Sequence[NDArray[np.int64]] = ()
) -> tuple[NDArray[np.int64], NDArray[np.unsignedinteger]]:
    """Return the pointers and positions of users' items, ascending within a user.

    Beyond the result, it needs 48 bytes for each item of 16,384 users, however many there are.

    Args:
        position: the position of each item, or -1 if it's left out, with -1 at its end.
        held: more items, one per user, or -1 for none.
    """
    n_users = len(users)
    pointers = np.zeros(n_users + 1, dtype=np.int64)
    # Positions in the smallest type that holds them. Pages that are never written take no memory.
    smallest = np.min_scalar_type(len(position))
    found = np.empty(users.n_train + n_users * len(held), dtype=smallest)
    for begin in range(0, n_users, _USERS_AT_ONCE):
        part = slice(begin, min(n_users, begin + _USERS_AT_ONCE))
        some = np.arange(part.stop - begin)
        starts = users.train_indptr[begin : part.stop + 1]
        owner = np.concatenate([np.repeat(some, np.diff(starts)), np.tile(some, len(held))])
        items = [users.train_items[starts[0] : starts[-1]], *(own[part] for own in held)]
        own = position[np.concatenate(items)]
        kept = own >= 0
        owner, own = owner[kept], own[kept]
        ends = pointers[begin] + np.cumsum(np.bincount(owner, minlength=len(some)))
        pointers[begin + 1 : part.stop + 1] = ends
        # One combined number is sorted faster than two keys.
        keys = np.sort(owner * len(position) + own)
        found[pointers[begin] : ends[-1]] = keys % len(position)
    return pointers, found[: pointers[-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortTables:
    """The tables of a cohort that training reads. Users are stored one after the other.

    Attributes:
        user_keys: users' identities for random streams, int64 (n_users,).
        pointers: the start of each user's positives, int64 (n_users + 1,).
        positives: active positions of their training items, ascending within a user, unsigned
            integers of the smallest type that holds them.
        excluded_pointers, excluded: items that are never drawn as negatives, in the same form.
        n_items: number of active items.
    """

    user_keys: NDArray[np.int64]
    pointers: NDArray[np.int64]
    positives: NDArray[np.unsignedinteger]
    excluded_pointers: NDArray[np.int64]
    excluded: NDArray[np.unsignedinteger]
    n_items: int

    def part(self, begin: int, end: int) -> CohortTables:
        """Return the tables of neighbouring users, from `begin` up to but not including `end`."""
        pointers = self.pointers[begin : end + 1]
        excluded = self.excluded_pointers[begin : end + 1]
        return CohortTables(
            user_keys=self.user_keys[begin:end],
            pointers=pointers - pointers[0],
            positives=self.positives[pointers[0] : pointers[-1]],
            excluded_pointers=excluded - excluded[0],
            excluded=self.excluded[excluded[0] : excluded[-1]],
            n_items=self.n_items,
        )

    def chunk_of(
        self, members: NDArray[np.int64], device: torch.device, *, n_steps: int = 0
    ) -> Chunk:
        """Return some users, int64 (n_chosen,), as a chunk, including users that cannot train."""
        pointers, positives = _rows_of(self.pointers, self.positives, members)
        excluded_pointers, excluded = _rows_of(self.excluded_pointers, self.excluded, members)

        def move(values: NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        return Chunk(
            user_index=move(members),
            user_keys=move(self.user_keys[members]),
            pointers=move(pointers),
            positives=move(positives),
            excluded_pointers=move(excluded_pointers),
            excluded=move(excluded),
            n_items=self.n_items,
            n_steps=n_steps,
        )


class Cohort:
    """All users of one party, ready for training.

    Args:
        users: their interactions, split.
        active: item rows that take part, ascending int64 (n_active,).
        n_items: rows of the whole catalogue.
        exclude_held_out: never draw the validation and test items as negatives (the leaking pool of
            the papers' code).
        needs_negatives: whether training draws negatives, so that users that hold every item cannot
            train.
        left_out: bool (n_active,): active items on which no user trains, as if they had no holders.
    """

    def __init__(
        self,
        users: UserSplit,
        *,
        active: NDArray[np.int64],
        n_items: int,
        exclude_held_out: bool,
        needs_negatives: bool,
        left_out: NDArray[np.bool_] | None = None,
    ) -> None:
        self._needs_negatives = needs_negatives
        self.users = users
        self.active = active
        position = np.full(n_items + 1, -1, dtype=np.int64)
        position[active] = np.arange(len(active))
        if left_out is not None:
            position[active[left_out]] = -1
        pointers, positives = _compress(users, position)
        excluded_pointers, excluded = pointers, positives
        if exclude_held_out:
            held = (users.validation_items, users.test_items)
            excluded_pointers, excluded = _compress(users, position, held)
        self.tables = CohortTables(
            user_keys=users.user_keys(),
            pointers=pointers,
            positives=positives,
            excluded_pointers=excluded_pointers,
            excluded=excluded,
            n_items=len(active),
        )

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.tables.user_keys)

    @property
    def party_key(self) -> int:
        """The smallest identity of its users, which identifies the party in random streams."""
        keys = self.tables.user_keys
        return int(keys.min()) if len(keys) else 0

    @property
    def n_positives(self) -> NDArray[np.int64]:
        """Number of active training items of every user, int64 (n_users,)."""
        return np.diff(self.tables.pointers)

    def able(self, participating: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """Return which of the participating users can train, bool (n_users,).

        A user can if it has a training item among the active ones and, if negatives are drawn, at
        least one item left to draw.
        """
        found = self.n_positives > 0
        if self._needs_negatives:
            found &= np.diff(self.tables.excluded_pointers) < len(self.active)
        return found if participating is None else found & participating

    def levels(
        self,
        participating: NDArray[np.bool_] | None,
        steps: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    ) -> Iterator[tuple[NDArray[np.int64], int]]:
        """Yield the participating users by level of activity, with the largest number of steps.

        Numbers of steps within the same power of two make a level, so a chunk's memory is little
        more than its users need.

        Args:
            steps: returns users' numbers of steps from their numbers of positives.
        """
        usable = self.able(participating)
        level = np.ceil(np.log2(np.maximum(steps(self.n_positives), 1))).astype(np.int64)
        for value in np.unique(level[usable]):
            yield np.nonzero(usable & (level == value))[0], 1 << int(value)

    def chunks(
        self,
        *,
        participating: NDArray[np.bool_] | None,
        steps: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        bytes_per_user: Callable[[int, int], int],
        memory_bytes: int,
        device: torch.device,
    ) -> Iterator[Chunk]:
        """Yield the participating users in chunks of one level. See `levels`.

        On a device, few users make one chunk, so that it starts fewer operations.

        Args:
            bytes_per_user: a function that takes the number of active items and the number of
                steps, and returns the bytes needed per user.
        """
        levels = list(self.levels(participating, steps))
        if device.type != "cpu" and levels:
            members, most = np.sort(np.concatenate([level for level, _ in levels])), levels[-1][1]
            needed = bytes_per_user(len(self.active), most) * len(members)
            if needed <= memory_bytes and most * len(members) <= _FEW_STEPS:
                levels = [(members, most)]
        for members, n_steps in levels:
            each = bytes_per_user(len(self.active), n_steps)
            at_once = max(1, memory_bytes // max(each, 1))
            for start in range(0, len(members), at_once):
                yield self.chunk_of(members[start : start + at_once], device, n_steps=n_steps)

    def chunk_of(
        self, members: NDArray[np.int64], device: torch.device, *, n_steps: int = 0
    ) -> Chunk:
        """Return some users as a chunk. See `CohortTables.chunk_of`."""
        return self.tables.chunk_of(members, device, n_steps=n_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChange:
    """The changes of some users.

    Attributes:
        item: active item positions of the users' rows, n_items for padding, int64 (n_users,
            n_rows).
        rows: changed rows by tensor, float (n_users, n_rows, width).
        whole: changes of tensors without an item axis, by name, float (n_users, size).
        idle: by tensor that decays as a whole, the change that the users' rows would have had
            untouched, like `rows`.
        loss: the users' mean losses, (n_users,). A loss that is not finite is a divergence, even if
            every value is finite. None if unknown.
        steps: number of steps of each user, int64 (n_users,). None if nothing decays as a whole.
        weight: the multiplicity of each user's rounded values by tensor, int64 (n_users,). The
            default is 1.
    """

    item: torch.Tensor
    rows: Mapping[str, torch.Tensor]
    whole: Mapping[str, torch.Tensor]
    weight: Mapping[str, torch.Tensor]
    idle: Mapping[str, torch.Tensor] = field(default_factory=dict)
    loss: torch.Tensor | None = None
    steps: torch.Tensor | None = None


class ChangeSink(Protocol):
    """Receives changes block by block."""

    def add_block(self, change: BlockChange) -> torch.Tensor:
        """Add the users' changes. Return the number of clipped values of each user, (n_users,)."""


def idle_change(rows: torch.Tensor, shrunk: torch.Tensor) -> torch.Tensor:
    """Return the change of rows that take no steps.

    Adding it and subtracting it again gives the same bits: each entry is a single product.

    Args:
        rows: the result of `whole_decay.decaying` for them, (n_users or n_steps or 1, n_rows, ...).
        shrunk: entries of `whole_decay.shrinking`, (n_users or n_steps,).
    """
    return rows * shrunk.view(-1, *[1] * (rows.dim() - 1))
