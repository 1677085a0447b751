"""Look up a user's history in the data that a run folder's settings name.

A deployed federation's folder has no user vectors. If the user's own data is on this machine, the
history is enough: `Recommender.fold_in` computes a vector from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedrec.data.reading import DataSettings
from fedrec.data.source import read_source
from fedrec.errors import DataError
from fedrec.settings.validation import load_settings

_SETTINGS = ("resolved.toml", "clients/*/client.toml", "kits/clients/*/client.toml")
"""The settings of the run and, in a demo's folder, those of its clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A user's distinct items, and the file that has them."""

    item_ids: tuple[str, ...]
    source: Path


def find_history(run_folder: Path, user: str, data: DataSettings | None = None) -> History:
    """Return a user's items in the data on this machine.

    Args:
        run_folder: its settings name the data.
        user: the user, as the data names it.
        data: a file to search instead, with its reading options.

    Raises:
        DataError: no file has the user, or the given file cannot be used.
    """
    sources = list(_sources(run_folder)) if data is None else [data]
    for source in sources:
        found = read_source(source, reader="a history")
        items = dict.fromkeys(found.item_ids[found.user_ids == user].tolist())
        if items:
            return History(item_ids=tuple(items), source=Path(str(source.path)))
    looked = ", ".join(str(source.path) for source in sources) or "none"
    raise DataError(
        f"User {user!r} has no history here. Files searched: {looked}.",
        remedy="Ask the client that holds this user with `fedrec recommend SETTINGS --user ID`, "
        "or pass the history with --data FILE or --history ITEM.",
    )


def _sources(run_folder: Path) -> Iterator[DataSettings]:
    """Yield the data sources in a run's settings that exist on this machine."""
    for pattern in _SETTINGS:
        for path in sorted(run_folder.glob(pattern)):
            # The environment is for the current command, not for the run.
            data = load_settings(path, environ={}).data
            if data.path is not None and Path(data.path).is_file():
                yield data
