"""Train locally for every algorithm and device, in blocks of users that fit the memory.

The number of users in a block on a device is counted, not guessed. A block's minibatch is trained
on torch's meta device, whose tensors have shapes but no values. All tensors that are alive at once
are counted, including those that autograd saves. The count therefore holds for any algorithm and
follows every change of the trainer. It takes some hundredths of a second for each size of users. It
misses the memory of libraries: the work space of matrix products and decompositions, and gaps
between allocations.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.cohort import ChangeSink, Chunk
from fedrec.algorithms.optimisers import Adam, Sgd
from fedrec.errors import SettingsError
from fedrec.training.blocks import (
    BLOCK_USERS,
    Block,
    BlockSize,
    Room,
    blocks_of,
    buckets_of,
)
from fedrec.training.samples import Samples, draw_samples, with_every_row
from fedrec.training.trained_block import TrainedBlock
from fedrec.training.training_round import TrainingRound

if TYPE_CHECKING:
    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums
    from fedrec.algorithms.trained import TrainedAlgorithm
    from fedrec.training.blocks import BlockSize

Tensors = dict[str, torch.Tensor]

_REMEDY = (
    "Lower client.device_memory_mib if private tables use the memory, free the device's memory "
    '(see `nvidia-smi`), lower algorithm.batch_size, or set client.device = "cpu".'
)


def in_halves(
    chunk: Chunk, private: Tensors, train: Callable[[Chunk, Tensors], ChunkResult]
) -> ChunkResult:
    """Train a chunk whose samples don't fit as two chunks.

    None of its changes were added to a sum yet, and a user's samples are the same in any chunk.

    Raises:
        SettingsError: the chunk has no more users than one block.
    """
    if chunk.n_users <= BLOCK_USERS:
        raise SettingsError(
            f"The samples of {chunk.n_users} users don't fit in the memory of "
            f"{chunk.user_index.device}, and a chunk can't be smaller.",
            remedy=_REMEDY,
        )
    _give_back(chunk.user_index.device)
    first, second = chunk.halves()
    found = [
        train(first, {name: values[: first.n_users] for name, values in private.items()}),
        train(second, {name: values[first.n_users :] for name, values in private.items()}),
    ]
    return ChunkResult(
        private={
            name: torch.cat([part.private[name] for part in found]) for name in found[0].private
        },
        loss=torch.cat([part.loss for part in found]),
        clipped=torch.cat([part.clipped for part in found]),
    )


def smaller(block_users: int, size: BlockSize, chunk: Chunk, problem: str) -> int:
    """Return half as many users for a block, as a multiple of eight.

    Raises:
        SettingsError: there were only eight.
    """
    device = chunk.user_index.device
    if block_users <= BLOCK_USERS:
        raise SettingsError(
            f"A block of {block_users} users, each with {size.n_rows} item rows and minibatches of "
            f"{size.n_steps} x {size.batch_size} samples, doesn't fit in the memory of {device}: "
            f"{problem}",
            remedy=_REMEDY,
        )
    _give_back(device)
    return max(BLOCK_USERS, block_users // 2 // BLOCK_USERS * BLOCK_USERS)


def _give_back(device: torch.device) -> None:
    """Free torch's cached memory, whose pieces may be too small for the next try."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class Trainer:
    """Train chunks of users in one round of an algorithm.

    Args:
        algorithm: the algorithm to train.
        start: the model that all users start from. Its tensors decide the device and the
            floating-point type.
        room: the number of users whose blocks fit the device. None for blocks of 8, which a
            processor's results depend on.
    """

    def __init__(
        self, algorithm: TrainedAlgorithm, start: RoundStart, room: Room | None = None
    ) -> None:
        self._algorithm, self._start = algorithm, start
        self._room = room
        self._round = TrainingRound(algorithm, start)

    def train(self, chunk: Chunk, private: Tensors, sums: ChangeSink) -> ChunkResult:
        """Train a chunk's users and hand their changes over.

        Args:
            private: the users' private tensors, with n_users as the first axis. They are changed on
                a CPU, and unchanged on a device.
        """
        try:
            samples, kept = self._prepared(chunk, private)
        except torch.OutOfMemoryError:
            samples = None
        if samples is None:
            return in_halves(chunk, private, lambda part, own: self.train(part, own, sums))
        held = chunk.sizes
        found = ChunkResult(
            private=kept,
            loss=held.new_zeros(len(held), dtype=self._start.dtype),
            clipped=torch.zeros_like(held),
        )
        # Lengths are on the host. Nothing else of the loop is.
        for size, members in self._buckets(chunk, samples):
            most = BLOCK_USERS if self._room is None else self._room.users(size, len(members))
            block_users = min(most, -(-len(members) // BLOCK_USERS) * BLOCK_USERS)
            while len(members):
                n_done, problem = self._train_blocks(
                    chunk, samples, members, size, block_users, private, sums, found
                )
                members = members[n_done:]
                if problem:
                    block_users = smaller(block_users, size, chunk, problem)
                    if self._room is not None:
                        self._room.shrink(size, block_users)
        return replace(found, private=private | kept)

    def _buckets(self, chunk: Chunk, samples: Samples) -> list[tuple[BlockSize, torch.Tensor]]:
        """Return the users of each size, of few sizes if a device has room for all users."""
        found = partial(
            buckets_of,
            samples,
            batch_size=self._algorithm.settings.batch_size,
            epochs=self.epochs,
            gathers=self.gathers,
            together=self.together,
        )
        if self._room is not None:
            few = list(found(coarse=chunk.n_items, uneven=self.may_skip))
            if all(self._room.users(size, len(own)) >= len(own) for size, own in few):
                return few
        return list(found())

    def _prepared(self, chunk: Chunk, private: Tensors) -> tuple[Samples, Tensors]:
        """Return a chunk's samples, and the tensors that training writes.

        On a CPU, these are the caller's tensors. On a device they are copies, because a block that
        doesn't fit is trained again.
        """
        algorithm = self._algorithm
        samples = draw_samples(
            chunk,
            seed=algorithm.shapes.seed,
            round_id=self._start.round,
            negatives_per_positive=algorithm.settings.negatives_per_positive,
        )
        noisy = any(isinstance(each, Sgd) and each.noise for each in self._round.optimisers)
        if noisy or self._round.steps_every_row:
            samples = with_every_row(samples, chunk.n_items)
        own = self._round.own
        names = self._round.written | {algorithm.kept_scores, own.flag, *own.copied}
        kept = {
            name: private[name] if self._room is None else private[name].clone()
            for name in private.keys() & names
        }
        own.begin(kept)
        return samples, kept

    def _train_blocks(
        self,
        chunk: Chunk,
        samples: Samples,
        members: torch.Tensor,
        size: BlockSize,
        block_users: int,
        private: Tensors,
        sums: ChangeSink,
        found: ChunkResult,
    ) -> tuple[int, str]:
        """Train users of one size. Return the number that finished, and the reason for stopping.

        Returning from this function frees a block's memory, including that of its error.
        """
        n_done = 0
        try:
            for block in blocks_of(
                chunk,
                samples,
                members,
                size,
                seed=self._algorithm.shapes.seed,
                round_id=self._start.round,
                dtype=self._start.dtype,
                block_users=block_users,
                together=self._room is None,
            ):
                self.train_block(chunk, block, private, sums, found)
                n_done += block.n_users
        except torch.OutOfMemoryError as error:
            return n_done, str(error) or "out of memory"
        return n_done, ""

    def train_block(
        self, chunk: Chunk, block: Block, private: Tensors, sums: ChangeSink, found: ChunkResult
    ) -> None:
        """Train a block's users and record the results, without reading from the device.

        Args:
            found: receives losses, clipped values and the parts of `private` that training writes.
        """
        trained = TrainedBlock(self._round, chunk, block, private)
        own = block.users[: block.n_users]
        loss = trained.run()[: block.n_users]
        held = chunk.sizes
        # After running out of memory, the retry writes the same values again. The sums come last,
        # and take a block as a whole or not at all.
        trained.keep(found.private)
        change = trained.change(held, found.private)
        found.loss[own] = loss
        found.clipped[own] = sums.add_block(change)

    @property
    def epochs(self) -> int:
        """The number of passes over a user's samples, over all phases."""
        return sum(phase.epochs for phase in self._round.phases)

    @property
    def gathers(self) -> bool:
        """Whether a step covers only its minibatch's rows instead of all of a user's rows."""
        return not self._round.steps_every_row and not any(
            isinstance(each, Adam) or each.decay or (isinstance(each, Sgd) and each.noise)
            for each in self._round.optimisers
        )

    @property
    def together(self) -> int:
        """The same value as in `BlockSize`."""
        sums = any(phase.sums_minibatches for phase in self._round.phases)
        return 1 + self._algorithm.settings.negatives_per_positive if sums else 0

    @property
    def may_skip(self) -> bool:
        """Whether a user may skip the last steps of an epoch.

        Rates that shrink with each step are the same for all users, so that a phase with them has
        to be over with the first epoch.
        """
        return not self.together and all(
            phase.epochs == 1 or not isinstance(by, Sgd) or by.factor == 1
            for phase in self._round.phases
            for by in phase.optimisers
        )

    def shortened(self) -> Trainer:
        """Return a trainer with one epoch per phase, which has the same peak memory."""
        found = copy(self)
        found._round = copy(self._round)
        found._round.phases = tuple(replace(phase, epochs=1) for phase in self._round.phases)
        return found


_META = torch.device("meta")
_STEPS_COUNTED = 2
"""Steps are alike, except that the first one has no memory of an earlier step."""


class BlockRoom:
    """Count the users whose blocks fit some memory, in any round over the same items.

    Args:
        n_bytes: the memory for blocks. The tables of the model and the sums are subtracted from it.

    Attributes:
        n_items: the number of active items.
    """

    def __init__(
        self, algorithm: TrainedAlgorithm, start: RoundStart, sums: RoundSums, n_bytes: int
    ) -> None:
        shared = sum(values.nbytes for values in start.shared.values())
        # The trainer's tables are the shared ones with one more row.
        self._n_bytes = n_bytes - 2 * shared - sums.n_bytes
        self._algorithm, self._sums = algorithm, sums.shapes()
        self._start = _without_values(start)
        self._users: dict[BlockSize, int] = {}
        self.n_items = len(start.active)

    def users(self, size: BlockSize, n_users: int) -> int:
        """Return the maximum number of users of a block, a multiple of eight and at least eight.

        Args:
            n_users: the number of users. More than those need not be counted.
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
        """Record that no more users than these fit, so that later blocks needn't find out again."""
        for other, known in self._users.items():
            if _is_within(size, other):
                self._users[other] = min(known, users)
        self._users[size] = users


def _is_within(size: BlockSize, other: BlockSize) -> bool:
    """Return whether blocks of one size use at most the memory of those of another."""
    return (
        size.n_rows <= other.n_rows
        and size.n_steps <= other.n_steps
        # A single step covers all rows.
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
    """Return the peak bytes of tensors while a block is trained.

    The count runs from the drawing of its minibatches to the sums. It leaves out the users' samples
    and private tables, which belong to their chunk.
    """
    there = _without_values(start)
    n_items = len(start.active)
    chunk, samples = _users_of(size, n_users, n_items)
    private = {
        entry.name: torch.empty(
            entry.whole_shape(n_items=algorithm.shapes.n_items, n_users=n_users),
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
            seed=algorithm.shapes.seed,
            round_id=start.round,
            dtype=start.dtype,
            block_users=n_users,
            together=False,
        ):
            # The skipped steps are alive in `block`, as are all steps' tables.
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
    """Count the memory of new tensors while they are referenced.

    Attributes:
        peak: the largest number of bytes at any moment.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own gap
        self.peak: int = 0
        self._now: int = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count the memory it allocates.

        Views and writes in place allocate none.
        """
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

        # torch keeps one Python object for a storage while the storage lives.
        self._alive[key] = weakref.ref(storage, forget)
        self._now += size
        self.peak = max(self.peak, self._now)


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [
        value.untyped_storage() for value in tree_leaves(tree) if isinstance(value, torch.Tensor)
    ]
