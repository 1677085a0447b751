"""Read, fetch, generate, describe and split interaction data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedrec.data.catalogue import Catalogue
    from fedrec.data.fetching import (
        DATASETS,
        FetchedDataset,
        ImportedDataset,
        fetch_ml_100k,
        import_public,
    )
    from fedrec.data.gathering import BadRow
    from fedrec.data.interactions import (
        MISSING_TIMESTAMP,
        DatasetSummary,
        Interactions,
        describe,
        encode_ids,
        partition_users,
        recency_keys,
        sorted_ids,
    )
    from fedrec.data.layouts import READERS
    from fedrec.data.public import PUBLIC, PublicDataset, cache_folder
    from fedrec.data.readers import ReadReport, read_interactions
    from fedrec.data.reading import Reading
    from fedrec.data.splits import NO_ITEM, HeldOut, UserSplit, hold_out, leave_one_out
    from fedrec.data.synthetic import SyntheticDataset, generate

__all__ = [
    "DATASETS",
    "MISSING_TIMESTAMP",
    "NO_ITEM",
    "PUBLIC",
    "READERS",
    "BadRow",
    "Catalogue",
    "DatasetSummary",
    "FetchedDataset",
    "HeldOut",
    "ImportedDataset",
    "Interactions",
    "PublicDataset",
    "ReadReport",
    "Reading",
    "SyntheticDataset",
    "UserSplit",
    "cache_folder",
    "describe",
    "encode_ids",
    "fetch_ml_100k",
    "generate",
    "hold_out",
    "import_public",
    "leave_one_out",
    "partition_users",
    "read_interactions",
    "recency_keys",
    "sorted_ids",
]

_HOMES = {
    "Catalogue": "fedrec.data.catalogue",
    "DATASETS": "fedrec.data.fetching",
    "FetchedDataset": "fedrec.data.fetching",
    "cache_folder": "fedrec.data.public",
    "fetch_ml_100k": "fedrec.data.fetching",
    "ImportedDataset": "fedrec.data.fetching",
    "import_public": "fedrec.data.fetching",
    "MISSING_TIMESTAMP": "fedrec.data.interactions",
    "Interactions": "fedrec.data.interactions",
    "encode_ids": "fedrec.data.interactions",
    "recency_keys": "fedrec.data.interactions",
    "sorted_ids": "fedrec.data.interactions",
    "partition_users": "fedrec.data.interactions",
    "PUBLIC": "fedrec.data.public",
    "PublicDataset": "fedrec.data.public",
    "READERS": "fedrec.data.readers",
    "BadRow": "fedrec.data.readers",
    "ReadReport": "fedrec.data.readers",
    "read_interactions": "fedrec.data.readers",
    "Reading": "fedrec.data.reading",
    "NO_ITEM": "fedrec.data.splits",
    "UserSplit": "fedrec.data.splits",
    "HeldOut": "fedrec.data.splits",
    "hold_out": "fedrec.data.splits",
    "leave_one_out": "fedrec.data.splits",
    "DatasetSummary": "fedrec.data.interactions",
    "describe": "fedrec.data.interactions",
    "SyntheticDataset": "fedrec.data.synthetic",
    "generate": "fedrec.data.synthetic",
}
"""The module of each public name.

They are imported lazily, because settings of the data need no numpy.
"""


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
