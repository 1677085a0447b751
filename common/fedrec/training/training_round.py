"""The parts that all blocks of a round share: parameters, phases, steps and whole tables.

An optimiser's step covers B users at once, as if each had its own optimiser. `live` is 1 for users
that still train, (B,).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.algorithm import RoundStart
from fedrec.algorithms.batch import wide
from fedrec.algorithms.optimisers import (
    MEAN_KEPT,
    SMALL,
    SQUARE_KEPT,
    Adam,
    Gradient,
    Sgd,
    own_moments,
)
from fedrec.algorithms.whole_decay import decaying, shrinking
from fedrec.privacy.noise import RandomBits, gaussian_noise

if TYPE_CHECKING:
    from fedrec.algorithms.trained import TrainedAlgorithm

Tensors = dict[str, torch.Tensor]


def step_adam(
    values: torch.Tensor,
    gradient: torch.Tensor,
    moments: tuple[torch.Tensor, ...],
    rate: float,
    age: int,
    live: torch.Tensor,
) -> None:
    """Take one step in place, with `age` as the number of steps."""
    mean, square = moments
    mean.lerp_(gradient, 1.0 - MEAN_KEPT)
    square.mul_(SQUARE_KEPT).addcmul_(gradient, gradient, value=1.0 - SQUARE_KEPT)
    below = square.sqrt().div_(math.sqrt(1.0 - SQUARE_KEPT**age)).add_(SMALL)
    values.addcdiv_(mean * wide(live, mean), below, value=-rate / (1.0 - MEAN_KEPT**age))


def step_counted_adam(
    values: torch.Tensor,
    gradient: torch.Tensor,
    moments: tuple[torch.Tensor, ...],
    rate: float,
    live: torch.Tensor,
) -> None:
    """Take one step in place, with moments that count each user's own steps.

    They may continue from the user's last round.

    Args:
        moments: the moments, as `own_moments` names them. Those of users that stopped don't change.
    """
    mean, square, mean_weight, square_weight = moments
    one = torch.ones_like(live)
    for moment, weight, value, kept in (
        (mean, mean_weight, gradient, MEAN_KEPT),
        (square, square_weight, gradient.square(), SQUARE_KEPT),
    ):
        moment.lerp_(value, wide((1.0 - kept) * live, moment))
        weight.lerp_(one, (1.0 - kept) * live)
    # A user without a step has no weight yet.
    below = (square / wide(square_weight.clamp(min=SMALL), square)).sqrt_().add_(SMALL)
    step = mean / wide(mean_weight.clamp(min=SMALL), mean) * wide(live, mean)
    values.addcdiv_(step, below, value=-rate)


class OwnTables:
    """Users' own whole item tables, some of which begin as copies of shared ones.

    Attributes:
        copied: the shared table that each own table begins as.
        flag: the name of the private number that marks users with copies, or empty if every round
            begins with new ones.
    """

    def __init__(self, algorithm: TrainedAlgorithm, start: RoundStart) -> None:
        copies = [entry for entry in algorithm.parameters if entry.copies]
        self.copied = {entry.name: entry.copies for entry in copies}
        self.flag = copies[0].copy_flag if copies else ""
        self._start = start
        self._squares: Tensors = {}

    def squares(self, name: str) -> torch.Tensor:
        """Return the squared lengths of a shared table's rows, (n_active,)."""
        if name not in self._squares:
            self._squares[name] = row_squares(self._start.shared[name][None])[0]
        return self._squares[name]

    def fresh(self, private: Tensors) -> torch.Tensor:
        """Return the users whose tables begin in this round, bool (n_users,)."""
        if self.flag:
            return private[self.flag] == 0
        own = private[next(iter(self.copied))]
        return own.new_ones(len(own), dtype=torch.bool)

    def begin(self, private: Tensors) -> None:
        """Write the first values into the tables of users that begin in this round."""
        for name in self.copied:
            self._begin(private, name)
        if self.flag:
            # Blocks still ask which users begin, so make a new tensor instead of changing the
            # users' own.
            private[self.flag] = torch.ones_like(private[self.flag])

    def _begin(self, private: Tensors, name: str) -> None:
        own, active = private[name], self._start.active
        fresh, table = wide(self.fresh(private), own), self._start.shared[self.copied[name]]
        if len(active) == own.shape[1]:
            torch.where(fresh, table, own, out=own)
        else:
            own[:, active] = torch.where(fresh, table, own[:, active])

    def begun(self, private: Tensors, name: str, users: torch.Tensor) -> torch.Tensor:
        """Return a copy of some users' tables as at the start of the round."""
        own = {each: private[each].index_select(0, users) for each in (name, self.flag) if each}
        if name in self.copied:
            self._begin(own, name)
        return own[name]

    def whole(self, private: Tensors, name: str, users: torch.Tensor) -> torch.Tensor:
        """Return some users' rows of all active items, (n_users, n_active, ...)."""
        own = private[name].index_select(0, users)
        active = self._start.active
        return own if len(active) == own.shape[1] else own.index_select(1, active)

    def over_all_items(self, item: torch.Tensor, rows: Tensors) -> tuple[torch.Tensor, Tensors]:
        """Return every active item's position for each user, and rows in that order.

        Args:
            item: the active positions of the touched rows, or n_active for padding.
            rows: the changes of those rows. Others didn't change.
        """
        n_users, n_active = len(item), len(self._start.active)
        everything = torch.arange(n_active, device=item.device).expand(n_users, -1)
        found = {}
        for name, values in rows.items():
            # The last row takes the positions without an item.
            whole = values.new_zeros((n_users, n_active + 1, values.shape[2]))
            where = item[:, :, None].expand_as(values)
            found[name] = whole.scatter(1, where, values)[:, :-1]
        return everything, found


def row_squares(rows: torch.Tensor) -> torch.Tensor:
    """Return the squared lengths of rows, (n_users, n_rows)."""
    return rows.square().flatten(2).sum(2)


class TrainingRound:
    """The values that all blocks of a round share.

    Attributes:
        parameters: the algorithm's parameters by name, without those that only `apply` reads.
        is_rows: the names of the parameters with a row for each item.
        phases: the phases of training.
        optimisers: the optimisers of all phases.
        steps_every_row: the same value as in the phases.
        moved: the names of the parameters that an optimiser moves, or whose gradient it takes.
        gradients_of: the names of the parameters that don't move, and whose gradient users send.
        moments: the moments that Adam keeps between rounds, by parameter.
        tables: the shared rows by name, with one more row of zeros for the padding of a block's
            tables.
        low: the names of the rows that an update structure replaces.
        sent: the shared tensor to which each moved parameter's change is added.
        apart: the rows whose gradients are divided by their own samples, except for the joint
            term's.
        toward: the own rows to which own rows decay, by their names.
        own: the users' whole tables.
        shrinking: the change of untouched rows, by table that decays as a whole.
        decaying: the part of each shared table that decays, with one more row of zeros, as in
            `tables`. It is the table's rows, or the coordinates of rows that A replaces.
    """

    def __init__(self, algorithm: TrainedAlgorithm, start: RoundStart) -> None:
        self.algorithm, self.start = algorithm, start
        self.parameters = {entry.name: entry for entry in algorithm.parameters if not entry.applied}
        self.is_rows = {
            name for name, entry in self.parameters.items() if entry.scope.endswith("rows")
        }
        self.phases = algorithm.phases(start.scalars)
        self.optimisers = [each for phase in self.phases for each in phase.optimisers]
        self.steps_every_row = any(phase.steps_every_row for phase in self.phases)
        self.moved = {name for optimiser in self.optimisers for name in optimiser.rates}
        self.gradients_of = {
            name
            for optimiser in self.optimisers
            if isinstance(optimiser, Gradient)
            for name in optimiser.names
        }
        self.moments = {
            name: tuple(kept.name for kept in own_moments(self.parameters[name]))
            for optimiser in self.optimisers
            if isinstance(optimiser, Adam) and optimiser.kept
            for name in optimiser.rates
        }
        self.tables = {
            name: torch.cat([values, values.new_zeros((1, *values.shape[1:]))])
            for name, values in start.shared.items()
            if name in self.is_rows
        }
        structured = {name for name in self.moved if self.parameters[name].structured}
        self.low = structured if start.basis is not None else set()
        self.sent = {source: name for name, source in algorithm.sent.sources.items()}
        self.apart = {
            name
            for optimiser in self.optimisers
            if isinstance(optimiser, Sgd) and optimiser.per_occurrence
            for name in optimiser.rates
            if name in self.is_rows
        }
        self.toward = {
            name: goal
            for optimiser in self.optimisers
            if isinstance(optimiser, Sgd)
            for name, goal in optimiser.toward.items()
        }
        self.own = OwnTables(algorithm, start)
        self.shrinking = shrinking(algorithm, start)
        self.decaying = {
            name: torch.cat([values, values.new_zeros((1, *values.shape[1:]))])
            if name in self.low
            else self.tables[name]
            for name, values in decaying(algorithm, start).items()
        }
        self._bits = RandomBits()

    def noise(self, like: torch.Tensor, deviation: float) -> torch.Tensor:
        """Return Gaussian noise of a tensor's shape, type and device, drawn on the processor."""
        if like.device.type == "meta":
            return torch.empty_like(like)
        drawn = torch.from_numpy(gaussian_noise(deviation, like.numel(), self._bits))
        return drawn.view(like.shape).to(like.device, like.dtype)

    @property
    def written(self) -> set[str]:
        """The names of the parameters that training changes, including private moments."""
        return self.moved.union(*self.moments.values())
