"""Hold each parameter for a block's users while they train, with one class for each way.

A parameter begins in a block, is read by minibatches, changes, and is kept or handed over. Its
class follows from its scope, from whether an optimiser moves it, and from the update structure. B
is the number of a block's users, R of their rows, M of the rows in a minibatch.
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
    """The values that all parameters of a block share.

    Args:
        private: the chunk's private tensors.

    Attributes:
        item: the users' active items, (B, R). Padding repeats the user's first item.
        users: the users' positions in the chunk, without padding.
        members: the rows of B that each user trains, (B, width), or None if every user trains all.
        steps: the number of steps that each user has taken, float (B,).
    """

    def __init__(self, of: TrainingRound, chunk: Chunk, block: Block, private: Tensors) -> None:
        self.of, self.chunk, self.block, self.private = of, chunk, block, private
        self.start, self.users = of.start, block.users[: block.n_users]
        item = torch.where(block.item < chunk.n_items, block.item, block.item[:, :1])
        self.item = item.clamp(max=max(chunk.n_items - 1, 0))
        self.steps = block.label.new_zeros(len(block.users))
        self.members: torch.Tensor | None = None
        if of.low:
            self.members = of.algorithm.sent.structure.members(
                of.algorithm.shapes.seed,
                self.start.round,
                chunk.user_keys.index_select(0, block.users),
                self.start.party_key,
            )

    def rows(self, name: str, index: torch.Tensor | None = None) -> torch.Tensor:
        """Return the version's rows, (B, R or M, ...), with zeros for padding."""
        return self.picked(self.of.tables[name], index)

    def picked(self, table: torch.Tensor, index: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows of a table that has all active items and a row for padding."""
        item = self.block.item.view(-1)
        item = item if index is None else item.index_select(0, index)
        return table.index_select(0, item).view(len(self.item), -1, *table.shape[1:])

    def left(self, name: str) -> torch.Tensor | None:
        """Return the remaining factor of a table's untouched rows, (B,), or None for no change."""
        shrunk = self.of.shrinking.get(name)
        if shrunk is None:
            return None
        return 1.0 + shrunk.index_select(0, self.steps.to(torch.int64))

    @cached_property
    def basis(self) -> torch.Tensor:
        """B of every user, (B or 1, width, dim), with zeros in rows that aren't trained."""
        assert self.start.basis is not None
        basis = self.start.basis.expand(len(self.item), -1, -1)
        own = self.members
        return basis if own is None else basis * own.to(basis.dtype)[:, :, None]

    @cached_property
    def fresh(self) -> torch.Tensor:
        """The users whose tables begin in this round, bool (B,)."""
        return self.of.own.fresh(self.private).index_select(0, self.block.users)


class Held:
    """A shared tensor or scalar. Each of a block's users has a whole copy.

    Attributes:
        moves: whether an optimiser moves it. Otherwise it stays, or users send its gradient.
        values: the users' own values, (B, ...).
        sent: the sum of its gradients, in the same shape, if users send that.
        moments: Adam's mean and square in the present phase, and their weights if the block's users
            take different numbers of steps (see `own_moments`).
        kept: its moments from the previous round, as `own_moments` names them.
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
        """Return users' first values. They may be written into if the parameter moves."""
        users, start = len(self._at.item), self._at.start
        if self.entry.scope == "scalar":
            return self._at.block.label.new_full((users,), start.scalars[self.name])
        found = start.shared[self.name].expand(users, *self.entry.shape)
        return found.clone() if self.moves else found

    def begin_phase(self, *, moments: bool) -> None:
        """Reset Adam's moments. Allocate them only if the phase needs them."""
        self.moments: tuple[torch.Tensor, ...] = ()
        if moments:
            self.moments = (torch.zeros_like(self.values), torch.zeros_like(self.values))
            if self._at.block.live is not None:
                self.moments += (torch.zeros_like(self._at.steps), torch.zeros_like(self._at.steps))

    def read(self, index: torch.Tensor | None) -> torch.Tensor:
        """Return the part that a minibatch reads and moves: its rows, (B, M, ...), or all."""
        return self.values

    def meant(self, read: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        """Return the values that the loss uses in place of those that were read."""
        return read

    def decaying(self) -> torch.Tensor:
        """Return the values that decay."""
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
        """Write users' own values back into the chunk's tensors."""


class Own(Held):
    """A private tensor of each user."""

    def begin(self) -> torch.Tensor:
        """Return each user's present values."""
        return self._at.private[self.name].index_select(0, self._at.block.users)

    def keep(self, private: Tensors) -> None:
        """Write the values back if they moved, and the moments."""
        found = {**self.kept, self.name: self.values} if self.moves else self.kept
        for name, values in found.items():
            private[name].index_copy_(0, self._at.users, values[: len(self._at.users)])


class Rows(Held):
    """Rows of a shared table. Users move their own copies."""

    def begin(self) -> torch.Tensor:
        """Copy the version's rows."""
        return self._at.rows(self.name)

    def read(self, index: torch.Tensor | None) -> torch.Tensor:
        """Return a minibatch's rows."""
        if index is None:
            return self.values
        shape = self.values.shape
        rows = self.values.view(-1, *shape[2:]).index_select(0, index)
        return rows.view(shape[0], -1, *shape[2:])

    def add(self, gradient: torch.Tensor, factor: float, index: torch.Tensor | None) -> None:
        """Add the gradients of a minibatch's rows to their rows."""
        if index is None:
            super().add(gradient, factor, index)
            return
        width = math.prod(self.values.shape[2:])
        flat = gradient.reshape(-1, width)
        # CUDA adds to one row in no fixed order. Only padding occurs more than once in a minibatch,
        # and it adds zero to the padding row.
        self._target.view(-1, width).index_add_(0, index, flat, alpha=factor)

    def _begun(self) -> torch.Tensor:
        return self._at.rows(self.name)

    def square(self, left: torch.Tensor | None) -> torch.Tensor:
        """Return the squared norm of each user's whole table, with the present touched rows.

        Args:
            left: the factor that remains of untouched rows of a table that decays as a whole, (B,).
        """
        untouched = self._untouched if left is None else self._untouched * left.square()
        return untouched + self._touched()

    def _touched(self) -> torch.Tensor:
        block = self._at.block
        there = (block.item < len(self._at.start.active)).to(block.label.dtype)
        return (row_squares(self.values) * there).sum(1)

    @cached_property
    def _untouched(self) -> torch.Tensor:
        """The squared norm of the rows that a user doesn't touch, at the start of the block."""
        return self._rest(self.row_squares())

    def _rest(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows that a user doesn't touch, (B,)."""
        # The last column takes the positions without an item.
        wider = torch.nn.functional.pad(squares, (0, 1))
        return wider.scatter(1, self._at.block.item, 0.0).sum(1)

    def row_squares(self) -> torch.Tensor:
        """Return the squared lengths of all active rows at the start of a block, (B, n_active)."""
        return self._at.of.own.squares(self.name).expand(len(self._at.item), -1)


class StandingRows(Rows):
    """Rows of a shared table that doesn't move. Every minibatch reads the table itself."""

    def begin(self) -> torch.Tensor:
        """Return nothing, because users have no copies."""
        return self._at.of.tables[self.name][:0]

    def read(self, index: torch.Tensor | None) -> torch.Tensor:
        """Return a minibatch's rows."""
        return self._at.rows(self.name, index)

    def square(self, left: torch.Tensor | None) -> torch.Tensor:
        """Return the squared norm of the version's table."""
        return self.row_squares().sum(1)


class LowRankRows(Rows):
    """A, (B, R, width), for an update structure with the rows Q + A B in place of Q."""

    def begin(self) -> torch.Tensor:
        """Start A at zero."""
        item, width = self._at.block.item, self._at.of.algorithm.sent.structure.width
        return self._at.block.label.new_zeros((*item.shape, width))

    def meant(self, read: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        """Return the rows Q + A B."""
        rows = self._at.rows(self.name, index)
        return user_product(read, self._at.basis).add_(rows)

    def decaying(self) -> torch.Tensor:
        """Return the decay's gradient, (Q + A B) B^T."""
        begun = self._at.picked(self._at.of.decaying[self.name])
        structure = self._at.of.algorithm.sent.structure
        return (self.values + begun) * (structure.dim / structure.width)

    def changed(self) -> torch.Tensor:
        """Return the factor A."""
        return self.values


class OwnRows(Rows):
    """Rows of each user's own table, which may begin as a copy of a shared one."""

    def begin(self) -> torch.Tensor:
        """Return the users' rows, or the version's rows for tables that begin."""
        at = self._at
        values = self._rows_of(self.name)
        if self.entry.copies:
            first = at.rows(self.entry.copies)
            values = torch.where(wide(at.fresh, values), first, values)
        self._begins = values
        return values.clone() if self.moves and self.entry.copies else values

    def _begun(self) -> torch.Tensor:
        return self._begins

    def _rows_of(self, name: str) -> torch.Tensor:
        at = self._at
        return at.private[name][at.block.users[:, None], at.start.active[at.item]]

    def decaying(self) -> torch.Tensor:
        """Return the values that decay: the distances to other own rows, if they decay to these."""
        return self.values if self._goal is None else self.values - self._goal

    @cached_property
    def _goal(self) -> torch.Tensor | None:
        goal = self._at.of.toward.get(self.name)
        return self._rows_of(goal) if goal else None

    def row_squares(self) -> torch.Tensor:
        """Return the squared lengths of all active rows at the start of a block, (B, n_active)."""
        at = self._at
        rows = row_squares(at.of.own.whole(at.private, self.name, at.block.users))
        if not self.entry.copies:
            return rows
        return torch.where(at.fresh[:, None], at.of.own.squares(self.entry.copies), rows)

    def square(self, left: torch.Tensor | None) -> torch.Tensor:
        """Return the squared norm of each user's whole table. Untouched rows may have a goal."""
        goal = self._at.of.toward.get(self.name)
        if left is None or not goal:
            return super().square(left)
        # |g + l (c - g)|^2 = (1 - l) |g|^2 + l |c|^2 - l (1 - l) |c - g|^2
        at, users = self._at, self._at.block.users
        own, active = at.of.own, at.start.active
        end = own.whole(at.private, goal, users)
        apart = own.begun(at.private, self.name, users).index_select(1, active) - end
        ends, gaps = (self._rest(row_squares(rows)) for rows in (end, apart))
        kept = (1.0 - left) * ends + left * self._untouched - left * (1.0 - left) * gaps
        return kept + self._touched()

    def keep(self, private: Tensors) -> None:
        """Write rows back, and shrink untouched ones."""
        if self.name not in private:
            return
        at, own, table = self._at, self._at.users, private[self.name]
        left = at.left(self.name)
        if left is not None:
            # Use the round's first values, because a block that runs out of memory is trained
            # again.
            begun, goal = at.of.own.begun(at.private, self.name, own), at.of.toward.get(self.name)
            kept = wide(left[: len(own)], begun)
            if goal:
                end = at.private[goal].index_select(0, own)
                table.index_copy_(0, own, begun.sub_(end).mul_(kept).add_(end))
            else:
                table.index_copy_(0, own, begun.mul_(kept))
        # Padding repeats the first item's row, so the order doesn't matter.
        there = at.block.item[: len(own)] < at.chunk.n_items
        rows = self.values[: len(own)]
        rows = torch.where(wide(there, rows), rows, rows[:, :1])
        table[own[:, None], at.start.active[at.item[: len(own)]]] = rows


def held(at: BlockUsers, entry: Parameter) -> Held:
    """Return the object that holds a parameter for a block's users."""
    if entry.scope == "rows" and entry.name not in at.of.moved:
        return StandingRows(at, entry)
    if entry.name in at.of.low:
        return LowRankRows(at, entry)
    kinds = {"rows": Rows, "own_rows": OwnRows, "own": Own}
    return kinds.get(entry.scope, Held)(at, entry)
