"""Local training, for every algorithm and device: users in blocks, autograd on touched rows.

An algorithm declares its parameters, its phases and a loss; here is what becomes of them. A user
has a copy of the rows that it touches in the round, of its own parameters and of the shared
network. Every minibatch is differentiated for a whole block of users at once, each with a loss of
its own, and every user's copy is moved as if it had an optimiser of its own. What changed is
handed over user by user to be clipped, rounded and summed.

Where an update structure stands in for whole rows, what is trained is A (rows x width) with
row = Q_row + A B: Q and B stay, and A's step is multiplied with sqrt(width / dim), the
structure's `gradient_scale`.

Letters: B users of a block, R rows of a user, M rows of a minibatch.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.batch import Batch, Values
from fedrec.algorithms.optimisers import Adam, Optimiser, Phase
from fedrec.algorithms.trained import MOST_SAMPLES
from fedrec.training.blocks import BLOCK_USERS, Block, BlockSize, blocks_of, buckets_of
from fedrec.training.changes import BlockChange, ChangeSink
from fedrec.training.out_of_memory import in_halves, smaller
from fedrec.training.samplers import Samples, draw_samples

if TYPE_CHECKING:
    from fedrec.algorithms.trained import TrainedAlgorithm
    from fedrec.training.block_memory import BlockRoom
    from fedrec.training.cohort import Chunk

__all__ = ["Trainer"]

Tensors = dict[str, torch.Tensor]

_MEAN_KEPT, _SQUARE_KEPT, _SMALL = 0.9, 0.999, 1e-8
"""torch.optim.Adam's defaults: betas and eps."""


class Trainer:
    """Trains chunks of users in one round of an algorithm.

    Args:
        algorithm: what is trained.
        start: what all users start from; its tensors decide device and floating-point type.
        room: how many users' blocks fit the device; None for blocks of 8, to which a processor's
            results belong.
    """

    def __init__(
        self, algorithm: TrainedAlgorithm, start: RoundStart, room: BlockRoom | None = None
    ) -> None:
        self._algorithm, self._start = algorithm, start
        self._room = room
        self._parameters = {entry.name: entry for entry in algorithm.parameters}
        self._is_rows = {
            name for name, entry in self._parameters.items() if entry.scope.endswith("rows")
        }
        self._phases = algorithm.phases(start.scalars)
        self._moved = {
            name
            for phase in self._phases
            for optimiser in phase.optimisers
            for name in optimiser.rates
        }
        # One row more, of zeros, for the places of a table without an item.
        self._tables = {
            name: torch.cat([values, values.new_zeros((1, *values.shape[1:]))])
            for name, values in start.shared.items()
            if name in self._is_rows
        }
        self._low = (
            {name for name in self._moved if self._parameters[name].structured}
            if start.basis is not None
            else set()
        )

    def train(self, chunk: Chunk, private: Tensors, sums: ChangeSink) -> ChunkResult:
        """Train a chunk's users and hand their changes over.

        Args:
            private: the users' private tensors, first axis n_users; they are left as they are.
        """
        try:
            samples, kept = self._prepared(chunk, private)
        except torch.OutOfMemoryError:
            samples = None
        if samples is None:
            return in_halves(chunk, private, lambda part, own: self.train(part, own, sums))
        held = chunk.pointers[1:] - chunk.pointers[:-1]
        found = ChunkResult(
            private=kept,
            loss=held.new_zeros(len(held), dtype=self._start.dtype),
            clipped=torch.zeros_like(held),
        )
        # Lengths are on the host; nothing else of the loop is.
        for size, members in buckets_of(
            samples,
            batch_size=self._algorithm.batch_size,
            epochs=self.epochs,
            gathers=self.gathers,
        ):
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

    def _prepared(self, chunk: Chunk, private: Tensors) -> tuple[Samples, Tensors]:
        """Return a chunk's samples, and its own copies of what training writes."""
        algorithm = self._algorithm
        samples = draw_samples(
            chunk,
            seed=algorithm.seed,
            round_id=self._start.round,
            negatives_per_positive=algorithm.negatives_per_positive,
        )
        return samples, {
            name: values.clone()
            for name, values in private.items()
            if name in self._moved or name == algorithm.kept_scores
        }

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
        """Train users of one size; return how many came through, and why no more.

        What memory a block took is given back by leaving here, its error included.
        """
        n_done = 0
        try:
            for block in blocks_of(
                chunk,
                samples,
                members,
                size,
                seed=self._algorithm.seed,
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
        """Train a block's users and note what came of it; nothing is read from the device.

        Args:
            found: takes losses, clipped values and what of `private` training writes.
        """
        trained = _TrainedBlock(self, chunk, block, private)
        own = block.users[: block.n_users]
        loss = trained.run()[: block.n_users]
        held = chunk.pointers[1:] - chunk.pointers[:-1]
        change = trained.change(held)
        # Who runs out of memory here writes all of this once more, the same values; the sums come
        # last, and take a block as a whole or not at all.
        trained.keep(found.private)
        found.loss[own] = loss
        found.clipped[own] = sums.add_block(change)

    @property
    def epochs(self) -> int:
        """Passes over a user's samples, over all phases."""
        return sum(phase.epochs for phase in self._phases)

    @property
    def gathers(self) -> bool:
        """Whether a step is over its minibatch's rows only, and not over all of a user's."""
        return not any(
            optimiser.moves_untouched for phase in self._phases for optimiser in phase.optimisers
        )

    def shortened(self) -> Trainer:
        """Return a trainer whose phases have one epoch each: it takes the same memory at once."""
        found = copy(self)
        found._phases = tuple(replace(phase, epochs=1) for phase in self._phases)
        return found


class _TrainedBlock:
    """A block's users while they train.

    Attributes:
        local: every moved parameter's own copy: rows (B, R, ...), others (B, ...); of rows for
            which a structure stands in, A.
    """

    def __init__(self, trainer: Trainer, chunk: Chunk, block: Block, private: Tensors) -> None:
        self._of, self._block, self._chunk = trainer, block, chunk
        self._algorithm, self._start = trainer._algorithm, trainer._start
        self._fixed: Tensors = {}
        self.local: Tensors = {}
        self._members: torch.Tensor | None = None
        self._basis = self._own_basis()
        shape = block.item.shape
        # Places without an item read the first one's row of a private table.
        self._item = torch.where(block.item < chunk.n_items, block.item, block.item[:, :1])
        self._item = self._item.clamp(max=max(chunk.n_items - 1, 0))
        for name, entry in trainer._parameters.items():
            if name == self._algorithm.kept_scores:
                continue
            if name in trainer._low:
                width = self._algorithm.structure.width
                values = block.label.new_zeros((*shape, width))
            elif entry.scope == "rows":
                if name not in trainer._moved:
                    continue
                values = trainer._tables[name].index_select(0, block.item.view(-1))
                values = values.view(*shape, *entry.shape)
            elif entry.scope == "own_rows":
                where = self._start.active[self._item]
                values = private[name][block.users[:, None], where]
            elif entry.scope == "own":
                values = private[name].index_select(0, block.users)
            elif entry.scope == "scalar":
                values = block.label.new_full((shape[0],), self._start.scalars[name])
            else:
                values = self._start.shared[name].expand(shape[0], *entry.shape)
            if name in trainer._moved:
                self.local[name] = values.clone()
            elif entry.scope == "own_rows":
                self.local[name] = values
            else:
                self._fixed[name] = values

    def _own_basis(self) -> torch.Tensor | None:
        """Return B of every user of the block, (B or 1, width, dim); rows nobody trains are 0."""
        basis = self._start.basis
        if basis is None or not self._of._low:
            return None
        self._members = members = self._algorithm.structure.members(
            self._algorithm.seed,
            self._start.round,
            self._chunk.user_keys.index_select(0, self._block.users),
            self._start.party_key,
        )
        own = basis.expand(len(self._block.users), -1, -1)
        return own if members is None else own * members.to(basis.dtype)[:, :, None]

    # The loop.

    def run(self) -> torch.Tensor:
        """Train; return the mean loss of each user over all its samples, (B,)."""
        block = self._block
        live = block.label.new_ones(len(block.users))
        total, epoch = torch.zeros_like(live), 0
        for phase in self._of._phases:
            moments = self._moments(phase)
            since, mean, n_steps = torch.zeros_like(live), torch.zeros_like(live), 0
            for within in range(phase.epochs):
                for index, weight, share in block.minibatches(epoch):
                    loss = self._minibatch(phase, moments, n_steps, index, weight, live)
                    total += loss * share
                    since += loss
                    n_steps += 1
                epoch += 1
                if phase.tolerance:
                    last, mean = mean, since / n_steps
                    if within:
                        live = live * ((mean - last).abs() >= phase.tolerance * last.abs())
        return total / epoch

    def _moments(self, phase: Phase) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return {
            name: (torch.zeros_like(self.local[name]), torch.zeros_like(self.local[name]))
            for optimiser in phase.optimisers
            if isinstance(optimiser, Adam)
            for name in optimiser.rates
        }

    def _minibatch(
        self,
        phase: Phase,
        moments: dict[str, tuple[torch.Tensor, torch.Tensor]],
        n_before: int,
        index: torch.Tensor | None,
        weight: torch.Tensor,
        live: torch.Tensor,
    ) -> torch.Tensor:
        """Take a minibatch's steps; return the loss before them, (B,)."""
        label = self._block.label
        if index is not None:
            label = label.view(-1).index_select(0, index).view(weight.shape)
        batch = Batch(label=label, weight=weight)
        first: torch.Tensor | None = None
        for step in phase.steps:
            loss, gradients = self._gradients(step, phase.name, index, batch, live)
            first = loss if first is None else first
            for optimiser in step:
                for name, rate in optimiser.rates.items():
                    self._move(
                        optimiser, name, rate * self._scale(name), gradients[name], moments,
                        n_before, index, batch, live,
                    )  # fmt: skip
        assert first is not None
        return first

    def _scale(self, name: str) -> float:
        return self._algorithm.structure.gradient_scale if name in self._of._low else 1.0

    def _move(
        self,
        optimiser: Optimiser,
        name: str,
        rate: float,
        gradient: torch.Tensor,
        moments: dict[str, tuple[torch.Tensor, torch.Tensor]],
        n_before: int,
        index: torch.Tensor | None,
        batch: Batch,
        live: torch.Tensor,
    ) -> None:
        """Take one optimiser's step of one parameter in place."""
        values = self.local[name]
        if optimiser.decay:
            gradient = gradient + values * _wide(optimiser.decay * live, values)
        if isinstance(optimiser, Adam):
            _adam(values, gradient, moments[name], rate, n_before + 1, live)
            return
        rate *= optimiser.factor**n_before
        rows = name in self._of._is_rows
        if optimiser.per_occurrence and rows:
            gradient = gradient / _wide(batch.weight.clamp(min=_SMALL), gradient)
        if index is not None and rows:
            width = math.prod(values.shape[2:])
            flat = gradient.reshape(-1, width)
            # CUDA adds to one row in no fixed order. Only places without a sample come more than
            # once in a minibatch, and what they add to the row that is nobody's is zero.
            values.view(-1, width).index_add_(0, index, flat, alpha=-rate)
        else:
            values.sub_(gradient, alpha=rate)

    def _gradients(
        self,
        step: tuple[Optimiser, ...],
        phase: str,
        index: torch.Tensor | None,
        batch: Batch,
        live: torch.Tensor,
    ) -> tuple[torch.Tensor, Tensors]:
        """Return the loss (B,) and the gradients that a step's optimisers ask for."""
        leaves = {name: self._read(name, index) for name in self.local}
        names = [name for optimiser in step for name in optimiser.rates]
        loss, gradients = self._differentiate(leaves, names, phase, index, batch, live)
        for optimiser in step:
            if not optimiser.radius:
                continue
            own = list(optimiser.rates)
            squares = [gradients[name].square().reshape(len(live), -1).sum(1) for name in own]
            norm = torch.stack(squares).sum(0).sqrt() + 1e-12
            uphill = {
                name: leaves[name]
                + gradients[name] * _wide(optimiser.radius / norm, gradients[name])
                for name in own
            }
            _, there = self._differentiate(leaves | uphill, own, phase, index, batch, live)
            gradients |= there
        return loss, gradients

    def _read(self, name: str, index: torch.Tensor | None) -> torch.Tensor:
        """Return a minibatch's rows of a parameter, (B, M, ...), or the whole of it."""
        values = self.local[name]
        if index is None or name not in self._of._is_rows:
            return values
        rows = values.view(-1, *values.shape[2:]).index_select(0, index)
        return rows.view(len(values), -1, *values.shape[2:])

    def _differentiate(
        self,
        leaves: Tensors,
        names: list[str],
        phase: str,
        index: torch.Tensor | None,
        batch: Batch,
        live: torch.Tensor,
    ) -> tuple[torch.Tensor, Tensors]:
        moved = {name: leaves[name].detach().requires_grad_() for name in names}
        with torch.enable_grad():
            read = Values(self._values(leaves | moved, index), phase=phase)
            loss = self._algorithm.loss(read, batch)
            whole = loss + self._algorithm.penalty(read, batch)
            # Each loss has its own gradient, times whether the user is live. As an argument of
            # `grad` the latter would make torch import sympy: 50 MiB and a second a process.
            total = torch.dot(whole, live)
        found = torch.autograd.grad(total, list(moved.values()))
        return loss.detach(), dict(zip(names, found, strict=True))

    def _values(self, local: Tensors, index: torch.Tensor | None) -> Tensors:
        """Return what `loss` reads: parameters as they are meant, and constants."""
        values: Tensors = {}
        for name, entry in self._of._parameters.items():
            if name in local:
                own = local[name]
                if name in self._of._low:
                    assert self._basis is not None
                    item = self._block.item.view(-1)
                    item = item if index is None else item.index_select(0, index)
                    rows = self._of._tables[name].index_select(0, item)
                    own = torch.baddbmm(rows.view(*own.shape[:2], -1), own, self._basis)
                values[name] = own
            elif name in self._fixed:
                values[name] = self._fixed[name]
            elif entry.scope == "rows":
                item = self._block.item.view(-1)
                item = item if index is None else item.index_select(0, index)
                rows = self._of._tables[name].index_select(0, item)
                values[name] = rows.view(len(self._block.users), -1, *entry.shape)
        return values

    # What came of it.

    def change(self, held: torch.Tensor) -> BlockChange:
        """Return the users' changes of shared parameters.

        Args:
            held: training items of the chunk's users, int64.
        """
        block, own = self._block, slice(self._block.n_users)
        compression = self._algorithm.compression
        rows: Tensors = {}
        whole: Tensors = {}
        for name in self._of._moved:
            entry = self._of._parameters[name]
            if entry.private:
                continue
            if entry.scope == "net":
                moved = (self.local[name] - self._start.shared[name])[own]
                whole[name] = moved.reshape(len(moved), -1)
                continue
            changed = self.local[name]
            if name not in self._of._low:
                begun = self._of._tables[name].index_select(0, block.item.view(-1))
                changed = changed - begun.view(changed.shape)
            changed = changed.reshape(*block.item.shape, -1)
            if entry.structured and compression is not None and compression.by == "user":
                changed = compression.compress_each(changed, self._start.n_items)
            rows[name] = changed[own]
        algorithm, samples = self._algorithm, held.index_select(0, block.users[own])
        weight = {}
        if algorithm.weighs_users:
            samples = samples.clamp(max=MOST_SAMPLES)
            weight = {
                name: samples for name in whole if self._of._parameters[name].mean == "samples"
            }
            whole["samples"] = samples[:, None].to(block.label.dtype)
        if algorithm.counts_users:
            whole["users"] = torch.ones_like(samples)[:, None].to(block.label.dtype)
        if self._members is not None and algorithm.structure.counts_entries:
            entries = self._members[own, None].to(block.label.dtype)
            rows["entries"] = entries.expand(*block.item[own].shape, -1)
        return BlockChange(item=block.item[own], rows=rows, whole=whole, weight=weight)

    def keep(self, private: Tensors) -> None:
        """Write the users' private parameters back into the chunk's tensors."""
        block, n_users = self._block, self._block.n_users
        own = block.users[:n_users]
        for name, values in private.items():
            if name not in self.local:
                continue
            if self._of._parameters[name].scope == "own_rows":
                where = self._start.active[self._item[:n_users]]
                # Places without an item repeat the first one's row, so that order has no say.
                there = block.item[:n_users] < self._chunk.n_items
                rows = self.local[name][:n_users]
                rows = torch.where(_wide(there, rows), rows, rows[:, :1])
                values[own[:, None], where] = rows
            else:
                values.index_copy_(0, own, self.local[name][:n_users])
        if self._algorithm.kept_scores:
            private[self._algorithm.kept_scores][own[:, None], self._start.active] = self._scores()

    def _scores(self) -> torch.Tensor:
        """Return the users' scores of all active items with the rows that they trained."""
        n_users, item = self._block.n_users, self._block.item
        others = {
            name: values
            for name, values in (self._fixed | self.local).items()
            if name not in self._of._is_rows
        }
        tables = {name: values[None, :-1] for name, values in self._of._tables.items()}
        everything = self._algorithm.score(Values(others | tables))
        trained = self._algorithm.score(Values(self._values(self.local, None)))
        # The last column takes the places without an item.
        wider = torch.cat([everything, everything[:, :1]], dim=1)
        return wider.scatter(1, item, trained)[:n_users, :-1]


def _wide(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return values with axes of one behind theirs, ready to meet tensors of `like`'s shape."""
    return values.view(*values.shape, *[1] * (like.dim() - values.dim()))


def _adam(
    values: torch.Tensor,
    gradient: torch.Tensor,
    moments: tuple[torch.Tensor, torch.Tensor],
    rate: float,
    age: int,
    live: torch.Tensor,
) -> None:
    """Take one step in place; `age` counts it."""
    mean, square = moments
    mean.lerp_(gradient, 1.0 - _MEAN_KEPT)
    square.mul_(_SQUARE_KEPT).addcmul_(gradient, gradient, value=1.0 - _SQUARE_KEPT)
    below = square.sqrt().div_(math.sqrt(1.0 - _SQUARE_KEPT**age)).add_(_SMALL)
    values.addcdiv_(mean * _wide(live, mean), below, value=-rate / (1.0 - _MEAN_KEPT**age))
