"""What all blocks of a round have in common: parameters, phases, tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.algorithm import RoundStart
from fedrec.algorithms.kept_moments import own_moments
from fedrec.algorithms.optimisers import Adam, Gradient, Sgd
from fedrec.algorithms.whole_decay import decaying, shrinking
from fedrec.privacy.paper_noise import gaussian_noise
from fedrec.privacy.random_bits import RandomBits
from fedrec.training.whole_tables import RoundTables

if TYPE_CHECKING:
    from fedrec.algorithms.trained import TrainedAlgorithm

__all__ = ["TrainingRound"]


class TrainingRound:
    """What all blocks of a round have in common.

    Attributes:
        parameters: what the algorithm declares, by name, but for what `apply` alone reads.
        is_rows: names of those that have a row for each item.
        phases: how training goes.
        optimisers: those of all phases.
        moved: names of the parameters that some optimiser moves, or takes the gradient of.
        gradients_of: names of those that stay, and whose gradient users send.
        moments: by name of a parameter, what Adam keeps of it between rounds.
        tables: shared rows by name, with one row more, of zeros, for the places of a block's
            tables that have no item.
        low: names of the rows for which an update structure stands in.
        sent: by moved parameter, the shared tensor that its change is summed for.
        apart: rows whose gradients are divided by their own samples, the joint term's apart.
        whole: users' tables as wholes.
        shrinking: by table that decays as a whole, what its untouched rows change by.
        decaying: what of each shared table decays, with one row of zeros more, as in `tables`: its
            rows, or the coordinates of those for which A stands in.
    """

    def __init__(self, algorithm: TrainedAlgorithm, start: RoundStart) -> None:
        self.algorithm, self.start = algorithm, start
        self.parameters = {entry.name: entry for entry in algorithm.parameters if not entry.applied}
        self.is_rows = {
            name for name, entry in self.parameters.items() if entry.scope.endswith("rows")
        }
        self.phases = algorithm.phases(start.scalars)
        self.optimisers = [each for phase in self.phases for each in phase.optimisers]
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
        self.sent = {source: name for name, source in algorithm.sent_from.items()}
        self.apart = {
            name
            for optimiser in self.optimisers
            if isinstance(optimiser, Sgd) and optimiser.per_occurrence
            for name in optimiser.rates
            if name in self.is_rows
        }
        self.whole = RoundTables(algorithm, start)
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
            isinstance(optimiser, Sgd) and optimiser.noise > 0 for optimiser in self.optimisers
        )

    def noise(self, like: torch.Tensor, deviation: float) -> torch.Tensor:
        """Return Gaussian noise of a tensor's shape, type and device, made on the processor."""
        if like.device.type == "meta":
            return torch.empty_like(like)
        drawn = torch.from_numpy(gaussian_noise(deviation, like.numel(), self._bits))
        return drawn.view(like.shape).to(like.device, like.dtype)

    @property
    def written(self) -> set[str]:
        """Names of the parameters that training changes, private moments among them."""
        return self.moved.union(*self.moments.values())
