"""How many users a block may have on a device: counted, not guessed.

A block's minibatch is trained on torch's meta device, whose tensors have shapes and no values,
and every tensor that is alive at once is counted, those that autograd saves included. So the
count holds for any algorithm, and follows every change of the trainer. It takes some hundredths
of a second for each size of users. What it cannot see is what libraries take for themselves: the
work space of matrix products and decompositions, and gaps between allocations.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.cohort import Chunk
from fedrec.training.blocks import BLOCK_USERS, BlockSize, blocks_of
from fedrec.training.samplers import Samples
from fedrec.training.trainer import Trainer

if TYPE_CHECKING:
    from fedrec.algorithms.grid import RoundSums
    from fedrec.algorithms.trained import TrainedAlgorithm


_META = torch.device("meta")
_STEPS_COUNTED = 2
"""Steps are alike, but the first one finds nothing left of the one before."""


class BlockRoom:
    """How many users' blocks fit some memory, in any round over the same items.

    Args:
        n_bytes: what blocks may take; the tables that all users start from and the sums are
            taken off it.

    Attributes:
        n_items: active items.
    """

    def __init__(
        self, algorithm: TrainedAlgorithm, start: RoundStart, sums: RoundSums, n_bytes: int
    ) -> None:
        shared = sum(values.nbytes for values in start.shared.values())
        # The trainer's tables are the shared ones with a row more.
        self._n_bytes = n_bytes - 2 * shared - sums.n_bytes
        self._algorithm, self._sums = algorithm, sums.shapes()
        self._start = _without_values(start)
        self._users: dict[BlockSize, int] = {}
        self.n_items = len(start.active)

    def users(self, size: BlockSize, n_users: int) -> int:
        """Return the most users of a block, a multiple of eight; eight where not even those fit.

        Args:
            n_users: how many there are; more than those need not be counted out.
        """
        known = self._users.get(size)
        if known is not None:
            return known
        for other, users in self._users.items():
            if users >= n_users and _is_within(size, other):
                return users
        needed = block_bytes(self._algorithm, self._start, self._sums, size, BLOCK_USERS)
        found = BLOCK_USERS * max(1, self._n_bytes // needed)
        self._users[size] = found
        return found

    def shrink(self, size: BlockSize, users: int) -> None:
        """Note that no more users than these fit, so that no later block has to find out."""
        for other, known in self._users.items():
            if _is_within(size, other):
                self._users[other] = min(known, users)
        self._users[size] = users


def _is_within(size: BlockSize, other: BlockSize) -> bool:
    """Return whether blocks of one size take no more memory than those of another."""
    return (
        size.n_rows <= other.n_rows
        and size.n_steps <= other.n_steps
        # A single step is over all rows.
        and (size.n_steps == 1) == (other.n_steps == 1)
    )


def _without_values(start: RoundStart) -> RoundStart:
    return replace(
        start,
        shared={name: values.to(_META) for name, values in start.shared.items()},
        active=start.active.to(_META),
        basis=None if start.basis is None else start.basis.to(_META),
    )


def block_bytes(
    algorithm: TrainedAlgorithm, start: RoundStart, sums: RoundSums, size: BlockSize, n_users: int
) -> int:
    """Return the most bytes of tensors that are alive at once while a block is trained.

    From the drawing of its minibatches to the sums; the users' samples and private tables, which
    are their chunk's, are not among them.
    """
    there = _without_values(start)
    n_items = len(start.active)
    chunk, samples = _users_of(size, n_users, n_items)
    private = {
        entry.name: torch.empty(
            entry.whole_shape(n_items=algorithm.n_items, n_users=n_users),
            dtype=start.dtype,
            device=_META,
        )
        for entry in algorithm.parameters
        if entry.private
    }
    loss = torch.empty(n_users, dtype=start.dtype, device=_META)
    clipped = torch.empty(n_users, dtype=torch.int64, device=_META)
    found = ChunkResult(private=dict(private), loss=loss, clipped=clipped)
    trainer, counted = Trainer(algorithm, there).shortened(), sums.shapes()
    with _LiveBytes() as live:
        for block in blocks_of(
            chunk,
            samples,
            torch.arange(n_users, device=_META),
            size,
            seed=algorithm.seed,
            round_id=start.round,
            dtype=start.dtype,
            block_users=n_users,
            together=False,
        ):
            # The steps left out are alive in `block`, as all steps' tables are.
            short = replace(block, share=block.share[:_STEPS_COUNTED])
            trainer.train_block(chunk, short, private, counted, found)
    return int(live.peak)


def _users_of(size: BlockSize, n_users: int, n_items: int) -> tuple[Chunk, Samples]:
    """Return users of one size and their samples, without values."""
    n_samples = size.n_steps * size.batch_size
    pointers = torch.empty(n_users + 1, dtype=torch.int64, device=_META)
    users = torch.empty(n_users, dtype=torch.int64, device=_META)
    items = torch.empty(n_users * size.n_rows, dtype=torch.int64, device=_META)
    chunk = Chunk(
        user_index=users,
        user_keys=users,
        pointers=pointers,
        positives=items,
        excluded_pointers=pointers,
        excluded=items,
        n_items=n_items,
        n_steps=size.n_steps,
    )
    samples = Samples(
        row=torch.empty(n_users * n_samples, dtype=torch.int64, device=_META),
        pointers=pointers,
        item=items,
        label=torch.empty(len(items), device=_META),
        count=torch.empty(len(items), device=_META),
        row_pointers=pointers,
        n_rows=np.full(n_users, size.n_rows - 1),
        n_samples=np.full(n_users, n_samples),
    )
    return chunk, samples


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own gap
    """Counts the memory of what is made, for as long as somebody holds it.

    Attributes:
        peak: the most bytes at any moment.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own gap
        self.peak: int = 0
        self._now: int = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count what it made; views and writes in place make nothing."""
        given = {} if kwargs is None else kwargs
        result = func(*args, **given)
        taken = {id(storage) for storage in _storages([args, given])}
        for storage in _storages(result):
            if id(storage) not in taken and id(storage) not in self._alive:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()

        def forget(_: object) -> None:
            del self._alive[key]
            self._now -= size

        # torch keeps one Python object for a storage as long as the storage lives.
        self._alive[key] = weakref.ref(storage, forget)
        self._now += size
        self.peak = max(self.peak, self._now)


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [
        value.untyped_storage() for value in tree_leaves(tree) if isinstance(value, torch.Tensor)
    ]
