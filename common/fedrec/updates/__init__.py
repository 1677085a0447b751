"""Update structures. Each has one line in `UPDATES`."""

from fedrec.updates.colr import CoLR, SCoLR
from fedrec.updates.compressed import SVD, Compressed, TopK
from fedrec.updates.update import Dense, PaperNumbers, UpdateStructure

__all__ = [
    "SVD",
    "UPDATES",
    "CoLR",
    "Compressed",
    "Dense",
    "PaperNumbers",
    "SCoLR",
    "TopK",
    "UpdateStructure",
]

UPDATES: dict[str, type[UpdateStructure]] = {
    "dense": Dense,
    "colr": CoLR,
    "scolr": SCoLR,
    "svd": SVD,
    "topk": TopK,
}
