"""Reading the data that settings name: where a `[data]` section becomes users and items."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from fedrec.data.catalogue import Catalogue
from fedrec.data.fetching import DATASETS
from fedrec.data.interactions import Interactions
from fedrec.data.public import PUBLIC, cached_path, require_if_public
from fedrec.data.readers import ReadReport
from fedrec.data.reading import flag_of
from fedrec.data.settings import DataSettings
from fedrec.data.splits import Divide, UserSplit, leave_one_out
from fedrec.data.trying import read_file, time_columns
from fedrec.errors import DataError, SettingsError

RANDOM_HOLDOUT = (
    "has no times, so that held-out items are random ones: the tie rule, by SHA-256 of user and "
    "item, orders them"
)


def _quiet(note: str) -> None:
    """Tell nobody."""


def check_one_party(data: DataSettings) -> None:
    """Refuse what only somebody with all data could know.

    Raises:
        SettingsError: a client is to leave out items that few users of all clients have.
    """
    if data.minimum_item_interactions > 1:
        raise SettingsError(
            f"data.minimum_item_interactions is {data.minimum_item_interactions}, but one client "
            "cannot know how many users of all clients have an item.",
            remedy="Leave it out of a client's settings: federation.minimum_item_users freezes "
            "rare items for everybody, by counts that are summed under protection.",
        )


def read_source(
    data: DataSettings,
    *,
    reader: str,
    tell: Callable[[str], None] = _quiet,
    warn: bool = False,
) -> Interactions:
    """Read `data.path` the way that its section says; nobody is left out for a minimum.

    Args:
        reader: who needs the file, for the error: "a client".
        tell: told, in a sentence, of what was left out and what the file lacks.
        warn: also warn, as Python code expects it, of what was left out and no setting asks for.

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
    found, report = read_file(data.path, data)
    for note in (*_unasked(report), *_notes(found, report, data)):
        tell(note)
    for note in _unasked(report) if warn else ():
        warnings.warn(f"{data.path}: {note}.", stacklevel=2)
    return found


def selected(
    found: Interactions, data: DataSettings, *, tell: Callable[[str], None] = _quiet
) -> Interactions:
    """Keep who reaches the minimums of `data`, and say how many do not.

    Raises:
        DataError: nobody does.
    """
    per_user, per_item = data.minimum_interactions, data.minimum_item_interactions
    if per_user == 1 and per_item == 1:
        return found
    kept = found.with_minimum(per_user, per_item)
    if not len(kept):
        raise _nothing_left(found, data)
    lost = (
        (found.n_users - kept.n_users, found.n_users, "users"),
        (found.n_items - kept.n_items, found.n_items, "items"),
        (len(found) - len(kept), len(found), "rows"),
    )
    words = ", ".join(f"{count} of {total} {what}" for count, total, what in lost)
    tell(f"left out by minimums of {per_user} a user and {per_item} an item: {words}")
    return kept


def _nothing_left(found: Interactions, data: DataSettings) -> DataError:
    """Return what to say where nobody reaches the minimums; only those that were set are named."""
    minimums = {
        "minimum_interactions": (data.minimum_interactions, "a user"),
        "minimum_item_interactions": (data.minimum_item_interactions, "an item"),
    }
    asked = {name: words for name, words in minimums.items() if words[0] > 1}
    about = f"{found.n_users} users and {found.n_items} items"
    reached = " and ".join(f"{minimum} interactions {each}" for minimum, each in asked.values())
    return DataError(
        f"Nothing of {data.path} is left: of its {about}, none reach {reached}.",
        remedy=f"Lower {' or '.join(map(flag_of, asked))}.",
        options=dict.fromkeys(asked, "1"),
    )


def kept_and_items(
    found: Interactions,
    data: DataSettings,
    catalogue: Catalogue | None = None,
    *,
    tell: Callable[[str], None] = _quiet,
) -> tuple[Interactions, Catalogue]:
    """Return what counts of what `read_source` read, and the items; see `read_users`."""
    kept = selected(found, data, tell=tell)
    if catalogue is None and data.catalogue is not None:
        catalogue = Catalogue.load(data.catalogue)
    if catalogue is None:
        # A minimum of users leaves users out; only one of items leaves items out.
        by_items = data.minimum_item_interactions > 1
        catalogue = Catalogue.from_interactions(kept if by_items else found)
    return kept, catalogue


def read_users(
    data: DataSettings,
    catalogue: Catalogue | None = None,
    *,
    reader: str,
    tell: Callable[[str], None] = _quiet,
    warn: bool = False,
    divide: Divide = leave_one_out,
) -> tuple[UserSplit, Catalogue]:
    """Read and split the data file.

    Args:
        catalogue: the federation's items; None takes `data.catalogue`, and without that the
            items of the file, less those that `data.minimum_item_interactions` leaves out.
        reader: who needs the file, for the error.
        tell, warn: see `read_source`.
        divide: whether users' last items are held out.

    Raises:
        SettingsError: no data file is named.
        DataError: the file or the catalogue cannot be used.
        CatalogueMismatch: the file has items that the catalogue has not.
    """
    found = read_source(data, reader=reader, tell=tell, warn=warn)
    kept, items = kept_and_items(found, data, catalogue, tell=tell)
    return divide(kept, items), items


def load_data(source: str | Path, **reading: object) -> tuple[UserSplit, Catalogue]:
    """Read interactions for a researcher: a file, or a public data set by its name.

    ``load_data("ml-100k")`` downloads MovieLens 100K into the cache where it is missing; the
    other public data sets are there after `fedrec data import`.

    Rows that cannot be read and ids that look wrong are warnings.

    Args:
        source: a file, ``-`` for standard input, or a name in `PUBLIC`.
        reading: further settings of the section `data`, as in ``minimum_rating=4``.

    Returns:
        Everybody's items, the last of each held out for test and the one before for validation,
        and the items by their ids.

    Raises:
        SettingsError: a setting that the section `data` does not have, or a wrong value.
        DataError: the file cannot be used, or the data set is not there.
    """
    name = str(source)
    path = Path(source).expanduser()
    if name in PUBLIC and not path.exists():
        path = DATASETS[name]().interactions_path if name in DATASETS else cached_path(name)
    try:
        data = DataSettings.model_validate({"path": str(path), **reading}, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        raise SettingsError(
            f"data.{place}: {wrong['msg']}.",
            remedy=f"Settings of reading are {', '.join(DataSettings.model_fields)}.",
        ) from None
    return read_users(data, reader="load_data", warn=True)


def _unasked(report: ReadReport) -> Iterator[str]:
    """Say what was left out or may be wrong, whatever the settings; no value of it is named."""
    if report.n_bad:
        yield (
            f"{report.left_out}, the first in line {report.bad_rows[0].line}; "
            "`fedrec data describe` lists them"
        )
    yield from report.doubts()


def _notes(found: Interactions, report: ReadReport, data: DataSettings) -> Iterator[str]:
    """Say what follows from the settings, and which times are missing; no value is named."""
    if report.n_below_rating:
        yield report.below_rating(data.minimum_rating or 0.0)
    if report.n_missing_timestamps == len(found):
        yield f"{data.path} {RANDOM_HOLDOUT}"
        if ways := [
            ", ".join(f'data.{name} = "{value}"' for name, value in options.items())
            for options in time_columns(report, data)
        ]:
            yield f"an ignored column looks like times; {' or '.join(ways)} reads it"
    elif report.n_missing_timestamps:
        yield (
            f"{report.n_missing_timestamps} of {len(found)} rows have no time and count as a "
            "user's oldest"
        )
