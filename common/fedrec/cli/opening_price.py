"""The price of opening a sum whose values have their indices in the clear."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.config.schema import Plan
from fedrec.protection import ProtectionPlan
from fedrec.protection.asked_round import opening_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningPrice:
    """What it takes to open a sum of values with indices in the clear.

    Attributes:
        entries: values in an upload.
        n_places: among how many.
        expected_entries: in a sum of all clients' uploads, were their indices independent.
        most_entries: where no two clients send the same index.
        sum_bytes: length of the expected sum.
        seconds: for a slow machine on a slow line, of the expected sum.
        report_seconds: after which the run goes on without clients' word on what they decrypted;
            None where it waits for the key authority.
    """

    entries: int
    n_places: int
    expected_entries: int
    most_entries: int
    sum_bytes: int
    seconds: float
    report_seconds: float | None

    @classmethod
    def of(cls, plan: Plan, chosen: ProtectionPlan, n_clients: int) -> OpeningPrice | None:
        """Return the price under a protection's plan; None where sums have no entries."""
        if not chosen.entries:
            return None
        alone = plan.authority_opens
        adds_up = alone and n_clients <= plan.rounds.recompute_limit
        seconds = opening_seconds(chosen, n_clients, adds_up=adds_up)
        n_blocks, tail = chosen.expected_blocks(n_clients), chosen.n_blocks - chosen.entries
        return cls(
            entries=chosen.entries,
            n_places=chosen.n_places,
            expected_entries=n_blocks - tail,
            most_entries=chosen.most_blocks(n_clients) - tail,
            sum_bytes=chosen.sum_bytes(n_blocks),
            seconds=seconds,
            report_seconds=None if alone else max(seconds, plan.rounds.report_seconds),
        )
