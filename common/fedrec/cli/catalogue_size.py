"""How many items a federation has: what every size depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.errors import SettingsError
from fedrec.settings.schema import Settings

if TYPE_CHECKING:
    from fedrec.data import Catalogue


def catalogue_size(
    settings: Settings, items: int = 0, known: Catalogue | None = None
) -> tuple[int, str]:
    """Return the number of items and where it was found.

    Args:
        settings: name the catalogue, or else the data.
        items: a number that was given; it counts where the settings name no catalogue.
        known: the items of `data.path`, where it was read already.

    Raises:
        SettingsError: when nobody says it, or the catalogue has another number.
    """
    from fedrec.data import Catalogue
    from fedrec.data.source import kept_and_items, read_source

    data = settings.data
    if data.catalogue is not None:
        n_items = len(Catalogue.load(data.catalogue))
        if items and items != n_items:
            raise SettingsError(
                f"--items says {items}, but data.catalogue has {n_items} items.",
                remedy="Leave --items out.",
            )
        return n_items, f"data.catalogue ({data.catalogue})"
    if items:
        return items, "--items"
    if data.path is None:
        raise SettingsError(
            "The number of items is unknown: neither data.catalogue nor data.path is set.",
            remedy="Set one of them, or give --items N.",
        )
    if known is None:
        _, known = kept_and_items(read_source(data, reader="the number of items"), data)
    return len(known), f"the items in data.path ({data.path})"
