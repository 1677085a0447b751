"""SGD and Adam for many users at once, each as if it had an optimiser of its own.

A user's optimiser begins afresh in every round and counts only the user's own minibatches: who has
none left neither moves nor ages. Both are torch.optim's, weight decay included, which is added to
the gradient (L2) and not decoupled.

Of an item table a user holds the rows that it touches in the round. A dense optimiser would move
the others, too, where weight decay is above zero; their gradient is zero, and without decay so is
every moment. Algorithms that hand over touched rows only lose nothing by that. Those whose server
averages whole tables must refuse weight decay, because every row of every user would change.

Rows that a user touched before or will touch later do move, or shrink, in minibatches without
them, exactly as dense ones. With SGD each misses the same factor a minibatch, which is made up for
when the row is next looked at (`LazyRows`). With Adam a row's path has no closed form, so that all
rows of the round are moved in every minibatch (`SteppedRows`); lazily it would be the same work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

__all__ = ["SGD", "Adam", "LazyRows", "Optimiser", "RowOptimiser", "SteppedRows"]

_MEAN_KEPT, _SQUARE_KEPT, _SMALL = 0.9, 0.999, 1e-8
"""torch.optim.Adam's defaults: betas and eps."""


class Optimiser(ABC):
    """Moves a tensor whose first axis is the user.

    Args:
        rate: step size.
        decay: L2 coefficient, added to the gradient times the value.
    """

    def __init__(self, rate: float, decay: float = 0.0) -> None:
        self.rate = rate
        self.decay = decay

    @abstractmethod
    def step(self, values: torch.Tensor, gradient: torch.Tensor, taking: torch.Tensor) -> None:
        """Take one step in place.

        Args:
            values: (n_users, ...).
            gradient: the same shape, zero for users who take no step.
            taking: who takes one, bool (n_users,).
        """


class SGD(Optimiser):
    """value <- value - rate (gradient + decay value)."""

    def step(self, values: torch.Tensor, gradient: torch.Tensor, taking: torch.Tensor) -> None:
        """Take one step in place; see `Optimiser.step`."""
        if self.decay:
            gradient = gradient + values * self.decay * _spread(taking, values)
        values -= gradient * self.rate


class Adam(Optimiser):
    """Kingma and Ba (2015), algorithm 1, with torch's defaults for its moments."""

    def __init__(self, rate: float, decay: float = 0.0) -> None:
        super().__init__(rate, decay)
        self._moments: tuple[torch.Tensor, torch.Tensor] | None = None

    def step(self, values: torch.Tensor, gradient: torch.Tensor, taking: torch.Tensor) -> None:
        """Take one step in place; see `Optimiser.step`."""
        if self._moments is None:
            self._moments = torch.zeros_like(values), torch.zeros_like(values)
            self._steps = torch.zeros(len(values), dtype=torch.float64, device=values.device)
        if self.decay:
            gradient = gradient + values * self.decay
        mean, square = self._moments
        own = _spread(taking, values)
        mean += (gradient - mean) * ((1.0 - _MEAN_KEPT) * own)
        square += (gradient * gradient - square) * ((1.0 - _SQUARE_KEPT) * own)
        self._steps += taking
        # Who never took a step has no step to take now either; any finite size does.
        age = self._steps.clamp(min=1)
        size = self.rate / (1.0 - _MEAN_KEPT**age)
        spread = torch.sqrt(1.0 - _SQUARE_KEPT**age)
        size, spread = size.to(values.dtype), spread.to(values.dtype)
        below = square.sqrt() / _shaped(spread, values) + _SMALL
        values -= mean / below * (_shaped(size, values) * own)


class RowOptimiser(ABC):
    """Moves users' own copies of item rows, (n_users x width, dim), `width` rows a user."""

    @abstractmethod
    def read(self, rows: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
        """Return rows as they are before the next step; `pair` may name one more than once."""

    @abstractmethod
    def step(
        self, rows: torch.Tensor, pair: torch.Tensor, gradient: torch.Tensor, taking: torch.Tensor
    ) -> None:
        """Take one step in place.

        Args:
            pair: the rows that were read before it, int64 (n_read,).
            gradient: what each reading adds to its row's gradient, (n_read, dim); zero for users
                who take no step.
            taking: who takes a step, bool (n_users,).
        """

    @abstractmethod
    def finish(self, rows: torch.Tensor) -> None:
        """Bring all rows up to date, in place."""


class LazyRows(RowOptimiser):
    """SGD: only rows that are read are moved, and make up then for the decay they missed.

    Args:
        width: rows of a user.
    """

    def __init__(self, n_users: int, width: int, device: torch.device, sgd: SGD) -> None:
        self._width = width
        self._rate = sgd.rate
        self._kept = 1.0 - sgd.rate * sgd.decay
        self._steps = torch.zeros(n_users, dtype=torch.int64, device=device)
        self._known = torch.zeros(n_users * width, dtype=torch.int64, device=device)

    def read(self, rows: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
        """Return rows, after all steps that their users took."""
        found = rows.index_select(0, pair)
        if self._kept == 1.0:
            return found
        now = self._steps.index_select(0, pair // self._width)
        return found * self._factor(now - self._known.index_select(0, pair), rows)

    def step(
        self, rows: torch.Tensor, pair: torch.Tensor, gradient: torch.Tensor, taking: torch.Tensor
    ) -> None:
        """Take one step in place; see `RowOptimiser.step`."""
        if self._kept != 1.0:
            # A row that is named twice is written twice with the same values.
            moves = taking.index_select(0, pair // self._width)
            kept = torch.where(moves, rows.new_full((), self._kept), 1.0)
            rows.index_copy_(0, pair, self.read(rows, pair) * kept[:, None])
            self._steps += taking
            now = self._steps.index_select(0, pair // self._width)
            self._known.index_copy_(0, pair, now)
        rows.index_add_(0, pair, gradient * -self._rate)

    def finish(self, rows: torch.Tensor) -> None:
        """Bring all rows up to date, in place."""
        if self._kept != 1.0:
            now = self._steps.repeat_interleave(self._width)
            rows *= self._factor(now - self._known, rows)
            self._known = now

    def _factor(self, missed: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return kept^missed as a column."""
        return (self._kept ** missed.to(torch.float64)).to(rows.dtype)[:, None]


class SteppedRows(RowOptimiser):
    """Any optimiser: every row of the round takes every step of its user."""

    def __init__(self, n_users: int, optimiser: Optimiser) -> None:
        self._n_users = n_users
        self._optimiser = optimiser

    def read(self, rows: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
        """Return rows, which are always up to date."""
        return rows.index_select(0, pair)

    def step(
        self, rows: torch.Tensor, pair: torch.Tensor, gradient: torch.Tensor, taking: torch.Tensor
    ) -> None:
        """Take one step in place; see `RowOptimiser.step`."""
        summed = torch.zeros_like(rows).index_add_(0, pair, gradient)
        shape = (self._n_users, -1, rows.shape[1])
        self._optimiser.step(rows.view(shape), summed.view(shape), taking)

    def finish(self, rows: torch.Tensor) -> None:
        """Do nothing: no row is behind."""


def _shaped(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return one value a user, ready to meet tensors of `like`'s shape."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _spread(taking: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return _shaped(taking.to(like.dtype), like)
