"""A whole federation in one process."""

from fedrec.simulation.federation import Federation, never, round_kind, simulate
from fedrec.simulation.ranks import (
    UserRanks,
    against_popularity,
    model_ranks,
    popularity_ranks,
    user_ranks,
)
from fedrec.simulation.recording import record_simulation, report_content
from fedrec.simulation.result import SimulationResult, Version
from fedrec.simulation.seeds import SeedResult, simulate_seeds

__all__ = [
    "Federation",
    "SeedResult",
    "SimulationResult",
    "UserRanks",
    "Version",
    "against_popularity",
    "model_ranks",
    "never",
    "popularity_ranks",
    "record_simulation",
    "report_content",
    "round_kind",
    "simulate",
    "simulate_seeds",
    "user_ranks",
]
