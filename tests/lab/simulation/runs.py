"""Simulations of the small federation, and what is compared of two of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedrec.data import Catalogue, UserSplit
from fedrec.model.state import PrivateState
from fedrec.settings.schema import Settings
from fedrec_lab.simulation import simulate
from fedrec_lab.simulation.result import SimulationResult


def run(settings: Settings, data: tuple[UserSplit, Catalogue], **options: Any) -> SimulationResult:
    """Simulate a federation of these users and items."""
    users, catalogue = data
    return simulate(settings, users=users, catalogue=catalogue, **options)


def bits(result: SimulationResult) -> Any:
    """Return everything that a federation publishes, and what its users keep."""
    states = [
        version.shared.canonical_bytes() + PrivateState.of(version.private.arrays()).to_bytes()
        for version in (result.last, result.best)
    ]
    rounds = [replace(report, seconds=0.0, vector_bytes=0, n_clients=0) for report in result.rounds]
    return states, rounds, result.best.round
