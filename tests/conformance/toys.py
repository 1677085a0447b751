"""Small algorithms that ask of the trainer what the papers' systems to come will ask.

`Toy` states what they have in common; each class adds one thing that none of fedrec's own has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny

from fedrec.algorithms import ALGORITHMS, AlgorithmSettings, FedMFSettings, Parameter
from fedrec.algorithms.batch import Batch, Values, dot
from fedrec.algorithms.declarations import Constant, Normal
from fedrec.algorithms.fedrecgel import uphill
from fedrec.algorithms.optimisers import Adam, Phase, Sgd
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.algorithms.wrapper import Wrapper, WrapperSettings
from fedrec.model.state import SharedState

DIM = 5


class ToySettings(TrainedSettings):
    name: Literal["toy"] = "toy"
    rate: float = Field(default=0.5, gt=0)


class Toy(TrainedAlgorithm):
    """A private vector and shared rows."""

    settings_type: ClassVar[type[AlgorithmSettings]] = ToySettings
    settings: Any

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (
            Parameter("item_embedding", "rows", (DIM,), Normal(0.5)),
            Parameter("user_embedding", "own", (DIM,), Normal(0.5)),
        )

    def score(self, v: Values) -> torch.Tensor:
        return dot(v.item_embedding, v.user_embedding)

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        rate = self.settings.rate
        step = Sgd({"item_embedding": 20 * rate, "user_embedding": rate})
        return (Phase(steps=((step,),), epochs=self.settings.local_epochs),)


class SharpnessSettings(ToySettings):
    name: Literal["sam-toy"] = "sam-toy"  # type: ignore[assignment]
    radius: float = 0.3


class Sharpness(Toy):
    """Sharpness-aware steps of rows, vector and a bias of no axes, together."""

    settings_type: ClassVar[type[AlgorithmSettings]] = SharpnessSettings

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (*super().parameters, Parameter("user_bias", "own", (), Constant(0.1)))

    def score(self, v: Values) -> torch.Tensor:
        return super().score(v) + v.user_bias[:, None]

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        rates = {"item_embedding": 10.0, "user_embedding": 0.5, "user_bias": 0.5}
        step = Sgd(rates, passes=uphill(self.settings.radius))
        return (Phase(((step,),), epochs=self.settings.local_epochs),)


class OffsetSettings(WrapperSettings):
    name: Literal["wrapper-toy"] = "wrapper-toy"
    base: SerializeAsAny[AlgorithmSettings] = FedMFSettings(
        dim=DIM, regularisation=0.01, learning_rate=0.4, local_epochs=1
    )


class Offset(Wrapper):
    """Another algorithm, whose rows each user sees with an offset of its own."""

    settings_type: ClassVar[type[AlgorithmSettings]] = OffsetSettings

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        own = Parameter("own_item", "own_rows", (DIM,), Normal(0.1))
        return (*self.base.parameters, own)

    def seen(self, v: Values) -> Values:
        """Return what the base sees."""
        return v.having({"item_embedding": v.item_embedding + v.own_item})

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """The base's, with own rows that move as its rows do."""
        (phase,) = self.base.phases(scalars)
        (step,) = phase.optimisers
        rates = dict(step.rates) | {"own_item": step.rates["item_embedding"]}
        moved = Sgd(rates, per_occurrence=True)
        return (Phase(((moved,),), epochs=phase.epochs),)


class ScheduleSettings(ToySettings):
    name: Literal["schedule-toy"] = "schedule-toy"  # type: ignore[assignment]


class Schedule(Toy):
    """A shared scalar that grows with every published round is its step size and its pull."""

    settings_type: ClassVar[type[AlgorithmSettings]] = ScheduleSettings

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (*super().parameters, Parameter("pace", "scalar", (), Constant(1.0)))

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        pace = scalars["pace"]
        step = Sgd({"item_embedding": 3.0 * pace, "user_embedding": 0.3 * pace})
        return (Phase(((step,),), epochs=self.settings.local_epochs),)

    def penalty(self, v: Values, batch: Batch) -> torch.Tensor:
        return v.pace * 0.01 * batch.weighted_sum(v.item_embedding.square().sum(-1))

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        moved = super().apply(shared, change, counts, round_id)
        return moved.with_tensors(pace=moved.tensors["pace"] * 1.25)


class SeveralSettings(ToySettings):
    name: Literal["several-toy"] = "several-toy"  # type: ignore[assignment]


class Several(Toy):
    """Tensors of every shape, range, grid and mean; Adam moves a private table.

    In a first phase the shared tensors move, in a second the private ones.
    """

    settings_type: ClassVar[type[AlgorithmSettings]] = SeveralSettings

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (
            Parameter("item_embedding", "rows", (DIM,), Normal(0.5), mean="holders"),
            Parameter(
                "item_bias", "rows", (), Normal(0.1), limit=8.0, fraction_bits=29, mean="samples"
            ),
            Parameter("scale", "net", (2, DIM), Normal(0.5), limit=4.0, mean="samples"),
            Parameter("bias", "net", (), Normal(0.1), limit=4.0, fraction_bits=28),
            Parameter("own_rows", "own_rows", (2, DIM), Normal(0.1)),
            Parameter("user_embedding", "own", (DIM,), Normal(0.5)),
        )

    def score(self, v: Values) -> torch.Tensor:
        rows = v.item_embedding + (v.own_rows * v.scale[:, None]).sum(-2)
        return dot(rows, v.user_embedding) + v.item_bias + v.bias[:, None]

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        shared = Sgd({"item_embedding": 3.0, "item_bias": 3.0, "scale": 0.2, "bias": 0.2})
        private = Adam({"own_rows": 0.05, "user_embedding": 0.05})
        epochs = self.settings.local_epochs
        return (
            Phase(((shared,),), epochs=epochs, name="shared"),
            Phase(((private,),), epochs=epochs + 1, name="private"),
        )


TOYS: tuple[type[TrainedAlgorithm], ...] = (Sharpness, Offset, Schedule, Several)


@contextmanager
def registered() -> Iterator[None]:
    """Register the toys for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for toy in TOYS:
            patch.setitem(ALGORITHMS._all, toy.name, toy)
        yield
