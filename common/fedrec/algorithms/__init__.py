"""Algorithms: one file each, one line each in `ALGORITHMS`."""

from fedrec.algorithms.algorithm import Algorithm, ChunkResult, Parameter
from fedrec.algorithms.fedmf import FedMF

__all__ = ["ALGORITHMS", "Algorithm", "ChunkResult", "FedMF", "Parameter"]

ALGORITHMS: dict[str, type[Algorithm]] = {"fedmf": FedMF}
