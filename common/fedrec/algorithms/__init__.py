"""Algorithms: one file each, one line each in `registry.py` or in an installed package."""

from fedrec.algorithms.algorithm import Algorithm, ChunkResult, RoundStart
from fedrec.algorithms.batch import Batch, Values, cross_entropy, dot
from fedrec.algorithms.cofedrec import CoFedRec, CoFedRecSettings
from fedrec.algorithms.declarations import (
    About,
    Advice,
    AlgorithmSettings,
    Circumstances,
    Constant,
    Exposure,
    Needs,
    Normal,
    Parameter,
    SearchSpace,
    Shapes,
    Support,
    Uniform,
    UpdateTensor,
    UploadNoise,
)
from fedrec.algorithms.ease import EASE, EASESettings
from fedrec.algorithms.exact import ExactAlgorithm
from fedrec.algorithms.fedals import FedALS, FedALSSettings
from fedrec.algorithms.fedmf import FedMF, FedMFSettings
from fedrec.algorithms.fedncf import FedNCF, FedNCFSettings
from fedrec.algorithms.fedrap import FedRAP, FedRAPSettings
from fedrec.algorithms.fedrecgel import FedRecGEL, FedRecGELSettings
from fedrec.algorithms.gpfedrec import GPFedRec, GPFedRecSettings
from fedrec.algorithms.individual import Mixture, Personal, UserUpdates
from fedrec.algorithms.optimisers import Adam, Gradient, Phase, Sgd, SharedAdam, own_moments
from fedrec.algorithms.perfedrec import PerFedRec, PerFedRecSettings
from fedrec.algorithms.pfedclr import PFedCLR, PFedCLRSettings
from fedrec.algorithms.pfedgraph import PFedGraph, PFedGraphSettings
from fedrec.algorithms.pfedrec import PFedRec, PFedRecSettings
from fedrec.algorithms.plgc import PLGC, PLGCSettings
from fedrec.algorithms.registry import ALGORITHMS
from fedrec.algorithms.sketch import Sketch, SketchSettings
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.algorithms.wrapper import Wrapper, WrapperSettings

__all__ = [
    "ALGORITHMS",
    "DEFAULT_ALGORITHM",
    "EASE",
    "PLGC",
    "STARTING_ALGORITHM",
    "About",
    "Adam",
    "Advice",
    "Algorithm",
    "AlgorithmSettings",
    "Batch",
    "ChunkResult",
    "Circumstances",
    "CoFedRec",
    "CoFedRecSettings",
    "Constant",
    "EASESettings",
    "ExactAlgorithm",
    "Exposure",
    "FedALS",
    "FedALSSettings",
    "FedMF",
    "FedMFSettings",
    "FedNCF",
    "FedNCFSettings",
    "FedRAP",
    "FedRAPSettings",
    "FedRecGEL",
    "FedRecGELSettings",
    "GPFedRec",
    "GPFedRecSettings",
    "Gradient",
    "Mixture",
    "Needs",
    "Normal",
    "PFedCLR",
    "PFedCLRSettings",
    "PFedGraph",
    "PFedGraphSettings",
    "PFedRec",
    "PFedRecSettings",
    "PLGCSettings",
    "Parameter",
    "PerFedRec",
    "PerFedRecSettings",
    "Personal",
    "Phase",
    "RoundStart",
    "SearchSpace",
    "Sgd",
    "Shapes",
    "SharedAdam",
    "Sketch",
    "SketchSettings",
    "Support",
    "TrainedAlgorithm",
    "TrainedSettings",
    "Uniform",
    "UpdateTensor",
    "UploadNoise",
    "UserUpdates",
    "Values",
    "Wrapper",
    "WrapperSettings",
    "cross_entropy",
    "dot",
    "own_moments",
]

DEFAULT_ALGORITHM: type[Algorithm] = FedMF
"""The default algorithm."""
STARTING_ALGORITHM: type[Algorithm] = FedALS
"""The algorithm of a first settings file: it needs few rounds and little tuning."""
