"""How a simulated round adds up: plainly, or really protected and revealed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedrec.config.schema import Plan
from fedrec.evaluation.metrics import MetricSums, Protocol
from fedrec.protection import PROTECTIONS, Protection, VectorSpec
from fedrec.protection.rehearsal import Rehearsal, check_summands, rehearse
from fedrec.training.evaluator import Segments

__all__ = ["Adder", "PlainAdder", "ProtectedAdder", "add_segments", "make_adder"]


class Adder(ABC):
    """Adds the vectors of a round."""

    @abstractmethod
    def add_up(self, vectors: Sequence[NDArray[np.int64]], spec: VectorSpec) -> NDArray[np.int64]:
        """Return the exact sum, int64 (length,).

        Args:
            spec: what the round's vectors are.
        """


class PlainAdder(Adder):
    """Adds integers."""

    def add_up(self, vectors: Sequence[NDArray[np.int64]], spec: VectorSpec) -> NDArray[np.int64]:
        """Return the sum."""
        total = np.zeros_like(vectors[0])
        for vector in vectors:
            total += vector
        return total


class ProtectedAdder(Adder):
    """Does what clients, coordinator and key holders do, in one process."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal

    def add_up(self, vectors: Sequence[NDArray[np.int64]], spec: VectorSpec) -> NDArray[np.int64]:
        """Protect every vector, add the messages and reveal the sum."""
        return self._rehearsal.add_up(vectors, spec)


def make_adder(
    plan: Plan, largest: VectorSpec, *, n_clients: int, protect: bool
) -> tuple[Adder, Protection]:
    """Return the adder of a run's rounds, and the protection of its largest vector.

    Args:
        largest: a vector into which every round's fits.
        protect: really protect, add and reveal, which takes time and changes no bit.

    Raises:
        SettingsError: the protection cannot protect this vector, or that many clients.
    """
    name = plan.protection.name
    kind = PROTECTIONS[name]
    chosen = kind.plan(largest, preset=plan.protection.preset)
    protection = kind(largest, chosen)
    if not protect:
        return PlainAdder(), protection
    check_summands(protection, n_clients)
    rehearsal = rehearse(protection, plan.protection, n_clients)
    return ProtectedAdder(rehearsal), protection


def add_segments(segments: Sequence[Segments]) -> dict[Protocol, MetricSums]:
    """Return the sums of what was measured under further protocols; they are never protected."""
    total: Segments = {}
    for found in segments:
        for protocol, values in found.items():
            total[protocol] = total[protocol] + values if protocol in total else values
    return {protocol: MetricSums(values) for protocol, values in total.items()}
