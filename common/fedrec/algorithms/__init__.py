"""Algorithms: one file each, one line each in `ALGORITHMS`."""

from fedrec.algorithms.algorithm import (
    Algorithm,
    AlgorithmSettings,
    ChunkResult,
    Parameter,
    RoundStart,
    UpdateTensor,
)
from fedrec.algorithms.fedals import FedALS, FedALSSettings
from fedrec.algorithms.fedmf import FedMF, FedMFSettings

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmSettings",
    "ChunkResult",
    "FedALS",
    "FedALSSettings",
    "FedMF",
    "FedMFSettings",
    "Parameter",
    "RoundStart",
    "UpdateTensor",
]

ALGORITHMS: dict[str, type[Algorithm]] = {"fedmf": FedMF, "fedals": FedALS}
