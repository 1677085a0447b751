"""The report of one published round, for live views, files and reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

from pydantic import TypeAdapter, ValidationError

from fedrec.errors import StorageError
from fedrec.evaluation.metrics import MetricSums, Protocol, Rates, Split
from fedrec.ids import RoundId
from fedrec.wire.messages import RoundKind

NOTHING_ELSE: Mapping[Protocol, MetricSums] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRates:
    """A round's metrics under a protocol other than the plan's protocol."""

    protocol: Protocol
    validation: Rates | None
    test: Rates | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """One published round.

    The rates belong to the model that the round started from, version ``round - 1``: a round
    measures before it trains.

    Attributes:
        loss: mean training loss per participating user, or None if the round did not train.
        participants: the number of users that trained.
        clipped_values: the number of values clipped to the public range.
        clipped_users: the number of users with at least one such value.
        abstained: the number of clients that contributed nothing because their training diverged.
        validation: the metrics on validation, or None if the round did not measure.
        test: the metrics on test, for the report only. No choice depends on them.
        seconds: the duration of the round.
        vector_bytes: length of one client's protected message.
        n_clients: the number of messages in the sum.
        also: metrics under further protocols, only if one process holds all users.
    """

    round: RoundId
    kind: RoundKind
    loss: float | None
    participants: int
    clipped_values: int
    clipped_users: int
    abstained: int
    validation: Rates | None
    test: Rates | None
    seconds: float
    vector_bytes: int
    n_clients: int
    also: tuple[ProtocolRates, ...] = ()

    def __repr__(self) -> str:
        measured = "" if self.validation is None else f", NDCG {self.validation.ndcg:.4f}"
        return f"RoundReport({self.round}, {self.kind}{measured})"

    @classmethod
    def of(
        cls,
        round_id: RoundId,
        kind: RoundKind,
        sums: MetricSums,
        *,
        seconds: float,
        vector_bytes: int,
        n_clients: int,
        also: Mapping[Protocol, MetricSums] = NOTHING_ELSE,
    ) -> RoundReport:
        """Read a round's report from its metric sums."""
        return cls(
            round=round_id,
            kind=kind,
            loss=sums.loss,
            participants=sums.participants,
            clipped_values=sums.sum_of("clipped_values"),
            clipped_users=sums.sum_of("clipped_users"),
            abstained=sums.abstained,
            validation=sums.rates("model", "validation"),
            test=sums.rates("model", "test"),
            seconds=seconds,
            vector_bytes=vector_bytes,
            n_clients=n_clients,
            also=tuple(
                ProtocolRates(
                    protocol=protocol,
                    validation=further.rates("model", "validation"),
                    test=further.rates("model", "test"),
                )
                for protocol, further in also.items()
            ),
        )

    def rates(self, protocol: Protocol, split: Split, *, of_plan: Protocol) -> Rates | None:
        """Return the round's metrics under a protocol, or None if there are none.

        Args:
            of_plan: the plan's own protocol.
        """
        if protocol == of_plan:
            return self.validation if split == "validation" else self.test
        for found in self.also:
            if found.protocol == protocol:
                return found.validation if split == "validation" else found.test
        return None

    def to_json(self) -> str:
        """Return the report as one line of JSON. Floats keep all their digits."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RoundReport:
        """Read text from `to_json`.

        Raises:
            StorageError: the text is not a round's report.
        """
        try:
            return _REPORT.validate_json(text)
        except ValidationError as error:
            raise StorageError(
                f"This is not a round's report: {text[:60]!r}.", remedy="Restore the file."
            ) from error


_REPORT = TypeAdapter(RoundReport)
