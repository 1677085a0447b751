"""A whole federation in one process."""

from fedrec.simulation.federation import Federation, never, round_kind, simulate
from fedrec.simulation.ranks import against_popularity, model_ranks, popularity_ranks
from fedrec.simulation.recording import record_simulation, report_content
from fedrec.simulation.result import SimulationResult, Version
from fedrec.simulation.seeds import SeedResult, simulate_seeds

__all__ = [
    "Federation",
    "SeedResult",
    "SimulationResult",
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
]
