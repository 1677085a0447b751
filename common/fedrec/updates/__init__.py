"""Update structures: one file each, one line each in `UPDATES`."""

from fedrec.updates.colr import CoLR
from fedrec.updates.dense import Dense
from fedrec.updates.update import UpdateStructure

__all__ = ["UPDATES", "CoLR", "Dense", "UpdateStructure"]

UPDATES: dict[str, type[UpdateStructure]] = {"dense": Dense, "colr": CoLR}
