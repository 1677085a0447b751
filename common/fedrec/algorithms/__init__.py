"""Algorithms: one file each, one line each in `ALGORITHMS` or in an installed package."""

from fedrec.algorithms.algorithm import Algorithm, ChunkResult, RoundStart
from fedrec.algorithms.declarations import AlgorithmSettings, Parameter, Shapes, UpdateTensor
from fedrec.algorithms.ease import EASE, EASESettings
from fedrec.algorithms.fedals import FedALS, FedALSSettings
from fedrec.algorithms.fedmf import FedMF, FedMFSettings
from fedrec.algorithms.fedncf import FedNCF, FedNCFSettings
from fedrec.algorithms.pfedrec import PFedRec, PFedRecSettings
from fedrec.algorithms.registry import Registry

__all__ = [
    "ALGORITHMS",
    "EASE",
    "Algorithm",
    "AlgorithmSettings",
    "ChunkResult",
    "EASESettings",
    "FedALS",
    "FedALSSettings",
    "FedMF",
    "FedMFSettings",
    "FedNCF",
    "FedNCFSettings",
    "PFedRec",
    "PFedRecSettings",
    "Parameter",
    "RoundStart",
    "Shapes",
    "UpdateTensor",
]

ALGORITHMS = Registry(
    {
        "fedmf": FedMF,
        "fedals": FedALS,
        "ease": EASE,
        "pfedrec": PFedRec,
        "fedncf": FedNCF,
    }
)
