"""Update structures: one file each, one line each in `UPDATES`."""

from fedrec.updates.colr import CoLR
from fedrec.updates.compressed import Compressed
from fedrec.updates.paper_numbers import PaperNumbers
from fedrec.updates.scolr import SCoLR
from fedrec.updates.svd import SVD
from fedrec.updates.topk import TopK
from fedrec.updates.update import Dense, UpdateStructure

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
