"""Read the data file that the section `data` describes, and its items."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from fedrec.data.catalogue import Catalogue
from fedrec.data.column_kinds import Column, is_named_as_id, role_of_name
from fedrec.data.fetching import DATASETS
from fedrec.data.frames import DataFrame
from fedrec.data.interactions import Interactions
from fedrec.data.public import PUBLIC, cached_path, require_if_public
from fedrec.data.readers import ReadReport, read_interactions, try_reading
from fedrec.data.reading import FLAG_AND_SETTING, ROLES, DataSettings, flag_of
from fedrec.data.splits import Divide, UserSplit, leave_one_out
from fedrec.data.times import looks_like_moments, shown_span
from fedrec.errors import DataError, SettingsError

_SPLITTING = ("layout", "columns", "separator", *(f"{role}_column" for role in ROLES))
_MOST_STEPS = 6
_MOST_READINGS = 4
_MOST_COLUMNS = 20
_SHOWN_ROWS = 3
_TRIED_CHUNKS = 64

Options = Mapping[str, str | None]
_Tried = tuple[Interactions, ReadReport]


def read_file(path: str | Path, data: DataSettings) -> tuple[Interactions, ReadReport]:
    """Read a file with the options of the section `data`.

    Raises:
        DataError: the file cannot be read with them. The error proposes settings with which its
            first rows can be read, one set for each possible reading.
    """
    try:
        return read_interactions(path, data.reading())
    except DataError as error:
        ways = _ways(Path(path), data, error)
        if len(ways) > _MOST_READINGS:
            ways = []
        error.options = ways[0][0] if len(ways) == 1 else {}
        error.readings = [options for options, _ in ways] if len(ways) > 1 else ()
        error.first_rows = [_first_rows(*tried) for _, tried in ways]
        error.file = str(path)
        raise


def time_columns(report: ReadReport, data: DataSettings) -> list[dict[str, str]]:
    """Return settings for each ignored column that could give each row a time.

    Args:
        report: the report of a file without times.
        data: the options with which it was read.
    """
    is_chosen = data.columns is not None or data.timestamp_format == "none"
    if is_chosen or report.columns.timestamp is not None:
        return []
    try:
        known, _ = try_reading(report.path, data.reading())
    except DataError:
        return []  # the file's first rows do not represent the others
    names = [name for name in report.columns.ignored if name]
    named = [name for name in names if role_of_name(name) == "timestamp"]
    others = [name for name in names if name not in named and not is_named_as_id(name)]
    # Each try reads the first thousands of rows.
    for some in (named[:_MOST_COLUMNS], others[:_MOST_COLUMNS]):
        ways = [
            way for name in some if (way := _as_times(name, report.path, data, known)) is not None
        ]
        own = [options for options, is_own in ways if is_own]
        if own or (ways and some[0] in named):
            return own or [options for options, _ in ways]
    return []


def _as_times(
    name: str, path: Path, data: DataSettings, known: Interactions
) -> tuple[dict[str, str], bool] | None:
    """Return settings that read a column as times, or None if it has none.

    Args:
        known: the first rows, read without times.

    Returns:
        The settings, and whether the times belong to rows rather than to users or items.
    """
    options = {"timestamp_column": name}
    for _ in range(2):
        try:
            found, report = try_reading(path, _with(data, options).reading())
        except DataError as error:
            options["timestamp_format"] = error.options.get("timestamp_format") or ""
            if not options["timestamp_format"]:
                return None
            continue
        times = found.times().tolist()
        if len(times) != len(known) or not (report.has_dates or looks_like_moments(times)):
            return None
        when = Column(place=0, name=name, values=list(map(str, times)))
        ids = (
            Column(place=0, name="", values=each.tolist())
            for each in (known.user_ids, known.item_ids)
        )
        return options, not any(each.determines(when) for each in ids)
    return None


def _ways(path: Path, data: DataSettings, error: DataError) -> list[tuple[Options, _Tried]]:
    """Apply the proposals of errors one after another until the file can be read.

    Returns:
        The settings and the result of each distinct reading.
    """
    if not (error.options or error.readings) and not isinstance(_try(path, data), DataError):
        return []  # the problem is further down, and settings do not help
    found: list[tuple[Options, _Tried]] = []
    left: list[tuple[dict[str, str | None], DataError]] = [({}, error)]
    for _ in range(_MOST_STEPS):
        ahead: list[tuple[dict[str, str | None], DataError]] = []
        for changed, problem in left:
            # Without a proposal, trying the options that errors ask for may help.
            without = {
                name: None
                for name in _SPLITTING
                if getattr(data, name) is not None and name not in changed
            }
            for step in problem.readings or [problem.options or without]:
                options = changed | dict(step)
                if options == changed:
                    continue
                tried = _try(path, _with(data, options))
                if isinstance(tried, DataError):
                    ahead.append((options, tried))
                elif not any(_is_same(tried[0], before[0]) for _, before in found):
                    given = data.model_fields_set
                    found.append(
                        (
                            {
                                name: value
                                for name, value in options.items()
                                if value is not None or name in given
                            },
                            tried,
                        )
                    )
        left = ahead[:_MOST_READINGS]
    return found


def _with(data: DataSettings, options: Options) -> DataSettings:
    fields = DataSettings.model_fields
    return data.model_copy(
        update={
            name: fields[name].default if value is None else value
            for name, value in options.items()
        }
    )


def _try(path: Path, data: DataSettings) -> _Tried | DataError:
    """Read a file's first rows with these settings, or return the problem."""
    try:
        try_reading(path, data.reading())
        return try_reading(path, data.reading(), n_chunks=_TRIED_CHUNKS)
    except DataError as error:
        return error


def _is_same(one: Interactions, other: Interactions) -> bool:
    columns = ((each.user_ids, each.item_ids, each.times()) for each in (one, other))
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(*columns, strict=True))


def _first_rows(found: Interactions, report: ReadReport) -> list[str]:
    rows = []
    for place in range(min(_SHOWN_ROWS, len(found))):
        row = f"user {found.user_ids[place]}, item {found.item_ids[place]}"
        span = shown_span(found.times()[place : place + 1], are_dates=report.has_dates)
        rows.append(row if span is None else f"{row}, time {span[0]}")
    return rows


RANDOM_HOLDOUT = (
    "has no times, so held-out items are random: the tie rule, SHA-256 of user and item, orders "
    "them"
)


def _quiet(note: str) -> None:
    """Discard a message."""


def check_one_party(data: DataSettings) -> None:
    """Refuse settings that need the data of all clients.

    Raises:
        SettingsError: a client would have to leave out items with few users among all clients.
    """
    if data.minimum_item_interactions > 1:
        raise SettingsError(
            f"data.minimum_item_interactions is {data.minimum_item_interactions}, but a client "
            "cannot count the users of other clients.",
            remedy="Omit it from a client's settings. federation.minimum_item_users freezes rare "
            "items for all clients, by counts that are summed under protection.",
        )


def read_source(
    data: DataSettings,
    *,
    reader: str,
    tell: Callable[[str], None] = _quiet,
    warn: bool = False,
) -> Interactions:
    """Read `data.path` with the options of its section, without applying minimums.

    Args:
        reader: the party that needs the file, for the error: "a client".
        tell: called with sentences about rows that were left out and what the file lacks.
        warn: also issue Python warnings about omissions that no setting requests.

    Raises:
        SettingsError: no data file is named.
        DataError: the file cannot be used.
    """
    if data.path is None:
        raise SettingsError(
            f"data.path is missing: {reader} needs a file with interactions.",
            remedy="Set data.path in the settings or with a flag.",
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
    """Keep users and items that reach the minimums of `data`, and report how many do not.

    Raises:
        DataError: no user or no item reaches them.
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
    """Return the error if none reaches the minimums. It names only those that were set."""
    minimums = {
        "minimum_interactions": (data.minimum_interactions, "a user"),
        "minimum_item_interactions": (data.minimum_item_interactions, "an item"),
    }
    asked = {name: words for name, words in minimums.items() if words[0] > 1}
    about = f"{found.n_users} users and {found.n_items} items"
    reached = " and ".join(f"{minimum} interactions {each}" for minimum, each in asked.values())
    return DataError(
        f"The minimums leave nothing of {data.path or 'the interactions'}: of {about}, none reach "
        f"{reached}.",
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
    """Return the users that count of what `read_source` read, and the items."""
    kept = selected(found, data, tell=tell)
    if catalogue is None and data.catalogue is not None:
        catalogue = Catalogue.load(data.catalogue)
    if catalogue is None:
        # A minimum for users removes users, one for items alone removes items.
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
    folder: Path | None = None,
) -> tuple[UserSplit, Catalogue]:
    """Read and split the data file.

    Args:
        catalogue: the federation's items. None takes `data.catalogue` or, without one, the items of
            the file that reach `data.minimum_item_interactions`.
        reader: the party that needs the file, for the error.
        tell, warn: see `read_source`.
        divide: whether to hold out users' last items.
        folder: the folder for the items of many users. None keeps them in memory. See
            `UserSplit.in_files`.

    Raises:
        SettingsError: no data file is named.
        DataError: the file or the catalogue cannot be used.
        CatalogueMismatch: the file has items outside the catalogue.
    """
    found = read_source(data, reader=reader, tell=tell, warn=warn)
    kept, items = kept_and_items(found, data, catalogue, tell=tell)
    users = divide(kept, items)
    return users if folder is None else users.in_files(folder), items


def split_given(
    source: Interactions | DataFrame, data: DataSettings, catalogue: Catalogue | None = None
) -> tuple[UserSplit, Catalogue]:
    """Split interactions, or those of a frame whose columns `data` names. See `leave_one_out`.

    Raises:
        DataError: the frame or the catalogue cannot be used.
        CatalogueMismatch: some items are outside the catalogue.
    """
    if not isinstance(source, Interactions):
        source = Interactions.from_frame(source, **{name: getattr(data, name) for name in _COLUMNS})
    kept, items = kept_and_items(source, data, catalogue)
    return leave_one_out(kept, items), items


def load_data(
    source: str | Path | Interactions | DataFrame, **reading: object
) -> tuple[UserSplit, Catalogue]:
    """Read interactions for research from a file or a public data set, or split given ones.

    ``load_data("ml-100k")`` downloads MovieLens 100K into the cache if needed, and has its titles.
    The other public data sets are there after `fedrec data import`. ``load_data(frame)`` takes a
    frame of pandas or polars, or a table of pyarrow.

    Rows that cannot be read and ids that look wrong are warnings.

    Args:
        source: a file, ``-`` for standard input, a name in `PUBLIC`, a frame, or interactions.
        reading: further settings of the section `data`, such as ``minimum_rating=4``. Only
            `minimum_interactions`, `minimum_item_interactions` and `catalogue` apply to
            interactions. A frame also takes the names of its columns and `minimum_rating`.

    Returns:
        The users' items, with the last one held out for test and the one before it for validation,
        and the catalogue. Items of more than 100,000 users are in the system's temporary folder
        (see `UserSplit.in_files`).

    Raises:
        SettingsError: the section `data` lacks a setting, or a value is invalid.
        DataError: the file cannot be used, or the data set is not there.
    """
    try:
        if isinstance(source, Interactions | DataFrame):
            known = _OF_INTERACTIONS if isinstance(source, Interactions) else _OF_FRAME
            users, items = split_given(source, _reading_of(reading, known=known))
            return users.in_files(), items
        if not isinstance(source, str | Path):
            raise SettingsError(
                f"source is of type {type(source).__name__}, expected a path, a data set's name, a "
                "frame or interactions.",
                remedy="For arrays, use load_data(Interactions.from_arrays(users, items)).",
            )
        path = Path(source).expanduser()
        titled: Catalogue | None = None
        if str(source) in PUBLIC and not path.exists():
            name = str(source)
            fetched = DATASETS[name]() if name in DATASETS else None
            path = fetched.interactions_path if fetched else cached_path(name)
            titled = fetched.catalogue if fetched else None
        data = _reading_of({"path": str(path), **reading})
        users, items = read_users(data, reader="load_data", warn=True)
        if titled and not data.catalogue:
            items = Catalogue.of(items.item_ids, map(titled.title_of, items.item_ids))
        return users.in_files(), items
    except DataError as error:
        shown = "interactions" if isinstance(source, Interactions) else "frame"
        if isinstance(source, str | Path):
            shown = repr(str(source))
        raise _in_python(error, shown, reading) from None


_COLUMNS = (*(f"{role}_column" for role in ROLES), "minimum_rating")
_OF_INTERACTIONS = ("minimum_interactions", "minimum_item_interactions", "catalogue")
_OF_FRAME = (*_OF_INTERACTIONS, *_COLUMNS)
_AS_ARGUMENTS = tuple(DataSettings.model_fields)


def _reading_of(
    given: Mapping[str, object], *, known: Sequence[str] = _AS_ARGUMENTS
) -> DataSettings:
    """Return arguments as settings of `data`.

    Raises:
        SettingsError: an argument is unknown or invalid. The message names it.
    """
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SettingsError(
            f"There is no argument {unknown[0]!r}.",
            remedy=f"The arguments for reading are {', '.join(known)}."
            if unknown[0] not in _AS_ARGUMENTS
            else f"For data in memory, load_data only takes {', '.join(known)}. "
            "Interactions.from_frame takes columns and minimum_rating.",
        )
    try:
        # Without a header, pandas names columns by numbers.
        return DataSettings.model_validate(
            {
                name: str(value) if isinstance(value, int) and name.endswith("_column") else value
                for name, value in given.items()
            },
            strict=True,
        )
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        raise SettingsError(
            f"{place} is {given.get(place)!r}: {wrong['msg']}.",
            remedy=f"{DataSettings.model_fields[place].description}",
        ) from None


def _in_python(error: DataError, source: str, given: Mapping[str, object]) -> DataError:
    """Return an error of reading that names arguments of `load_data` in place of flags.

    Args:
        source: its first argument, as written in code.
        given: its other arguments.
    """
    error.message, error.remedy = (
        FLAG_AND_SETTING.sub(r"\2", text) for text in (error.message, error.remedy)
    )
    ways = [error.options] if error.options else list(error.readings)
    for options in ways:
        arguments = [source]
        for name, value in {**given, **options}.items():
            is_text = "str" in str(DataSettings.model_fields[name].annotation)
            if value is not None:
                arguments.append(f"{name}={value!r}" if is_text else f"{name}={value}")
        which = "As in" if len(ways) == 1 else "Either"
        error.remedy += f" {which} load_data({', '.join(arguments)})."
    return error


def _unasked(report: ReadReport) -> Iterator[str]:
    """List omissions and doubts that no setting requests, without naming a value."""
    if report.n_bad:
        yield (
            f"{report.left_out}, the first in line {report.bad_rows[0].line}. `fedrec data "
            "describe` lists them"
        )
    yield from report.doubts()


def _notes(found: Interactions, report: ReadReport, data: DataSettings) -> Iterator[str]:
    """List consequences of the settings, and missing times, without naming a value."""
    if report.n_below_rating:
        yield report.below_rating(data.minimum_rating or 0.0)
    if report.n_missing_timestamps == len(found):
        yield f"{data.path} {RANDOM_HOLDOUT}"
        if ways := [
            ", ".join(f'data.{name} = "{value}"' for name, value in options.items())
            for options in time_columns(report, data)
        ]:
            yield f"an ignored column looks like times. Read it with {' or '.join(ways)}"
    elif report.n_missing_timestamps:
        yield (
            f"{report.n_missing_timestamps} of {len(found)} rows have no time and count as a "
            "user's oldest"
        )
