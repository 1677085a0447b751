"""Centralised MF and NCF: the federation's own code with one party that holds everybody.

What federation costs is taken away: full tables in place of low-rank updates, every user in every
round, no clipping, and a grid so fine that float32 changes pass through it unrounded. What stays
is the algorithm: in each round every user trains from the same model, and rows move by the mean
of their users' changes. It is thus no stochastic gradient descent over one shuffled pool of all
samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from fedrec.algorithms import AlgorithmSettings, FedMFSettings, FedNCFSettings
from fedrec.algorithms.trained import MOST_SAMPLES
from fedrec.config.schema import ProtectionSettings, Settings, UpdateSettings
from fedrec.config.starter import TUNED
from fedrec_lab.comparison.measurement import Measurement, Task
from fedrec_lab.comparison.references.reference import Reference
from fedrec_lab.comparison.training import measurements_of, train

__all__ = ["CentralisedMF", "CentralisedNCF", "centralised"]

ROUNDS_BESIDE = TUNED["fedmf"].rounds.total
"""Rounds beside a run with another algorithm."""
_WIDE_CLIP = 64.0
_SUM_BITS = 61
"""Sums of all users' values stay inside signed words of 64 bits."""
_MOST_FRACTION_BITS = 40


def centralised(settings: Settings, algorithm: AlgorithmSettings, *, rounds: int) -> Settings:
    """Return a run's settings with another algorithm, all of whose data is in one place."""
    # Of users who are weighed each counts as often as its weight.
    room = settings.federation.maximum_users * MOST_SAMPLES
    bits = min(_MOST_FRACTION_BITS, _SUM_BITS - room.bit_length())
    update = UpdateSettings(structure="dense", clip=_WIDE_CLIP, fraction_bits=bits)
    return settings.model_copy(
        update={
            "algorithm": algorithm,
            "update": update,
            "protection": ProtectionSettings(name="none"),
            "rounds": settings.rounds.model_copy(update={"total": rounds, "user_fraction": 1.0}),
        }
    )


class _Centralised(Reference):
    """Trains like a federation of one party."""

    seeded: ClassVar[bool] = True
    draws_negatives: ClassVar[bool] = True
    settings_type: ClassVar[type[AlgorithmSettings]]

    def settings(self, run: Settings) -> Settings:
        """Return what is trained: the run's own hyperparameters where it has this algorithm."""
        if isinstance(run.algorithm, self.settings_type):
            return centralised(run, self.unbounded(run.algorithm), rounds=run.rounds.total)
        return centralised(run, self.unbounded(self.default()), rounds=ROUNDS_BESIDE)

    @staticmethod
    def unbounded(algorithm: AlgorithmSettings) -> AlgorithmSettings:
        """Return an algorithm's settings without public ranges of its own."""
        return algorithm

    @classmethod
    def default(cls) -> AlgorithmSettings:
        """Return what is trained beside another algorithm."""
        return cls.settings_type.model_validate({})

    def measure(self, task: Task) -> list[Measurement]:
        """Train once for each seed; see `Reference.measure`."""
        settings = self.settings(task.settings)
        found: list[Measurement] = []
        for seed in task.seeds:
            result = train(replace(task, n_clients=1, cells=()), settings, seed)
            found += measurements_of(result, method=self.name, label=self.label)
        return found


class CentralisedMF(_Centralised):
    """FedMF's rule without what federation costs."""

    name: ClassVar[str] = "centralised-mf"
    label: ClassVar[str] = "MF, centralised"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedMFSettings

    @classmethod
    def default(cls) -> AlgorithmSettings:
        """Return the settings that were tuned on MovieLens-100K's validation items."""
        return TUNED["fedmf"].algorithm


class CentralisedNCF(_Centralised):
    """FedNCF's rule without what federation costs."""

    name: ClassVar[str] = "centralised-ncf"
    label: ClassVar[str] = "NCF, centralised"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedNCFSettings

    @staticmethod
    def unbounded(algorithm: AlgorithmSettings) -> AlgorithmSettings:
        """Return the settings with a wide range for the network, too."""
        return algorithm.model_copy(update={"network_clip": _WIDE_CLIP})
