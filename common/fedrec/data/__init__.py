"""Reading, fetching, generating, describing and splitting interaction data."""

from fedrec.data.catalogue import Catalogue
from fedrec.data.describe import DatasetSummary, describe
from fedrec.data.fetching import DATASETS, FetchedDataset, cache_folder, fetch_ml_100k
from fedrec.data.importing import ImportedDataset, import_public
from fedrec.data.interactions import MISSING_TIMESTAMP, Interactions
from fedrec.data.ordering import encode_ids, recency_keys, sorted_ids
from fedrec.data.partition import partition_users
from fedrec.data.public import PUBLIC, PublicDataset
from fedrec.data.readers import READERS, BadRow, ReadReport, read_interactions
from fedrec.data.splits import NO_ITEM, UserSplit, leave_one_out
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
    "ImportedDataset",
    "Interactions",
    "PublicDataset",
    "ReadReport",
    "SyntheticDataset",
    "UserSplit",
    "cache_folder",
    "describe",
    "encode_ids",
    "fetch_ml_100k",
    "generate",
    "import_public",
    "leave_one_out",
    "partition_users",
    "read_interactions",
    "recency_keys",
    "sorted_ids",
]
