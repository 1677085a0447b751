"""Reading what a simulation is about: everybody's interactions, and the items."""

from __future__ import annotations

from fedrec.config.schema import DataSettings
from fedrec.data import Catalogue, UserSplit, leave_one_out, read_interactions
from fedrec.errors import SettingsError

__all__ = ["read_source"]


def read_source(data: DataSettings) -> tuple[UserSplit, Catalogue]:
    """Read and split the data file; without a catalogue the file's own items make one.

    Raises:
        SettingsError: no data file is named.
        DataError: the file or the catalogue cannot be used.
        CatalogueMismatch: the file has items that the catalogue has not.
    """
    if data.path is None:
        raise SettingsError(
            "data.path is missing: a simulation needs a file with interactions.",
            remedy="Set data.path in the settings.",
        )
    interactions, _ = read_interactions(
        data.path,
        layout=data.layout,
        user_column=data.user_column,
        item_column=data.item_column,
        timestamp_column=data.timestamp_column,
        strict=data.strict,
    )
    if data.catalogue is None:
        catalogue = Catalogue.from_interactions(interactions)
    else:
        catalogue = Catalogue.load(data.catalogue)
    split = leave_one_out(interactions, catalogue, minimum_interactions=data.minimum_interactions)
    return split, catalogue
