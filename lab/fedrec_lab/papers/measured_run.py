"""What one run of a row measured: a protocol, a seed, the round chosen on validation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from fedrec.errors import StorageError
from fedrec.evaluation.metrics import Protocol, Rates, Scorer
from fedrec_lab.simulation.result import SimulationResult

REFERENCES: Mapping[Scorer, str] = {
    "popularity": "popularity",
    "know_nothing": "know-nothing counter",
    "untrained": "untrained model",
}
"""Rows that learned nothing, and what they are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A finished run of a row under one protocol with one seed.

    Attributes:
        best_round: the version with the best NDCG on validation.
        validation, test: rates of that version.
        references: rates on test of the scorers in `REFERENCES`.
        no_learning: what the closed formula gives for this training; None where nothing leaks.
        clipped_values: values of all rounds that had to be clipped.
        seconds: time of all rounds together.
    """

    protocol: Protocol
    seed: int
    best_round: int
    validation: Rates
    test: Rates
    references: Mapping[str, Rates]
    clipped_values: int
    seconds: float
    no_learning: Rates | None = None

    @classmethod
    def of(cls, result: SimulationResult, protocol: Protocol) -> Measured:
        """Read it from a finished simulation that measured the protocol at least once."""
        chosen, evaluation = result.chosen(protocol), result.evaluations[protocol]
        assert chosen is not None
        version, test = chosen
        own = result.settings.evaluation.protocol
        validation = result.rounds[version].rates(protocol, "validation", of_plan=own)
        assert validation is not None
        found = {scorer: evaluation.rates(scorer, "test") for scorer in REFERENCES}
        return cls(
            protocol=protocol,
            seed=result.settings.federation.seed,
            best_round=version,
            validation=validation,
            test=test,
            references={name: rates for name, rates in found.items() if rates is not None},
            clipped_values=sum(report.clipped_values for report in result.rounds),
            seconds=sum(report.seconds for report in result.rounds),
            no_learning=result.no_learning() if protocol == "paper" else None,
        )

    @staticmethod
    def to_json(measured: Sequence[Measured]) -> str:
        """Return what one training was measured under, as JSON."""
        return json.dumps([asdict(found) for found in measured], indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> tuple[Measured, ...]:
        """Read what `to_json` wrote.

        Raises:
            StorageError: it is something else.
        """
        try:
            return _MEASURED.validate_json(text)
        except ValidationError as error:
            raise StorageError(
                f"This is no result of a row: {text[:60]!r}.",
                remedy="Delete the file; the run that it belongs to is done again.",
            ) from error


_MEASURED = TypeAdapter(tuple[Measured, ...])
