"""Reading the data that settings name: where a `[data]` section becomes users and items."""

from __future__ import annotations

from fedrec.data.catalogue import Catalogue
from fedrec.data.interactions import Interactions
from fedrec.data.public import require_if_public
from fedrec.data.readers import read_interactions
from fedrec.data.settings import DataSettings
from fedrec.data.splits import UserSplit, leave_one_out
from fedrec.errors import SettingsError

__all__ = ["read_source", "read_users"]


def read_source(data: DataSettings, *, reader: str) -> Interactions:
    """Read `data.path` the way that its section says.

    Args:
        reader: who needs the file, for the error: "a client".

    Raises:
        SettingsError: no data file is named.
        DataError: the file cannot be used.
    """
    if data.path is None:
        raise SettingsError(
            f"data.path is missing: {reader} needs a file with interactions.",
            remedy="Set data.path in the settings or by a flag of the command.",
        )
    require_if_public(data.path)
    interactions, _ = read_interactions(
        data.path,
        layout=data.layout,
        user_column=data.user_column,
        item_column=data.item_column,
        timestamp_column=data.timestamp_column,
        strict=data.strict,
    )
    return interactions


def read_users(
    data: DataSettings, catalogue: Catalogue | None = None, *, reader: str
) -> tuple[UserSplit, Catalogue]:
    """Read and split the data file.

    Args:
        catalogue: the federation's items; None takes `data.catalogue`, and without that the
            items of the file itself.
        reader: who needs the file, for the error.

    Raises:
        SettingsError: no data file is named.
        DataError: the file or the catalogue cannot be used.
        CatalogueMismatch: the file has items that the catalogue has not.
    """
    interactions = read_source(data, reader=reader)
    if catalogue is None and data.catalogue is not None:
        catalogue = Catalogue.load(data.catalogue)
    if catalogue is None:
        catalogue = Catalogue.from_interactions(interactions)
    split = leave_one_out(interactions, catalogue, minimum_interactions=data.minimum_interactions)
    return split, catalogue
