"""How a block's users hold each parameter while they train: a class for each way.

A parameter begins in a block, is read by minibatches, changes, and is kept or handed over. Which
class holds it follows from its scope, from whether an optimiser moves it, and from the update
structure. B are a block's users, R their rows, M those of a minibatch.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.batch import wide
from fedrec.tensor_products import user_product
from fedrec.training.blocks import Block
from fedrec.training.training_round import TrainingRound, row_squares

if TYPE_CHECKING:
    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.declarations import Parameter

Tensors = dict[str, torch.Tensor]


class BlockUsers:
    """What all parameters of a block have in common.

    Args:
        private: the chunk's private tensors.

    Attributes:
        item: the users' active items; a place without one has its user's first, (B, R).
        users: positions in the chunk of the users, without places that have none.
        members: which rows of B each user trains, (B, width); None where everybody trains all.
        steps: how many each user has taken, float (B,).
    """

    def __init__(self, of: TrainingRound, chunk: Chunk, block: Block, private: Tensors) -> None:
        self.of, self.chunk, self.block, self.private = of, chunk, block, private
        self.start, self.users = of.start, block.users[: block.n_users]
        item = torch.where(block.item < chunk.n_items, block.item, block.item[:, :1])
        self.item = item.clamp(max=max(chunk.n_items - 1, 0))
        self.steps = block.label.new_zeros(len(block.users))
        self.members: torch.Tensor | None = None
        if of.low:
            self.members = of.algorithm.structure.members(
                of.algorithm.seed,
                self.start.round,
                chunk.user_keys.index_select(0, block.users),
                self.start.party_key,
            )

    def rows(self, name: str, index: torch.Tensor | None = None) -> torch.Tensor:
        """Return the version's rows, (B, R or M, ...), zeros where there is no item."""
        return self.picked(self.of.tables[name], index)

    def picked(self, table: torch.Tensor, index: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows of a table of all active items, and of none behind them."""
        item = self.block.item.view(-1)
        item = item if index is None else item.index_select(0, index)
        return table.index_select(0, item).view(len(self.item), -1, *table.shape[1:])

    def left(self, name: str) -> torch.Tensor | None:
        """Return what is left of a table's untouched rows by now, (B,); None where they stay."""
        shrunk = self.of.shrinking.get(name)
        if shrunk is None:
            return None
        return 1.0 + shrunk.index_select(0, self.steps.to(torch.int64))

    @cached_property
    def basis(self) -> torch.Tensor:
        """B of every user, (B or 1, width, dim), in which rows that nobody trains are 0."""
        assert self.start.basis is not None
        basis = self.start.basis.expand(len(self.item), -1, -1)
        own = self.members
        return basis if own is None else basis * own.to(basis.dtype)[:, :, None]

    @cached_property
    def fresh(self) -> torch.Tensor:
        """Whose tables begin in this round, bool (B,)."""
        return self.of.own.fresh(self.private).index_select(0, self.block.users)


class Held:
    """A shared tensor or scalar, of which each of a block's users has the whole.

    Attributes:
        moves: whether an optimiser steps it; else it stays, or users send its gradient.
        values: the users' own, (B, ...).
        sent: the sum of its gradients, in the same shape, where users send that.
        moments: Adam's mean and square in the phase that runs.
        kept: its moments that go on from the last round, as `own_moments` names them.
    """

    def __init__(self, at: BlockUsers, entry: Parameter) -> None:
        self._at, self.entry, of = at, entry, at.of
        self.name = name = entry.name
        self.moves = name in of.moved and name not in of.gradients_of
        self.values = self.sent = self.begin()
        if name in of.gradients_of:
            self.sent = self.values.new_zeros(self.values.shape)
        self._target = self.values if self.moves else self.sent
        self.begin_phase(moments=False)
        users = at.block.users
        self.kept = {
            kept: at.private[kept].index_select(0, users) for kept in of.moments.get(name, ())
        }

    def begin(self) -> torch.Tensor:
        """Return what users begin with; it is theirs to write into if it moves."""
        users, start = len(self._at.item), self._at.start
        if self.entry.scope == "scalar":
            return self._at.block.label.new_full((users,), start.scalars[self.name])
        found = start.shared[self.name].expand(users, *self.entry.shape)
        return found.clone() if self.moves else found

    def begin_phase(self, *, moments: bool) -> None:
        """Forget what Adam knows of it; have room for moments only if the phase needs them."""
        self.moments = (self.values, self.values)
        if moments:
            self.moments = (torch.zeros_like(self.values), torch.zeros_like(self.values))

    def read(self, index: torch.Tensor | None) -> torch.Tensor:
        """Return what a minibatch reads and moves: its rows, (B, M, ...), or the whole."""
        return self.values

    def meant(self, read: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        """Return what the loss sees in the place of what was read."""
        return read

    def decaying(self) -> torch.Tensor:
        """Return what decay is of."""
        return self.values

    def add(self, gradient: torch.Tensor, factor: float, index: torch.Tensor | None) -> None:
        """Add a minibatch's gradient, times a factor, to what changes in place."""
        self._target.add_(gradient, alpha=factor)

    def changed(self) -> torch.Tensor:
        """Return how users' values moved, or the gradients that they send, (B, ...)."""
        return self.values - self._begun() if self.moves else self.sent

    def _begun(self) -> torch.Tensor:
        return self._at.start.shared[self.name]

    def keep(self, private: Tensors) -> None:
        """Write what belongs to users back into the chunk's tensors."""


class Own(Held):
    """A user's one tensor."""

    def begin(self) -> torch.Tensor:
        """Return what each user has of it."""
        return self._at.private[self.name].index_select(0, self._at.block.users)

    def keep(self, private: Tensors) -> None:
        """Write it back if it moved, and its moments."""
        found = {**self.kept, self.name: self.values} if self.moves else self.kept
        for name, values in found.items():
            private[name].index_copy_(0, self._at.users, values[: len(self._at.users)])


class Rows(Held):
    """Rows of a shared table, of which users move copies."""

    def begin(self) -> torch.Tensor:
        """Return the version's rows."""
        return self._at.rows(self.name)

    def read(self, index: torch.Tensor | None) -> torch.Tensor:
        """Return a minibatch's rows."""
        if index is None:
            return self.values
        shape = self.values.shape
        rows = self.values.view(-1, *shape[2:]).index_select(0, index)
        return rows.view(shape[0], -1, *shape[2:])

    def add(self, gradient: torch.Tensor, factor: float, index: torch.Tensor | None) -> None:
        """Add the gradients of a minibatch's rows in their places."""
        if index is None:
            super().add(gradient, factor, index)
            return
        width = math.prod(self.values.shape[2:])
        flat = gradient.reshape(-1, width)
        # CUDA adds to one row in no fixed order. Only places without a sample come more than
        # once in a minibatch, and what they add to the row that is nobody's is zero.
        self._target.view(-1, width).index_add_(0, index, flat, alpha=factor)

    def _begun(self) -> torch.Tensor:
        return self._at.rows(self.name)

    def square(self, left: torch.Tensor | None) -> torch.Tensor:
        """Return the squared norm of each user's whole table, with touched rows as they are.

        Args:
            left: of a table that decays as a whole, what is left of untouched rows, (B,).
        """
        block = self._at.block
        there = (block.item < len(self._at.start.active)).to(block.label.dtype)
        touched = (row_squares(self.values) * there).sum(1)
        untouched = self._untouched if left is None else self._untouched * left.square()
        return untouched + touched

    @cached_property
    def _untouched(self) -> torch.Tensor:
        """The squared norm of the rows that a user does not touch, as the block begins."""
        # The last column takes the places without an item.
        wider = torch.nn.functional.pad(self.row_squares(), (0, 1))
        return wider.scatter(1, self._at.block.item, 0.0).sum(1)

    def row_squares(self) -> torch.Tensor:
        """Return the squared lengths of all active rows as a block begins, (B, n_active)."""
        return self._at.of.own.squares(self.name).expand(len(self._at.item), -1)


class StandingRows(Rows):
    """Rows of a shared table that stays: every minibatch reads them from it."""

    def begin(self) -> torch.Tensor:
        """Return nothing of a user's own."""
        return self._at.of.tables[self.name][:0]

    def read(self, index: torch.Tensor | None) -> torch.Tensor:
        """Return a minibatch's rows."""
        return self._at.rows(self.name, index)

    def square(self, left: torch.Tensor | None) -> torch.Tensor:
        """Return the squared norm of the version's table."""
        return self.row_squares().sum(1)


class LowRankRows(Rows):
    """A, (B, R, width), where an update structure has the rows Q + A B stand in for Q."""

    def begin(self) -> torch.Tensor:
        """Return zeros."""
        item, width = self._at.block.item, self._at.of.algorithm.structure.width
        return self._at.block.label.new_zeros((*item.shape, width))

    def meant(self, read: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        """Return Q + A B."""
        rows = self._at.rows(self.name, index)
        return user_product(read, self._at.basis).add_(rows)

    def decaying(self) -> torch.Tensor:
        """Return (Q + A B) B^T."""
        begun = self._at.picked(self._at.of.decaying[self.name])
        structure = self._at.of.algorithm.structure
        return (self.values + begun) * (structure.dim / structure.width)

    def changed(self) -> torch.Tensor:
        """Return A."""
        return self.values


class OwnRows(Rows):
    """Rows of each user's own table, which may begin as a copy of a shared one."""

    def begin(self) -> torch.Tensor:
        """Return the users' rows, those of the version where their tables begin."""
        at = self._at
        values = at.private[self.name][at.block.users[:, None], at.start.active[at.item]]
        if self.entry.copies:
            first = at.rows(self.entry.copies)
            values = torch.where(wide(at.fresh, values), first, values)
        self._begins = values
        return values.clone() if self.moves and self.entry.copies else values

    def _begun(self) -> torch.Tensor:
        return self._begins

    def row_squares(self) -> torch.Tensor:
        """Return the squared lengths of all active rows as a block begins, (B, n_active)."""
        at = self._at
        rows = row_squares(at.of.own.whole(at.private, self.name, at.block.users))
        if not self.entry.copies:
            return rows
        return torch.where(at.fresh[:, None], at.of.own.squares(self.entry.copies), rows)

    def keep(self, private: Tensors) -> None:
        """Write rows back, and what untouched ones have shrunk to."""
        if self.name not in private:
            return
        at, own, table = self._at, self._at.users, private[self.name]
        left = at.left(self.name)
        if left is not None:
            # Of what the round began with: a block that runs out of memory comes again.
            begun = at.of.own.begun(at.private, self.name, own)
            table.index_copy_(0, own, begun.mul_(wide(left[: len(own)], begun)))
        # Places without an item repeat the first one's row, so that order has no say.
        there = at.block.item[: len(own)] < at.chunk.n_items
        rows = self.values[: len(own)]
        rows = torch.where(wide(there, rows), rows, rows[:, :1])
        table[own[:, None], at.start.active[at.item[: len(own)]]] = rows


def held(at: BlockUsers, entry: Parameter) -> Held:
    """Return how a block's users hold a parameter."""
    if entry.scope == "rows" and entry.name not in at.of.moved:
        return StandingRows(at, entry)
    if entry.name in at.of.low:
        return LowRankRows(at, entry)
    kinds = {"rows": Rows, "own_rows": OwnRows, "own": Own}
    return kinds.get(entry.scope, Held)(at, entry)
