"""A block of users while they train: minibatches, gradients, steps, and what came of them.

See `fedrec.training.trainer`, whose letters these are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.algorithm import RoundStart
from fedrec.algorithms.batch import Batch, Values
from fedrec.algorithms.optimisers import Adam, Optimiser, Phase, Sgd
from fedrec.algorithms.trained import MOST_SAMPLES
from fedrec.privacy.paper_noise import gaussian_noise
from fedrec.privacy.random_bits import RandomBits
from fedrec.training.blocks import Block
from fedrec.training.changes import BlockChange
from fedrec.training.whole_decay import decaying, idle_change, shrinking

if TYPE_CHECKING:
    from fedrec.algorithms.trained import TrainedAlgorithm
    from fedrec.training.cohort import Chunk

__all__ = ["TrainedBlock", "TrainingRound"]

Tensors = dict[str, torch.Tensor]

_MEAN_KEPT, _SQUARE_KEPT, _SMALL = 0.9, 0.999, 1e-8
"""torch.optim.Adam's defaults: betas and eps."""


class TrainingRound:
    """What all blocks of a round have in common.

    Attributes:
        parameters: what the algorithm declares, by name.
        is_rows: names of those that have a row for each item.
        phases: how training goes.
        moved: names of the parameters that some optimiser moves.
        tables: shared rows by name, with one row more, of zeros, for the places of a block's
            tables that have no item.
        low: names of the rows for which an update structure stands in.
        shrinking: by table that decays as a whole, what its untouched rows change by.
        decaying: what of each shared table decays, with one row of zeros more, as in `tables`: its
            rows, or the coordinates of those for which A stands in.
    """

    def __init__(self, algorithm: TrainedAlgorithm, start: RoundStart) -> None:
        self.algorithm, self.start = algorithm, start
        self.parameters = {entry.name: entry for entry in algorithm.parameters}
        self.is_rows = {
            name for name, entry in self.parameters.items() if entry.scope.endswith("rows")
        }
        self.phases = algorithm.phases(start.scalars)
        self.moved = {
            name
            for phase in self.phases
            for optimiser in phase.optimisers
            for name in optimiser.rates
        }
        self.tables = {
            name: torch.cat([values, values.new_zeros((1, *values.shape[1:]))])
            for name, values in start.shared.items()
            if name in self.is_rows
        }
        structured = {name for name in self.moved if self.parameters[name].structured}
        self.low = structured if start.basis is not None else set()
        self.shrinking = shrinking(algorithm, start)
        self.decaying = {
            name: torch.cat([values, values.new_zeros((1, *values.shape[1:]))])
            if name in self.low
            else self.tables[name]
            for name, values in decaying(algorithm, start).items()
        }
        self._bits = RandomBits()

    @property
    def is_noisy(self) -> bool:
        """Whether some optimiser adds noise to gradients, and all rows are stepped."""
        return any(
            isinstance(optimiser, Sgd) and optimiser.noise > 0
            for phase in self.phases
            for optimiser in phase.optimisers
        )

    def noise(self, like: torch.Tensor, deviation: float) -> torch.Tensor:
        """Return Gaussian noise of a tensor's shape, type and device, made on the processor."""
        if like.device.type == "meta":
            return torch.empty_like(like)
        drawn = torch.from_numpy(gaussian_noise(deviation, like.numel(), self._bits))
        return drawn.view(like.shape).to(like.device, like.dtype)


class TrainedBlock:
    """A block's users while they train.

    Attributes:
        local: every moved parameter's own copy: rows (B, R, ...), others (B, ...); of rows for
            which a structure stands in, A.
    """

    def __init__(self, of: TrainingRound, chunk: Chunk, block: Block, private: Tensors) -> None:
        self._of, self._block, self._chunk = of, block, chunk
        self._algorithm, self._start = of.algorithm, of.start
        self._private = private
        self._fixed: Tensors = {}
        self.local: Tensors = {}
        self._members: torch.Tensor | None = None
        self._basis = self._own_basis()
        shape = block.item.shape
        # Places without an item read the first one's row of a private table.
        self._item = torch.where(block.item < chunk.n_items, block.item, block.item[:, :1])
        self._item = self._item.clamp(max=max(chunk.n_items - 1, 0))
        for name, entry in of.parameters.items():
            if name == self._algorithm.kept_scores:
                continue
            if name in of.low:
                width = self._algorithm.structure.width
                values = block.label.new_zeros((*shape, width))
            elif entry.scope == "rows":
                if name not in of.moved:
                    continue
                values = of.tables[name].index_select(0, block.item.view(-1))
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
            if name in of.moved:
                self.local[name] = values.clone()
            elif entry.scope == "own_rows":
                self.local[name] = values
            else:
                self._fixed[name] = values

    def _own_basis(self) -> torch.Tensor | None:
        """Return B of every user of the block, (B or 1, width, dim); rows nobody trains are 0."""
        basis = self._start.basis
        if basis is None or not self._of.low:
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
        self._steps = torch.zeros_like(live)
        for phase in self._of.phases:
            moments = self._moments(phase)
            since, mean, n_steps = torch.zeros_like(live), torch.zeros_like(live), 0
            for within in range(phase.epochs):
                for index, weight, share in block.minibatches(epoch):
                    loss = self._minibatch(phase, moments, n_steps, index, weight, live)
                    total += loss * share
                    since += loss * share
                    self._steps += live
                    n_steps += 1
                epoch += 1
                if phase.tolerance:
                    last, mean = mean, since / (within + 1)
                    if within:
                        live = live * ((mean - last).abs() >= phase.tolerance * last.abs())
        self._loss = total / epoch
        return self._loss

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
        return self._algorithm.structure.gradient_scale if name in self._of.low else 1.0

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
            gradient = gradient + self._decaying(name) * _wide(optimiser.decay * live, values)
        if isinstance(optimiser, Adam):
            _adam(values, gradient, moments[name], rate, n_before + 1, live)
            return
        rate *= optimiser.factor**n_before
        rows = name in self._of.is_rows
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

    def _decaying(self, name: str) -> torch.Tensor:
        """Return what decay is of, all of a block's rows: the parameter, or (Q + A B) B^T."""
        values = self.local[name]
        if name not in self._of.low:
            return values
        begun = self._of.decaying[name].index_select(0, self._block.item.view(-1))
        structure = self._algorithm.structure
        return (values + begun.view(values.shape)) * (structure.dim / structure.width)

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
            own = list(optimiser.rates)
            if optimiser.radius:
                norm = _length(gradients, own, live) + 1e-12
                uphill = {
                    name: leaves[name]
                    + gradients[name] * _wide(optimiser.radius / norm, gradients[name])
                    for name in own
                }
                _, there = self._differentiate(leaves | uphill, own, phase, index, batch, live)
                gradients |= there
            if optimiser.longest:
                norm = _length(gradients, own, live)
                factor = optimiser.longest / norm.clamp(min=optimiser.longest)
                for name in own:
                    gradients[name] = gradients[name] * _wide(factor, gradients[name])
            if isinstance(optimiser, Sgd) and optimiser.noise:
                for name in own:
                    noise = self._of.noise(gradients[name], optimiser.noise)
                    gradients[name] = gradients[name] + noise * _wide(live, noise)
        return loss, gradients

    def _read(self, name: str, index: torch.Tensor | None) -> torch.Tensor:
        """Return a minibatch's rows of a parameter, (B, M, ...), or the whole of it."""
        values = self.local[name]
        if index is None or name not in self._of.is_rows:
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
        for name, entry in self._of.parameters.items():
            if name in local:
                own = local[name]
                if name in self._of.low:
                    assert self._basis is not None
                    item = self._block.item.view(-1)
                    item = item if index is None else item.index_select(0, index)
                    rows = self._of.tables[name].index_select(0, item)
                    own = torch.baddbmm(rows.view(*own.shape[:2], -1), own, self._basis)
                values[name] = own
            elif name in self._fixed:
                values[name] = self._fixed[name]
            elif entry.scope == "rows":
                item = self._block.item.view(-1)
                item = item if index is None else item.index_select(0, index)
                rows = self._of.tables[name].index_select(0, item)
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
        for name in self._of.moved:
            entry = self._of.parameters[name]
            if entry.private:
                continue
            if entry.scope == "net":
                moved = (self.local[name] - self._start.shared[name])[own]
                whole[name] = moved.reshape(len(moved), -1)
                continue
            changed = self.local[name]
            if name not in self._of.low:
                begun = self._of.tables[name].index_select(0, block.item.view(-1))
                changed = changed - begun.view(changed.shape)
            changed = changed.reshape(*block.item.shape, -1)
            if entry.structured and compression is not None and compression.by == "user":
                changed = compression.compress_each(changed, self._start.n_items)
            rows[name] = changed[own]
        steps, idle = None, {}
        if self._of.shrinking:
            steps = self._steps[own].to(torch.int64)
            for name in rows.keys() & self._of.shrinking.keys():
                begun = self._of.decaying[name].index_select(0, block.item[own].reshape(-1))
                shrunk = self._of.shrinking[name].index_select(0, steps)
                idle[name] = idle_change(begun.view(rows[name].shape), shrunk)
        algorithm, samples = self._algorithm, held.index_select(0, block.users[own])
        weight = {}
        if algorithm.weighs_users:
            samples = samples.clamp(max=MOST_SAMPLES)
            weight = {
                name: samples
                for name in (*rows, *whole)
                if self._of.parameters[name].mean == "samples"
            }
            whole["samples"] = samples[:, None].to(block.label.dtype)
        if algorithm.counts_users:
            whole["users"] = torch.ones_like(samples)[:, None].to(block.label.dtype)
        if self._members is not None and algorithm.structure.counts_entries:
            entries = self._members[own, None].to(block.label.dtype)
            rows["entries"] = entries.expand(*block.item[own].shape, -1)
        return BlockChange(
            item=block.item[own],
            rows=rows,
            whole=whole,
            weight=weight,
            idle=idle,
            loss=self._loss[own],
            steps=steps,
        )

    def keep(self, private: Tensors) -> None:
        """Write the users' private parameters back into the chunk's tensors."""
        block, n_users = self._block, self._block.n_users
        own = block.users[:n_users]
        for name, values in private.items():
            if name not in self.local:
                continue
            if self._of.parameters[name].scope == "own_rows":
                if name in self._of.shrinking:
                    steps = self._steps[:n_users].to(torch.int64)
                    kept = 1.0 + self._of.shrinking[name].index_select(0, steps)
                    left = values.index_select(0, own)
                    values.index_copy_(0, own, left.mul_(_wide(kept, left)))
                where = self._start.active[self._item[:n_users]]
                # Places without an item repeat the first one's row, so that order has no say.
                there = block.item[:n_users] < self._chunk.n_items
                rows = self.local[name][:n_users]
                rows = torch.where(_wide(there, rows), rows, rows[:, :1])
                values[own[:, None], where] = rows
            else:
                values.index_copy_(0, own, self.local[name][:n_users])
        if self._algorithm.kept_scores:
            private[self._algorithm.kept_scores][own[:, None], self._start.active] = self._scores(
                self._private | private
            )

    def _scores(self, private: Tensors) -> torch.Tensor:
        """Return the users' scores of all active items with the rows that they trained.

        Args:
            private: the chunk's tensors after training.
        """
        n_users, item = self._block.n_users, self._block.item
        others = {
            name: values
            for name, values in (self._fixed | self.local).items()
            if name not in self._of.is_rows
        }
        tables = {name: values[None, :-1] for name, values in self._of.tables.items()}
        tables |= {
            name: private[name][self._block.users[:, None], self._start.active]
            for name, entry in self._of.parameters.items()
            if entry.scope == "own_rows" and name != self._algorithm.kept_scores
        }
        everything = self._algorithm.score(Values(others | tables))
        trained = self._algorithm.score(Values(self._values(self.local, None)))
        # The last column takes the places without an item.
        wider = torch.cat([everything, everything[:, :1]], dim=1)
        return wider.scatter(1, item, trained)[:n_users, :-1]


def _length(tensors: Tensors, names: list[str], live: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of each user's tensors together, (B,)."""
    squares = [tensors[name].square().reshape(len(live), -1).sum(1) for name in names]
    return torch.stack(squares).sum(0).sqrt()


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
