"""A whole federation in one process."""

from fedrec.simulation.federation import Federation, never, round_kind, simulate
from fedrec.simulation.ranks import against_popularity, model_ranks, popularity_ranks
from fedrec.simulation.recording import record_simulation, report_content
from fedrec.simulation.result import SimulationResult, Version

__all__ = [
    "Federation",
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
]
