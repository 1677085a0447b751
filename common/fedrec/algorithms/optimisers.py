"""What an algorithm says of its local training: which parameters move, and by which rule.

These are declarations; `fedrec.training.trainer` carries them out for many users at once, each as
if it had an optimiser of its own that begins afresh in every round and counts only the user's own
minibatches. Sgd and Adam are torch.optim's, weight decay included, which is added to the gradient.

Of an item table a user holds the rows that it touches in the round. Decay moves all of those in
every minibatch, as a dense optimiser would; rows that a user does not touch stay, unless `whole`
says that they shrink, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "MEAN_KEPT",
    "SMALL",
    "SQUARE_KEPT",
    "Adam",
    "Gradient",
    "Optimiser",
    "Phase",
    "Sgd",
]

MEAN_KEPT, SQUARE_KEPT, SMALL = 0.9, 0.999, 1e-8
"""torch.optim.Adam's defaults: betas and eps."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """value <- value - rate (gradient + decay value).

    Attributes:
        rates: step sizes by parameter.
        decay: L2 coefficient.
        whole: whether decay moves the rows, too, that a user does not touch in the round. Nobody
            steps those one by one; see `fedrec.algorithms.whole_decay`.
        factor: what the rates are multiplied with after every minibatch.
        per_occurrence: whether an item row moves by the mean over its own samples in the
            minibatch, and not by its share of the mean over all of them.
        radius: of sharpness-aware steps (Foret et al. 2021): the gradient is taken where one
            step of this length uphill leads, its direction by all of `rates` together; 0 for none.
        longest: a user's longer gradient of a minibatch (L2 norm over all of `rates`) is shrunk to
            this length, before decay; 0 for no limit.
        noise: deviation of the Gaussian noise that is added to every value of a gradient after
            that, from a cryptographic source; 0 for none. A user then steps all active rows,
            touched or not: who reads its change must not see which ones it touched.
    """

    rates: Mapping[str, float]
    decay: float = 0.0
    whole: bool = False
    factor: float = 1.0
    per_occurrence: bool = False
    radius: float = 0.0
    longest: float = 0.0
    noise: float = 0.0

    @property
    def moves_untouched(self) -> bool:
        """Whether rows move in minibatches that do not hold them."""
        return self.decay > 0 or self.noise > 0


@dataclass(frozen=True, slots=True)
class Adam:
    """Kingma and Ba (2015), algorithm 1, with torch's defaults for its moments.

    Attributes:
        rates: step sizes by parameter.
        decay: L2 coefficient, added to the gradient.
        radius: as in `Sgd`.
        longest: a user's longer gradient of a minibatch (L2 norm over all of `rates`) is shrunk to
            this length, before decay; 0 for no limit.
        kept: whether moments go on from a user's last round, in private parameters that
            `fedrec.algorithms.kept_moments.own_moments` declares; else every round begins afresh.
    """

    rates: Mapping[str, float]
    decay: float = 0.0
    radius: float = 0.0
    longest: float = 0.0
    kept: bool = False

    @property
    def moves_untouched(self) -> bool:
        """Whether rows move in minibatches that do not hold them."""
        return True


@dataclass(frozen=True, slots=True)
class Gradient:
    """The values stay; what a user sends is the sum of its minibatches' gradients.

    It is added up from zero, as a change of large values would lose the bits of a small gradient.

    Attributes:
        names: shared parameters, which no other optimiser of the round moves.
        radius: as in `Sgd`.
    """

    names: tuple[str, ...]
    radius: float = 0.0
    decay: ClassVar[float] = 0.0
    longest: ClassVar[float] = 0.0

    @property
    def rates(self) -> Mapping[str, float]:
        """Each of `names`, once."""
        return dict.fromkeys(self.names, 1.0)

    @property
    def moves_untouched(self) -> bool:
        """Whether rows move in minibatches that do not hold them."""
        return False


Optimiser = Sgd | Adam | Gradient


@dataclass(frozen=True, slots=True)
class Phase:
    """Passes over a user's samples.

    Attributes:
        steps: what is done with every minibatch, one after the other; the optimisers within one
            step take their gradients from the same values.
        epochs: passes; the shuffles of a later phase go on from those before it.
        tolerance: a user whose mean loss over the phase moved relatively less than this in an
            epoch stops for the rest of the round; 0 for never.
        name: what `loss` finds as `v.phase`.
    """

    steps: tuple[tuple[Optimiser, ...], ...]
    epochs: int
    tolerance: float = 0.0
    name: str = ""

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        """All of them."""
        return tuple(optimiser for step in self.steps for optimiser in step)
