"""`fedrec data`: convert interactions to the form that the rest of fedrec reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.data_options import (
    DataFlags,
    data_settings,
    echo_note,
    flags_of,
    takes_data_flags,
)
from fedrec.cli.terminal import Result, TextTable, count_of
from fedrec.data.writing import (
    CATALOGUE_FILE,
    INTERACTIONS_FILE,
    prepare_folder,
    write_interactions,
)

if TYPE_CHECKING:
    from fedrec.data import DatasetSummary, Interactions, ReadReport
    from fedrec.data.reading import DataSettings


app = typer.Typer(
    help="Fetch, import, describe and split interactions.",
    no_args_is_help=True,
    add_completion=False,
    epilog=(
        "Examples:\n"
        "  fedrec data fetch ml-100k --into data\n"
        "  fedrec data import ml-1m ml-1m.zip\n"
        "  fedrec data import ratings.parquet --into data --user-column customer\n"
        "  fedrec data describe data/interactions.csv\n"
        "  fedrec data describe ratings.csv.gz --columns user,item,rating,timestamp --save\n"
        "  fedrec data import votes.tsv --into data --minimum-rating 4 --minimum-interactions 5\n"
        "  fedrec data split data/interactions.csv --clients 3 --into clients"
    ),
)

_MOST_NAMES = 10

DataFile = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="A file with interactions, or the name of a public data set."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


def _read(path: Path, flags: DataFlags) -> tuple[Interactions, ReadReport, DataSettings]:
    """Read a file, or a public data set by its name, with the flags. Report what was left out."""
    from fedrec.data.public import PUBLIC, find
    from fedrec.data.source import read_file, selected

    if str(path) in PUBLIC and not path.exists():
        path = find(str(path))
    data = data_settings(path, flags)
    found, report = read_file(path, data)
    if report.n_bad:
        typer.echo(f"{report.left_out}:", err=True)
        for bad in report.bad_rows[:5]:
            typer.echo(f"  {path}:{bad.line}: {bad.reason}", err=True)
    if report.n_below_rating:
        echo_note(report.below_rating(data.minimum_rating or 0.0))
    for doubt in report.doubts(named=True):
        echo_note(doubt)
    return selected(found, data, tell=echo_note), report, data


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known dataset: ml-100k.")],
    into: Annotated[
        Path | None, typer.Option(help="Also write interactions.csv and catalogue.csv here.")
    ] = None,
    force: Force = False,
) -> Result:
    """Fetch a public dataset, check it against its known checksum, and cache it."""
    from fedrec.data import DATASETS
    from fedrec.errors import DataError

    if name not in DATASETS:
        raise DataError(
            f"There is no dataset {name!r} to fetch.",
            remedy=f"Known datasets: {', '.join(DATASETS)}. Use `fedrec data import` for your own "
            "file, or for a public data set that you downloaded.",
        )
    if into is not None:
        prepare_folder(into, INTERACTIONS_FILE, CATALOGUE_FILE, force=force)
    fetched = DATASETS[name]()
    typer.echo(fetched.licence, err=True)
    files = [fetched.interactions_path]
    if into is not None:
        interactions, _ = fetched.read()
        files = _write(into, interactions)
        fetched.catalogue.save(into / CATALOGUE_FILE)
        files.append(into / CATALOGUE_FILE)
    names = [str(file) for file in files]
    return Result(content={"name": name, "files": names}, text=names)


@app.command("import")
@takes_data_flags
def import_(
    name_or_path: Annotated[
        str,
        typer.Argument(
            metavar="PATH_OR_NAME",
            help="Your own file, or a public data set: ml-100k, ml-1m, filmtrust, amazon-video.",
        ),
    ],
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            help="The public data set's file, folder or zip archive, as downloaded.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="The folder to write to. A public data set is also cached."),
    ] = None,
    *,
    reading: DataFlags,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace files that exist, including the cached copy of a public data set.",
        ),
    ] = False,
) -> Result:
    """Normalise a file to interactions.csv and catalogue.csv. Each pair is kept once.

    A public data set that you downloaded is compared with the copy behind the published figures. It
    is then cached, and `fedrec reproduce` and data.path = NAME find it there.
    """
    from fedrec.errors import DataError

    if path is None:
        return _import_own(Path(name_or_path), into, reading, force)
    beyond = [name for name in reading if name != "strict"]
    if beyond:
        raise DataError(
            f"{name_or_path} is a public data set with a known layout and known columns.",
            remedy="Omit the options for layout, columns and minimums.",
            options=dict.fromkeys(beyond),
        )
    strict = bool(reading.get("strict"))
    return _import_public(name_or_path, path, into, strict=strict, force=force)


def _import_own(
    path: Path,
    into: Path | None,
    reading: DataFlags,
    force: bool,
) -> Result:
    from fedrec.data import PUBLIC, Catalogue
    from fedrec.errors import DataError

    if str(path) in PUBLIC and not path.exists():
        raise DataError(
            f"The file of {path} is missing.",
            remedy=f"Run `fedrec data import {path} PATH`. Its source: {PUBLIC[str(path)].source}",
        )
    if into is None:
        free = Path("data") if not Path("data").exists() else Path(f"{path.stem}-data")
        raise DataError(
            "The output folder is missing.",
            remedy="Set it with --into FOLDER.",
            options={"into": str(free)},
        )
    prepare_folder(into, INTERACTIONS_FILE, CATALOGUE_FILE, force=force)
    found, report, data = _read(path, reading)
    kept = found.deduplicated()
    files = _write(into, kept)
    catalogue = Catalogue.from_interactions(kept)
    catalogue.save(into / CATALOGUE_FILE)
    files.append(into / CATALOGUE_FILE)
    names = [str(file) for file in files]
    return Result(
        content={
            "files": names,
            "layout": report.layout,
            "n_rows": report.n_rows,
            "n_bad": report.n_bad,
            "n_without_id": report.n_without_id,
            "n_headers": report.n_headers,
            "n_below_rating": report.n_below_rating,
            "has_times": kept.has_times,
            "n_interactions": len(kept),
            "n_users": kept.n_users,
            "n_items": len(catalogue),
            "catalogue_fingerprint": catalogue.fingerprint(),
        },
        text=_imported(kept, len(catalogue), report, data, names),
    )


def _imported(
    kept: Interactions, n_items: int, report: ReadReport, data: DataSettings, names: list[str]
) -> Iterator[str]:
    from fedrec.data.source import RANDOM_HOLDOUT, time_columns

    yield (
        f"{report.path}, {report.read_as}: {count_of(len(kept), 'interaction')} of "
        f"{count_of(kept.n_users, 'user')} with {count_of(n_items, 'item')}."
    )
    if not kept.has_times:
        echo_note(f"{report.path} {RANDOM_HOLDOUT}")
        if ways := [flags_of(options) for options in time_columns(report, data)]:
            echo_note(f"an ignored column looks like times. Read it with{' or'.join(ways)}")
    yield from names


def _import_public(
    name: str, path: Path, into: Path | None, *, strict: bool, force: bool
) -> Result:
    """Import a public data set into the cache. Report what it is and how it differs.

    Args:
        into: also write interactions.csv and catalogue.csv here.
        force: replace existing files, and the known copy in the cache with a file that differs.

    Raises:
        DataError: see `fedrec.data.import_public`.
    """
    from fedrec.data import PUBLIC, Catalogue, import_public

    if into is not None:
        prepare_folder(into, INTERACTIONS_FILE, CATALOGUE_FILE, force=force)
    imported = import_public(name, path, strict=strict, force=force)
    for sentence in (PUBLIC[name].licence, PUBLIC[name].citation, imported.copy.note):
        if sentence:
            typer.echo(sentence, err=True)
    for warning in imported.warnings:
        typer.echo(f"warning: {warning}", err=True)
    files = [imported.interactions_path, imported.catalogue_path]
    if into is not None:
        files = [into / INTERACTIONS_FILE, into / CATALOGUE_FILE]
        write_interactions(files[0], imported.interactions)
        Catalogue.load(imported.catalogue_path).save(files[1])
    names, minimum = [str(file) for file in files], imported.counts.minimum
    n_users = imported.interactions.n_users
    more = (
        f"The files contain all {n_users} users. For the users that papers count, set "
        f"data.minimum_interactions = {minimum}."
    )
    return Result(
        content={
            "name": name,
            "files": names,
            "layout": imported.report.layout,
            "sha256": imported.sha256,
            "known": not imported.warnings,
            "warnings": list(imported.warnings),
            "n_rows": imported.report.n_rows,
            "n_bad": imported.report.n_bad,
            "n_interactions": len(imported.interactions),
            "n_users": n_users,
            "n_items": imported.interactions.n_items,
            "counted_minimum_interactions": minimum,
        },
        text=(
            f"{PUBLIC[name].title}, {imported.source_file}: {imported.counts}.",
            *((more,) if n_users != imported.counts.users else ()),
            f"SHA-256 {imported.sha256}",
            *names,
        ),
    )


@app.command()
@takes_data_flags
def describe(
    path: DataFile,
    minimum_item_users: Annotated[
        int, typer.Option(min=1, help="Count the items with fewer users than this.")
    ] = 10,
    *,
    reading: DataFlags,
    save: Annotated[
        bool,
        typer.Option(
            "--save",
            help="Save these reading options in PATH.data.toml. Every command then uses them for "
            "this file.",
        ),
    ] = False,
) -> Result:
    """Report how a file was read, and count users, items, ties and items with few users.

    Use this command to set how a file of another form is read. With --save, the options are written
    to a file in the same folder. `init`, `check`, `simulate`, `provision`, `client run` and every
    other command then use them. Values in a settings file take precedence.

    The report names the columns that were used and ignored. If a file has no times, held-out items
    are random. The report then names any ignored column that looks like times.
    """
    found, report, data = _read(path, reading)
    if save:
        typer.echo(f"Wrote {_save_description(data)}, which every command reads.", err=True)
    return _description(found, report, data, minimum_item_users=minimum_item_users)


def _save_description(data: DataSettings) -> Path:
    """Save how a file is read, in a file in the same folder."""
    from fedrec.durable import write_whole
    from fedrec.errors import DataError
    from fedrec.section import as_toml
    from fedrec.settings.validation import description_of

    source = Path(str(data.path))
    if source == Path("/dev/stdin") or not source.exists() or source.is_fifo():
        raise DataError(
            "--save needs a file, but the interactions came from a pipe.",
            remedy="Omit --save, or write the interactions to a file first.",
        )
    chosen = data.model_dump(exclude_defaults=True, exclude={"path", "catalogue"})
    place = description_of(str(data.path))
    text = "".join(f"{name} = {as_toml(value)}\n" for name, value in chosen.items())
    write_whole(place, text.encode(), private=False)
    return place


def _description(
    found: Interactions, report: ReadReport, data: DataSettings, *, minimum_item_users: int
) -> Result:
    """Return how a file was read, and its contents.

    Args:
        found: the interactions and counts.
        minimum_item_users: items with fewer users are counted.
    """
    from fedrec.data import describe
    from fedrec.data.source import time_columns
    from fedrec.data.times import shown_span

    summary = describe(found, minimum_item_users=minimum_item_users)
    span = shown_span(found.times(), are_dates=report.has_dates)
    proposed = [] if found.has_times else time_columns(report, data)
    return Result(
        content=asdict(summary)
        | {
            "path": str(report.path),
            "layout": report.layout,
            "separator": report.separator,
            "columns": report.columns.by_role(),
            "ignored_columns": list(report.columns.ignored),
            "n_rows": report.n_rows,
            "n_bad": report.n_bad,
            "n_without_id": report.n_without_id,
            "n_headers": report.n_headers,
            "n_below_rating": report.n_below_rating,
            "n_zero_timestamps": report.n_zero_timestamps,
            "minimum_item_users": minimum_item_users,
            "first_time": None if span is None else span[0],
            "last_time": None if span is None else span[1],
            "held_out": "random" if span is None else "last",
            "proposed": proposed[0] if len(proposed) == 1 else {},
        },
        text=_described(report, summary, minimum_item_users, span, proposed),
    )


def _described(
    report: ReadReport,
    summary: DatasetSummary,
    minimum_item_users: int,
    span: tuple[str, str] | None,
    proposed: list[dict[str, str]],
) -> Iterator[str | TextTable]:
    from fedrec.data.source import RANDOM_HOLDOUT

    rows = [
        *_reading_rows(report),
        *_count_rows(summary, minimum_item_users),
        ("times", "none" if span is None else f"{span[0]} to {span[1]}"),
        *(_time_rows(summary) if span else ()),
    ]
    yield TextTable(rows=rows, title=f"{report.path}, {report.read_as}")
    if span is None:
        yield f"{report.path} {RANDOM_HOLDOUT}."
    if proposed:
        names = " and ".join(options["timestamp_column"] for options in proposed)
        like = f"column {names} looks like times and is ignored. To read it"
        if len(proposed) > 1:
            like = f"columns {names} look like times and are ignored. To read one"
        yield f"The {like}, add{' or'.join(map(flags_of, proposed))}"


def _reading_rows(report: ReadReport) -> list[tuple[str, str]]:
    words = {"timestamp": "time"}
    columns = ", ".join(
        f"{words.get(role, role)} from {name}"
        for role, name in report.columns.by_role().items()
        if name is not None
    )
    rows = [("columns", columns)]
    if report.columns.ignored:
        ignored = [name or "(no name)" for name in report.columns.ignored]
        more = len(ignored) - _MOST_NAMES
        shown = ", ".join(ignored[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        rows.append(("columns ignored", shown))
    return [*rows, ("rows", str(report.n_rows))]


def _count_rows(summary: DatasetSummary, minimum_item_users: int) -> list[tuple[str, str]]:
    rows = [
        ("users", str(summary.n_users)),
        ("items", str(summary.n_items)),
        ("interactions", str(summary.n_interactions)),
        ("duplicate rows", str(summary.n_duplicates)),
        ("density", f"{100 * summary.density:.3g} %"),
        (
            "interactions per user",
            f"{summary.minimum_per_user} to {summary.maximum_per_user}, "
            f"median {summary.median_per_user:g}",
        ),
        ("items with one user", str(summary.items_with_one_holder)),
    ]
    fewer = f"items with fewer than {minimum_item_users} users"
    return [*rows, (fewer, str(summary.items_below_minimum_holders))]


def _time_rows(summary: DatasetSummary) -> list[tuple[str, str]]:
    rows = [("users with a tied last time", str(summary.users_with_tied_last_timestamp))]
    if summary.interactions_without_time:
        rows.insert(0, ("interactions without a time", str(summary.interactions_without_time)))
    return rows


@app.command()
def catalogue(
    path: DataFile,
    out: Annotated[Path, typer.Option(help="The catalogue file to write.")] = Path(CATALOGUE_FILE),
    force: Force = False,
) -> Result:
    """List the items of a file as the public catalogue that a federation shares.

    Titles start empty. You can write them into the second column, but don't change the items.
    """
    from fedrec.data import Catalogue

    prepare_folder(out.parent, out.name, force=force)
    found, _, _ = _read(path, {})
    made = Catalogue.from_interactions(found)
    made.save(out)
    return Result(
        content={"path": str(out), "n_items": len(made), "fingerprint": made.fingerprint()},
        text=(f"{out}: {count_of(len(made), 'item')}, fingerprint {made.fingerprint()}",),
    )


@app.command()
def split(
    path: DataFile,
    clients: Annotated[int, typer.Option(min=1, help="Number of clients that share the users.")],
    into: Annotated[Path, typer.Option(help="The folder to write to.")],
    seed: Annotated[int, typer.Option(help="The seed of the random split.")] = 0,
    force: Force = False,
) -> Result:
    """Divide users into private folders, to try out a federation on one machine."""
    from fedrec.data import Catalogue, partition_users
    from fedrec.errors import DataError

    found, _, _ = _read(path, {})
    if found.n_users < clients:
        raise DataError(
            f"{path} has {count_of(found.n_users, 'user')} for {clients} clients.",
            remedy="Ask for fewer clients.",
        )
    beside = path.parent / CATALOGUE_FILE
    public = Catalogue.load(beside) if beside.is_file() else Catalogue.from_interactions(found)
    public.check_has(found, beside)
    prepare_folder(into, CATALOGUE_FILE, force=force)
    folders = []
    for number, part in enumerate(partition_users(found, clients, seed), start=1):
        folder = into / f"client-{number}"
        prepare_folder(folder, INTERACTIONS_FILE, force=force, private=True)
        write_interactions(folder / INTERACTIONS_FILE, part, private=True)
        folders.append({"path": str(folder), "n_users": part.n_users, "n_rows": len(part)})
    public.save(into / CATALOGUE_FILE)
    return Result(
        content={"clients": folders, "catalogue": str(into / CATALOGUE_FILE)},
        text=(
            *(f"{row['path']}: {row['n_users']} users" for row in folders),
            f"{into / CATALOGUE_FILE}: {count_of(len(public), 'item')}",
        ),
    )


def _write(into: Path, interactions: Interactions) -> list[Path]:
    write_interactions(into / INTERACTIONS_FILE, interactions)
    return [into / INTERACTIONS_FILE]
