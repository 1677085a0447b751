"""Wrappers: an algorithm around another one's loss.

A wrapper adds parameters, constants or terms to another algorithm, its base. Its settings name the
base as `algorithm.base`, a table with the base's own settings. Everything that a wrapper does not
define is the base's: passes, minibatches and negatives, parameters, phases, scores, loss and
penalty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny, ValidationError, field_validator

from fedrec.algorithms.algorithm import Derived
from fedrec.algorithms.batch import Batch, Values
from fedrec.algorithms.declarations import AlgorithmSettings, Parameter, Shapes, UploadNoise
from fedrec.algorithms.individual import Personal, UserUpdates
from fedrec.algorithms.optimisers import Optimiser, Phase
from fedrec.algorithms.registry import ALGORITHMS
from fedrec.algorithms.settings_warnings import in_base
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.errors import SettingsError
from fedrec.model.state import SharedState
from fedrec.updates.update import UpdateSettings

if TYPE_CHECKING:
    import torch


class WrapperSettings(AlgorithmSettings):
    """The wrapped algorithm and its settings.

    Attributes:
        base_defaults: defaults of the base's settings. Those that a base does not have are ignored.
    """

    base_defaults: ClassVar[Mapping[str, Any]] = {}

    base: SerializeAsAny[AlgorithmSettings] = Field(
        description="The algorithm inside: a table of its settings with its name, as in "
        '[algorithm.base] name = "...".'
    )

    @property
    def made(self) -> TrainedAlgorithm:
        """The base for a catalogue of one item, for facts that follow from settings alone."""
        update = UpdateSettings(structure="dense")
        return base_of(self, Shapes(n_items=1, seed=0, update=update, n_rounds=1))

    @property
    def batch_size(self) -> int:
        """Samples in a minibatch of the base."""
        return int(getattr(self.base, "batch_size", 1))

    @property
    def negatives_per_positive(self) -> int:
        """Items that the base samples as negatives for each interaction."""
        return int(getattr(self.base, "negatives_per_positive", 0))

    @field_validator("base", mode="before")
    @classmethod
    def _settings_of_base(cls, value: Any) -> Any:
        """Read the table as the settings of the algorithm that it names."""
        if not isinstance(value, Mapping):
            return value
        name = value.get("name")
        if not isinstance(name, str) or name not in ALGORITHMS:
            raise ValueError(
                f"There is no algorithm {name!r}. Choose from {', '.join(ALGORITHMS)}."
            )
        kind = ALGORITHMS[name]
        if not issubclass(kind, TrainedAlgorithm) or issubclass(kind, Wrapper):
            raise ValueError(f"{name} has no loss of its own that could be wrapped.")
        if kind.personalise is not TrainedAlgorithm.personalise and not kind.mixes_with:
            raise ValueError(
                f"{name} makes a model for each user, and what a wrapper does to it is not defined."
            )
        usual = {key: own for key, own in cls.base_defaults.items() if _takes(kind, key, own)}
        try:
            return kind.settings_type.model_validate(usual | dict(value))
        except ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()
            )
            raise ValueError(f"The settings of {name} are invalid: {wrong}.") from None


def base_of(settings: WrapperSettings, shapes: Shapes) -> TrainedAlgorithm:
    """Return the algorithm inside.

    Raises:
        SettingsError: the algorithm cannot be wrapped, or its settings cannot be used.
    """
    try:
        base = ALGORITHMS[settings.base.name](settings.base, shapes)
    except SettingsError as error:
        raise SettingsError(in_base(error.message), remedy=in_base(error.remedy)) from None
    if not isinstance(base, TrainedAlgorithm):
        raise SettingsError(
            f"algorithm.base.name is {settings.base.name!r}, which has no loss to wrap.",
            remedy="Name an algorithm that trains on minibatches.",
        )
    return base


class Wrapper(TrainedAlgorithm):
    """An algorithm that delegates to its base by default.

    Attributes:
        base: the algorithm inside, with the same shapes.
    """

    settings: Any

    def __init__(self, settings: AlgorithmSettings, shapes: Shapes) -> None:
        assert isinstance(settings, WrapperSettings)
        self.base = base_of(settings, shapes)
        super().__init__(settings, shapes)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The base's tensors."""
        return self.base.parameters

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return the base's phases."""
        return tuple(
            replace(phase, steps=tuple(tuple(map(self.moving, step)) for step in phase.steps))
            for phase in self.base.phases(scalars)
        )

    def moving(self, optimiser: Optimiser) -> Optimiser:
        """Return the replacement of an optimiser of the base: by default itself."""
        return optimiser

    def seen(self, v: Values) -> Values:
        """Return the values that the base scores with: by default those that it sees itself."""
        return self.base.seen(v)

    def score(self, v: Values) -> torch.Tensor:
        """Return the base's scores."""
        return self.base.score(v)

    def loss(self, v: Values, batch: Batch) -> torch.Tensor:
        """Return the base's loss."""
        return self.base.loss(v, batch)

    def penalty(self, v: Values, batch: Batch) -> torch.Tensor | float:
        """Return the base's penalty."""
        return self.base.penalty(v, batch)

    @cached_property
    def derived(self) -> Derived:
        """Everything that follows from the declarations, and from the base's `personalise`."""
        return Derived(self, personalises=self.base.derived.personalises)

    def personalise(self, updates: UserUpdates) -> Personal:
        """Return the base's models. Users receive no table that the wrapper lets them keep."""
        found = self.base.personalise(updates)
        received = {entry.name for entry in self.parameters if entry.received}
        own = {name: mixture for name, mixture in found.own.items() if name in received}
        return replace(found, own=own)

    @property
    def upload_noise(self) -> UploadNoise | None:
        """The base's noise: a wrapper uploads what its base uploads."""
        return self.base.upload_noise

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Move shared parameters by the means of their changes, and scalars as the base does."""
        moved = super().apply(shared, change, counts, round_id)
        scalars = [
            entry.name
            for entry in self.base.parameters
            if entry.scope == "scalar" and not entry.published
        ]
        if not scalars:
            return moved
        n_rows = len(counts)
        nothing = {
            tensor.name: np.zeros((n_rows, *tensor.shape[1:]) if tensor.per_item else tensor.shape)
            for tensor in self.base.tensors
        }
        after = self.base.apply(shared, nothing, np.zeros_like(counts), round_id)
        return moved.with_tensors(**{name: after.tensors[name] for name in scalars})

    def fold_in(
        self, items: NDArray[np.float64], positives: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the base's vector of a history."""
        return self.base.fold_in(items, positives)


def _takes(kind: type[TrainedAlgorithm], key: str, value: Any) -> bool:
    """Return whether an algorithm has this setting and accepts this value."""
    try:
        kind.settings_type.model_validate({key: value})
    except ValidationError:
        return False
    return key in kind.settings_type.model_fields
