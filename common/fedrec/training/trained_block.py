"""Train a block of users: minibatches, gradients, steps and the resulting changes.

The letters are those of `fedrec.training.trainer`. `fedrec.training.held` has the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.batch import Batch, Values, length, wide
from fedrec.algorithms.cohort import BlockChange, idle_change
from fedrec.algorithms.optimisers import SMALL, Adam, Gradient, Optimiser, Phase, Sgd
from fedrec.algorithms.sent import MOST_SAMPLES
from fedrec.training.blocks import Block
from fedrec.training.held import BlockUsers, Held, LowRankRows, OwnRows, Rows, held
from fedrec.training.training_round import TrainingRound, step_adam, step_counted_adam

if TYPE_CHECKING:
    from fedrec.algorithms.cohort import Chunk


Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """A minibatch of each user of a block.

    Attributes:
        phase: the name of its phase.
        number: the number of minibatches of the phase before this one.
        index: its rows, numbered through the block, or None for all.
        live: 1 for users that still train and have this minibatch, (B,).
    """

    phase: str
    number: int
    index: torch.Tensor | None
    batch: Batch
    live: torch.Tensor


class TrainedBlock:
    """Train one block's users.

    Args:
        private: the chunk's private tensors.
    """

    def __init__(self, of: TrainingRound, chunk: Chunk, block: Block, private: Tensors) -> None:
        self._of, self._block, self._private = of, block, private
        self._algorithm = of.algorithm
        self._at = BlockUsers(of, chunk, block, private)
        self._held = {
            name: held(self._at, entry)
            for name, entry in of.parameters.items()
            if name != of.algorithm.kept_scores
        }
        self._constants: Mapping[str, torch.Tensor] = {}

    # The loop.

    def run(self) -> torch.Tensor:
        """Train, and return the mean loss of each user over all its samples, (B,)."""
        block = self._block
        live, there = block.label.new_ones(len(block.users)), None
        if self._of.steps_every_row:
            there = (block.item < len(self._of.start.active)).to(block.label.dtype)
        total, epoch = torch.zeros_like(live), 0
        for phase in self._of.phases:
            self._begin(phase)
            since, mean, number = torch.zeros_like(live), torch.zeros_like(live), 0
            for within in range(phase.epochs):
                self._measure()
                for index, weight, share, has in block.minibatches(epoch):
                    now = live if has is None else live * has
                    label = block.label
                    if index is not None:
                        label = label.view(-1).index_select(0, index).view(weight.shape)
                    batch = Batch(label=label, weight=weight, there=there)
                    loss = self._take(
                        phase,
                        Minibatch(
                            phase=phase.name, number=number, index=index, batch=batch, live=now
                        ),
                    )
                    total += loss * share
                    since += loss * share
                    self._at.steps += now
                    number += 1
                epoch += 1
                if phase.tolerance:
                    last, mean = mean, since / (within + 1)
                    if within:
                        live = live * ((mean - last).abs() >= phase.tolerance * last.abs())
        # A block needs the memory of training or of handing over, whichever is larger.
        self._begin(None)
        self._loss = total / epoch
        return self._loss

    def _begin(self, phase: Phase | None) -> None:
        optimisers = phase.optimisers if phase else ()
        adam = [by for by in optimisers if isinstance(by, Adam) and not by.kept]
        moments = {name for optimiser in adam for name in optimiser.rates}
        for name, own in self._held.items():
            own.begin_phase(moments=name in moments)

    def _measure(self) -> None:
        """Compute the constants of a new epoch."""
        self._constants = self._algorithm.per_epoch(self._square)

    def _square(self, name: str) -> torch.Tensor:
        """Return the squared norm of each user's whole item table, (B,)."""
        rows = self._held[name]
        assert isinstance(rows, Rows)
        return rows.square(self._at.left(name))

    def _take(self, phase: Phase, at: Minibatch) -> torch.Tensor:
        """Do the steps of a minibatch, and return the loss before them, (B,)."""
        losses = []
        for step in phase.steps:
            loss, gradients = self._gradients(step, at)
            losses.append(loss)
            for optimiser in step:
                for name in optimiser.rates:
                    self._move(optimiser, self._held[name], gradients[name], at)
        return losses[0]

    def _move(self, by: Optimiser, own: Held, gradient: torch.Tensor, at: Minibatch) -> None:
        """Do one optimiser step for one parameter in place."""
        if isinstance(by, Gradient):
            own.add(gradient, 1.0, at.index)
            return
        low = isinstance(own, LowRankRows)
        rate = by.rates[own.name] * (self._algorithm.sent.structure.gradient_scale if low else 1.0)
        toward = by.toward if isinstance(by, Sgd) else {}
        if by.decay and (not toward or own.name in toward):
            shrinks = wide(by.decay * at.live, own.values)
            gradient = torch.addcmul(gradient, own.decaying(), shrinks)
        if isinstance(by, Adam):
            moments = tuple(own.kept.values()) if by.kept else own.moments
            if len(moments) > 2:
                step_counted_adam(own.values, gradient, moments, rate, at.live)
            else:
                step_adam(own.values, gradient, moments, rate, at.number + 1, at.live)
            return
        rate *= by.factor**at.number
        if by.per_occurrence and isinstance(own, Rows):
            gradient = gradient / wide(at.batch.weight.clamp(min=SMALL), gradient)
        own.add(gradient, -rate, at.index)

    def _gradients(
        self, step: tuple[Optimiser, ...], at: Minibatch
    ) -> tuple[torch.Tensor, Tensors]:
        """Return the loss (B,) and the gradients that a step's optimisers need."""
        read = {name: own.read(at.index) for name, own in self._held.items()}
        names = [name for optimiser in step for name in optimiser.rates]
        loss, gradients = self._differentiate(read, names, at)
        for optimiser in step:
            own = {name: gradients[name] for name in optimiser.rates}
            if optimiser.passes is not None:
                own = dict(optimiser.passes(read, own, partial(self._again, read, at)))
            if not isinstance(optimiser, Gradient) and optimiser.longest:
                factor = optimiser.longest / length(own).clamp(min=optimiser.longest)
                own = {name: each * wide(factor, each) for name, each in own.items()}
            if isinstance(optimiser, Sgd) and optimiser.noise:
                for name, each in own.items():
                    noise = self._of.noise(each, optimiser.noise)
                    own[name] = each + noise * wide(at.live, noise)
            gradients |= own
        return loss, gradients

    def _again(self, read: Tensors, at: Minibatch, there: Mapping[str, torch.Tensor]) -> Tensors:
        """Compute the gradients at other values of some parameters."""
        return self._differentiate(read | dict(there), there, at)[1]

    def _differentiate(
        self, read: Tensors, names: Iterable[str], at: Minibatch
    ) -> tuple[torch.Tensor, Tensors]:
        """Return the loss (B,) and its gradients at the values that were read."""
        algorithm, batch = self._algorithm, at.batch
        moved = {name: read[name].detach().requires_grad_() for name in names}
        with torch.enable_grad():
            meant = {
                name: own.meant(moved.get(name, read[name]), at.index)
                for name, own in self._held.items()
            }
            v = algorithm.seen(Values({**meant, **self._constants}, at.phase))
            loss = algorithm.loss(v, batch)
            whole = loss + algorithm.penalty(v, batch)
            joint, beside = algorithm.joint(v, batch), None
            divided = self._of.apart & moved.keys()
            if divided and isinstance(joint, torch.Tensor):
                beside = torch.dot(joint, at.live)
            else:
                whole = whole + joint
            # Each loss has its own gradient, times whether the user is live. Passing that factor to
            # `grad` would make torch import sympy, which takes 50 MiB and a second in each process.
            total = torch.dot(whole, at.live)
        leaves = list(moved.values())
        if beside is None:
            return loss.detach(), dict(zip(moved, torch.autograd.grad(total, leaves), strict=True))
        # The joint gradient is multiplied by its later divisor.
        found = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        apart = torch.autograd.grad(beside, leaves, allow_unused=True, materialize_grads=True)
        return loss.detach(), {
            name: own + (other * wide(batch.weight, other) if name in divided else other)
            for name, own, other in zip(moved, found, apart, strict=True)
        }

    # The results.

    def change(self, samples: torch.Tensor, private: Tensors) -> BlockChange:
        """Return the users' changes of shared parameters.

        Args:
            samples: the training items of the chunk's users, int64.
            private: the chunk's private tensors after `keep`.
        """
        of, algorithm, at = self._of, self._algorithm, self._at
        own, compression = slice(self._block.n_users), algorithm.sent.compression
        item, label = self._block.item[own], self._block.label
        rows: Tensors = {}
        tables: Tensors = {}
        whole: Tensors = {}
        for name, target in of.sent.items():
            entry = of.parameters[name]
            if entry.sends_whole_table:
                table = of.own.whole(private, name, at.users) - of.start.shared[target]
                tables[target] = table.reshape(*table.shape[:2], -1)
                continue
            changed = self._held[name].changed()
            if entry.scope == "net":
                whole[name] = changed[own].reshape(len(item), -1)
                continue
            changed = changed.reshape(*self._block.item.shape, -1)
            if entry.structured and compression is not None and compression.by == "user":
                changed = compression.compress_each(changed, of.start.n_items)
            rows[target] = changed[own]
        steps, idle = None, {}
        if of.shrinking:
            steps = at.steps[own].to(torch.int64)
            for name in rows.keys() & of.shrinking.keys():
                begun = at.picked(of.decaying[name])[own].view(rows[name].shape)
                idle[name] = idle_change(begun, of.shrinking[name].index_select(0, steps))
        samples = samples.index_select(0, at.users)
        weight = {}
        if "samples" in algorithm.sent.divisors:
            samples = samples.clamp(max=MOST_SAMPLES)
            weight = {
                name: samples
                for name in (*rows, *tables, *whole)
                if of.parameters[name].mean == "samples"
            }
            whole["samples"] = samples[:, None].to(label.dtype)
        if "users" in algorithm.sent.divisors:
            whole["users"] = torch.ones_like(samples)[:, None].to(label.dtype)
        if at.members is not None and algorithm.sent.structure.counts_entries:
            rows["entries"] = at.members[own, None].to(label.dtype).expand(*item.shape, -1)
        if tables:
            item, rows = of.own.over_all_items(item, rows)
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
        for own in self._held.values():
            own.keep(private)
        kept = self._algorithm.kept_scores
        if kept:
            scores = self._scores(self._private | private)
            private[kept][self._at.users[:, None], self._of.start.active] = scores

    def _scores(self, private: Tensors) -> torch.Tensor:
        """Return the users' scores of all active items, with the rows that they trained.

        Args:
            private: the chunk's private tensors with the users' own trained rows.
        """
        self._measure()
        n_users, of, algorithm = self._block.n_users, self._of, self._algorithm
        others = {name: own.values for name, own in self._held.items() if not isinstance(own, Rows)}
        others |= self._constants
        tables = {name: values[None, :-1] for name, values in of.tables.items()}
        for name in tables.keys() & of.shrinking.keys():
            shrunk = of.shrinking[name].index_select(0, self._at.steps.to(torch.int64))
            tables[name] = tables[name] + idle_change(tables[name], shrunk)
        for name, own in self._held.items():
            if isinstance(own, OwnRows):
                tables[name] = of.own.whole(private, name, self._block.users)
        everything = algorithm.score(algorithm.seen(Values(others | tables)))
        if not of.moved & of.tables.keys():
            return everything[:n_users]
        rows = {
            name: own.meant(own.read(None), None)
            for name, own in self._held.items()
            if isinstance(own, Rows)
        }
        trained = algorithm.score(algorithm.seen(Values(others | rows)))
        # The last column takes the positions without an item.
        wider = torch.cat([everything, everything[:, :1]], dim=1)
        return wider.scatter(1, self._block.item, trained)[:n_users, :-1]
