"""A block of users while they train: minibatches, gradients, steps, and what came of them.

See `fedrec.training.trainer`, whose letters these are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.batch import Batch, Values
from fedrec.algorithms.cohort import BlockChange, idle_change
from fedrec.algorithms.optimisers import SMALL, Adam, Gradient, Optimiser, Phase, Sgd
from fedrec.algorithms.trained import MOST_SAMPLES
from fedrec.tensor_products import user_product
from fedrec.training.blocks import Block
from fedrec.training.training_round import (
    BlockTables,
    TrainingRound,
    length,
    step_adam,
    step_kept_adam,
    wide,
)

if TYPE_CHECKING:
    from fedrec.algorithms.cohort import Chunk


Tensors = dict[str, torch.Tensor]


class TrainedBlock:
    """A block's users while they train.

    Attributes:
        local: every moved parameter's own copy: rows (B, R, ...), others (B, ...); of rows for
            which a structure stands in, A.
        sent: the sums of the gradients that users send, in the same shapes.
        kept: the moments that go on from the last round, by name.
    """

    def __init__(self, of: TrainingRound, chunk: Chunk, block: Block, private: Tensors) -> None:
        self._of, self._block, self._chunk = of, block, chunk
        self._algorithm, self._start = of.algorithm, of.start
        self._private = private
        self._fixed: Tensors = {}
        self.local: Tensors = {}
        self._members: torch.Tensor | None = None
        self._basis = self._own_basis()
        self._tables = BlockTables(of.whole, block, private)
        self._begun: Tensors = {}
        self._constants: Mapping[str, torch.Tensor] = {}
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
                if entry.copies:
                    first = of.tables[entry.copies].index_select(0, block.item.view(-1))
                    values = self._tables.begun(name, values, first.view(values.shape))
                    self._begun[name] = values
            elif entry.scope == "own":
                values = private[name].index_select(0, block.users)
            elif entry.scope == "scalar":
                values = block.label.new_full((shape[0],), self._start.scalars[name])
            else:
                values = self._start.shared[name].expand(shape[0], *entry.shape)
            if name in of.moved:
                # What stays needs no copy of its own.
                self.local[name] = values if name in of.gradients_of else values.clone()
            elif entry.scope == "own_rows":
                self.local[name] = values
            else:
                self._fixed[name] = values
        self.sent = {
            name: self.local[name].new_zeros(self.local[name].shape) for name in of.gradients_of
        }
        self.kept = {
            name: private[name].index_select(0, block.users)
            for kept in of.moments.values()
            for name in kept
        }

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
                self._measure()
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

    def _measure(self) -> None:
        """Make the constants of an epoch that begins."""
        if self._algorithm.measured:
            left = {
                name: 1.0 + shrunk.index_select(0, self._steps.to(torch.int64))
                for name, shrunk in self._of.shrinking.items()
            }
            self._constants = self._algorithm.per_epoch(self._tables.squares(self.local, left))

    def _moments(self, phase: Phase) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return {
            name: (torch.zeros_like(self.local[name]), torch.zeros_like(self.local[name]))
            for optimiser in phase.optimisers
            if isinstance(optimiser, Adam) and not optimiser.kept
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
        if isinstance(optimiser, Gradient):
            self._add(self.sent[name], name, gradient, 1.0, index)
            return
        values = self.local[name]
        if optimiser.decay:
            shrinks = wide(optimiser.decay * live, values)
            gradient = torch.addcmul(gradient, self._decaying(name), shrinks)
        if isinstance(optimiser, Adam) and optimiser.kept:
            step_kept_adam(
                values, gradient, [self.kept[n] for n in self._of.moments[name]], rate, live
            )
            return
        if isinstance(optimiser, Adam):
            step_adam(values, gradient, moments[name], rate, n_before + 1, live)
            return
        rate *= optimiser.factor**n_before
        if optimiser.per_occurrence and name in self._of.is_rows:
            gradient = gradient / wide(batch.weight.clamp(min=SMALL), gradient)
        self._add(values, name, gradient, -rate, index)

    def _add(
        self,
        values: torch.Tensor,
        name: str,
        gradient: torch.Tensor,
        factor: float,
        index: torch.Tensor | None,
    ) -> None:
        """Add a minibatch's gradient of a parameter, times a factor, in place."""
        if index is not None and name in self._of.is_rows:
            width = math.prod(values.shape[2:])
            flat = gradient.reshape(-1, width)
            # CUDA adds to one row in no fixed order. Only places without a sample come more than
            # once in a minibatch, and what they add to the row that is nobody's is zero.
            values.view(-1, width).index_add_(0, index, flat, alpha=factor)
        else:
            values.add_(gradient, alpha=factor)

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
                norm = length(gradients, own, live) + 1e-12
                uphill = {
                    name: torch.addcmul(
                        leaves[name],
                        gradients[name],
                        wide(optimiser.radius / norm, gradients[name]),
                    )
                    for name in own
                }
                _, there = self._differentiate(leaves | uphill, own, phase, index, batch, live)
                gradients |= there
            if optimiser.longest:
                norm = length(gradients, own, live)
                factor = optimiser.longest / norm.clamp(min=optimiser.longest)
                for name in own:
                    gradients[name] = gradients[name] * wide(factor, gradients[name])
            if isinstance(optimiser, Sgd) and optimiser.noise:
                for name in own:
                    noise = self._of.noise(gradients[name], optimiser.noise)
                    gradients[name] = gradients[name] + noise * wide(live, noise)
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
            read = Values(self._values(leaves | moved, index) | dict(self._constants), phase=phase)
            loss = self._algorithm.loss(read, batch)
            whole = loss + self._algorithm.penalty(read, batch)
            joint, beside = self._algorithm.joint(read, batch), None
            divided = self._of.apart.intersection(names)
            if divided and isinstance(joint, torch.Tensor):
                beside = torch.dot(joint, live)
            else:
                whole = whole + joint
            # Each loss has its own gradient, times whether the user is live. As an argument of
            # `grad` the latter would make torch import sympy: 50 MiB and a second a process.
            total = torch.dot(whole, live)
        if beside is None:
            found = torch.autograd.grad(total, list(moved.values()))
            return loss.detach(), dict(zip(names, found, strict=True))
        return loss.detach(), self._together(total, beside, moved, divided, batch)

    def _together(
        self,
        mean: torch.Tensor,
        joint: torch.Tensor,
        moved: Tensors,
        divided: set[str],
        batch: Batch,
    ) -> Tensors:
        """Return the gradients of both, the joint one multiplied with what will divide it."""
        leaves = list(moved.values())
        found = torch.autograd.grad(mean, leaves, allow_unused=True, materialize_grads=True)
        beside = torch.autograd.grad(joint, leaves, allow_unused=True, materialize_grads=True)
        return {
            name: own + (other * wide(batch.weight, other) if name in divided else other)
            for name, own, other in zip(moved, found, beside, strict=True)
        }

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
                    own = user_product(own, self._basis).add_(rows.view(*own.shape[:2], -1))
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

    def change(self, held: torch.Tensor, private: Tensors) -> BlockChange:
        """Return the users' changes of shared parameters.

        Args:
            held: training items of the chunk's users, int64.
            private: the chunk's private tensors as `keep` left them.
        """
        block, own = self._block, slice(self._block.n_users)
        compression = self._algorithm.compression
        rows: Tensors = {}
        tables: Tensors = {}
        whole: Tensors = {}
        for name, target in self._of.sent.items():
            entry = self._of.parameters[name]
            stays = name in self._of.gradients_of
            changed = self.sent[name] if stays else self.local[name]
            if entry.scope == "net":
                moved = (changed if stays else changed - self._start.shared[name])[own]
                whole[name] = moved.reshape(len(moved), -1)
                continue
            if entry.whole:
                table = self._of.whole.whole(private, name, block.users[own])
                changed = table - self._start.shared[target]
                tables[target] = changed.reshape(*changed.shape[:2], -1)
                continue
            if name in self._begun:
                changed = changed - self._begun[name]
            elif name not in self._of.low and not stays:
                begun = self._of.tables[name].index_select(0, block.item.view(-1))
                changed = changed - begun.view(changed.shape)
            changed = changed.reshape(*block.item.shape, -1)
            if entry.structured and compression is not None and compression.by == "user":
                changed = compression.compress_each(changed, self._start.n_items)
            rows[target] = changed[own]
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
                for name in (*rows, *tables, *whole)
                if self._of.parameters[name].mean == "samples"
            }
            whole["samples"] = samples[:, None].to(block.label.dtype)
        if algorithm.counts_users:
            whole["users"] = torch.ones_like(samples)[:, None].to(block.label.dtype)
        if self._members is not None and algorithm.structure.counts_entries:
            entries = self._members[own, None].to(block.label.dtype)
            rows["entries"] = entries.expand(*block.item[own].shape, -1)
        item = block.item[own]
        if tables:
            item, rows = self._of.whole.over_all_items(item, rows)
            rows |= tables
        return BlockChange(
            item=item,
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
            if name in self.kept:
                values.index_copy_(0, own, self.kept[name][:n_users])
            if name not in self.local:
                continue
            if self._of.parameters[name].scope == "own_rows":
                if name in self._of.shrinking:
                    steps = self._steps[:n_users].to(torch.int64)
                    kept = 1.0 + self._of.shrinking[name].index_select(0, steps)
                    # Of what the round began with: a block that runs out of memory comes again.
                    begun = {
                        other: self._private[other].index_select(0, own)
                        for other in (name, self._algorithm.begun)
                        if other
                    }
                    self._of.whole.begin_table(begun, name)
                    values.index_copy_(0, own, begun[name].mul_(wide(kept, begun[name])))
                where = self._start.active[self._item[:n_users]]
                # Places without an item repeat the first one's row, so that order has no say.
                there = block.item[:n_users] < self._chunk.n_items
                rows = self.local[name][:n_users]
                rows = torch.where(wide(there, rows), rows, rows[:, :1])
                values[own[:, None], where] = rows
            else:
                values.index_copy_(0, own, self.local[name][:n_users])
        if self._algorithm.kept_scores:
            scores = self._scores(self._private | private)
            private[self._algorithm.kept_scores][own[:, None], self._start.active] = scores

    def _scores(self, private: Tensors) -> torch.Tensor:
        """Return the users' scores of all active items with the rows that they trained.

        Args:
            private: the chunk's private tensors with the users' own rows as they trained them.
        """
        self._measure()
        kept = self._algorithm.kept_scores
        n_users, item = self._block.n_users, self._block.item
        others = {
            name: values
            for name, values in (self._fixed | self.local).items()
            if name not in self._of.is_rows
        }
        others |= dict(self._constants)
        tables = {name: values[None, :-1] for name, values in self._of.tables.items()}
        for name in tables.keys() & self._of.shrinking.keys():
            shrunk = self._of.shrinking[name].index_select(0, self._steps.to(torch.int64))
            tables[name] = tables[name] + idle_change(tables[name], shrunk)
        for name, entry in self._of.parameters.items():
            if entry.scope == "own_rows" and name != kept:
                tables[name] = self._of.whole.whole(private, name, self._block.users)
        everything = self._algorithm.score(Values(others | tables))
        if not any(name in self._of.tables for name in self._of.moved):
            return everything[:n_users]
        trained = self._algorithm.score(Values(self._values(self.local, None) | others))
        # The last column takes the places without an item.
        wider = torch.cat([everything, everything[:, :1]], dim=1)
        return wider.scatter(1, item, trained)[:n_users, :-1]
