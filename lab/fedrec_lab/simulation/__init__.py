"""A whole federation in one process."""

from fedrec_lab.simulation.federation import SimulatedFederation, round_kind
from fedrec_lab.simulation.recording import record_simulation, report_content
from fedrec_lab.simulation.result import (
    SimulationResult,
    UserRanks,
    Version,
    against_popularity,
    model_ranks,
    popularity_ranks,
    user_ranks,
    with_tail,
)
from fedrec_lab.simulation.runner import never, simulate
from fedrec_lab.simulation.seeds import SeedResult, simulate_seeds

__all__ = [
    "SeedResult",
    "SimulatedFederation",
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
    "with_tail",
]
