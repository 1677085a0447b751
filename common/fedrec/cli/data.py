"""`fedrec data`: interactions from anywhere, in the form that the rest of fedrec reads."""

from __future__ import annotations

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
from fedrec.cli.terminal import AsJson, count_of, print_json
from fedrec.data.writing import (
    CATALOGUE_FILE,
    INTERACTIONS_FILE,
    prepare_folder,
    write_interactions,
)

if TYPE_CHECKING:
    from fedrec.data import Interactions, ReadReport
    from fedrec.data.settings import DataSettings


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
        "  fedrec data describe ratings.csv.gz --columns user,item,rating,timestamp\n"
        "  fedrec data import votes.tsv --into data --minimum-rating 4 --minimum-interactions 5\n"
        "  fedrec data split data/interactions.csv --clients 3 --into clients"
    ),
)

DataFile = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="A file with interactions, or the name of a public data set."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


def _read(path: Path, flags: DataFlags) -> tuple[Interactions, ReadReport, DataSettings]:
    """Read a file, or a public data set by its name, as the flags say; tell what was left out."""
    from fedrec.data.public import PUBLIC, find
    from fedrec.data.source import selected
    from fedrec.data.trying import read_file

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
    as_json: AsJson = False,
) -> None:
    """Fetch a public dataset, check it against its known sum, and keep it in the cache."""
    from fedrec.data import DATASETS
    from fedrec.errors import DataError

    if name not in DATASETS:
        raise DataError(
            f"There is no dataset {name!r} to fetch.",
            remedy=f"Known are: {', '.join(DATASETS)}. `fedrec data import` takes your own file, "
            "or a public data set that you downloaded.",
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
    if as_json:
        print_json({"name": name, "files": [str(file) for file in files]})
        return
    for file in files:
        typer.echo(str(file))


@app.command("import")
@takes_data_flags
def import_(
    name_or_path: Annotated[
        str,
        typer.Argument(
            metavar="PATH_OR_NAME",
            help="A file of your own, or a public data set: ml-100k, ml-1m, filmtrust, "
            "amazon-video.",
        ),
    ],
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            help="The public data set's file, folder or zip archive, as you downloaded it.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="The folder to write to; a public data set also goes to the cache."),
    ] = None,
    *,
    reading: DataFlags,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace files that exist, also a public data set's known copy by another.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Normalise a file to interactions.csv and catalogue.csv; each pair is kept once.

    A public data set that you downloaded is compared with the copy that figures were made with and
    kept in the cache, where `fedrec reproduce` and data.path = NAME find it.
    """
    from fedrec.cli.public_import import print_import
    from fedrec.errors import DataError

    if path is None:
        _import_own(Path(name_or_path), into, reading, force, as_json)
        return
    beyond = [name for name in reading if name != "strict"]
    if beyond:
        raise DataError(
            f"{name_or_path} is a public data set, whose layout and columns are known.",
            remedy="Leave the options on layout, columns and minimums out.",
            options=dict.fromkeys(beyond),
        )
    strict = bool(reading.get("strict"))
    print_import(name_or_path, path, into, strict=strict, force=force, as_json=as_json)


def _import_own(
    path: Path,
    into: Path | None,
    reading: DataFlags,
    force: bool,
    as_json: bool,
) -> None:
    from fedrec.data import PUBLIC, Catalogue
    from fedrec.data.source import RANDOM_HOLDOUT
    from fedrec.data.trying import time_columns
    from fedrec.errors import DataError

    if str(path) in PUBLIC and not path.exists():
        raise DataError(
            f"Where is the file of {path}?",
            remedy=f"Write fedrec data import {path} PATH. Its source: {PUBLIC[str(path)].source}",
        )
    if into is None:
        free = Path("data") if not Path("data").exists() else Path(f"{path.stem}-data")
        raise DataError(
            "It is not said where to write to.",
            remedy="Name the folder with --into FOLDER.",
            options={"into": str(free)},
        )
    prepare_folder(into, INTERACTIONS_FILE, CATALOGUE_FILE, force=force)
    found, report, data = _read(path, reading)
    kept = found.deduplicated()
    files = _write(into, kept)
    catalogue = Catalogue.from_interactions(kept)
    catalogue.save(into / CATALOGUE_FILE)
    files.append(into / CATALOGUE_FILE)
    if as_json:
        content: dict[str, object] = {
            "files": [str(file) for file in files],
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
        }
        print_json(content)
        return
    typer.echo(
        f"{path}, {report.read_as}: {count_of(len(kept), 'interaction')} of "
        f"{count_of(kept.n_users, 'user')} with {count_of(len(catalogue), 'item')}."
    )
    if not kept.has_times:
        echo_note(f"{path} {RANDOM_HOLDOUT}")
        if ways := [flags_of(options) for options in time_columns(report, data)]:
            echo_note(f"an ignored column looks like times;{' or'.join(ways)} reads it")
    for file in files:
        typer.echo(str(file))


@app.command()
@takes_data_flags
def describe(
    path: DataFile,
    minimum_item_users: Annotated[
        int, typer.Option(min=1, help="Count the items that fewer users have.")
    ] = 10,
    *,
    reading: DataFlags,
    as_json: AsJson = False,
) -> None:
    """Say how a file was read, and count users, items, ties and items that few users have.

    It names the columns that it took and ignored. Where a file has no times, held-out items are
    random: it says so, and which ignored column looks like times.
    """
    from fedrec.cli.data_description import print_description

    found, report, data = _read(path, reading)
    print_description(found, report, data, minimum_item_users=minimum_item_users, as_json=as_json)


@app.command()
@takes_data_flags
def catalogue(
    path: DataFile,
    out: Annotated[Path, typer.Option(help="The catalogue file to write.")] = Path(CATALOGUE_FILE),
    *,
    reading: DataFlags,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """List the items of a file as the public catalogue that a federation shares.

    Titles start empty: write them into the file's second column; items must stay as they are.
    """
    from fedrec.data import Catalogue

    prepare_folder(out.parent, out.name, force=force)
    found, _, _ = _read(path, reading)
    made = Catalogue.from_interactions(found)
    made.save(out)
    if as_json:
        print_json({"path": str(out), "n_items": len(made), "fingerprint": made.fingerprint()})
        return
    typer.echo(f"{out}: {count_of(len(made), 'item')}, fingerprint {made.fingerprint()}")


@app.command()
@takes_data_flags
def split(
    path: DataFile,
    clients: Annotated[int, typer.Option(min=1, help="How many clients share the users.")],
    into: Annotated[Path, typer.Option(help="The folder to write to.")],
    seed: Annotated[int, typer.Option(help="Which of the possible splits.")] = 0,
    *,
    reading: DataFlags,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Deal users out to private folders, to try out a federation on one machine."""
    from fedrec.data import Catalogue, partition_users
    from fedrec.errors import DataError

    found, _, _ = _read(path, reading)
    if found.n_users < clients:
        raise DataError(
            f"{path} has {count_of(found.n_users, 'user')} for {clients} clients.",
            remedy="Ask for fewer clients.",
        )
    prepare_folder(into, CATALOGUE_FILE, force=force)
    folders = []
    for number, part in enumerate(partition_users(found, clients, seed), start=1):
        folder = into / f"client-{number}"
        prepare_folder(folder, INTERACTIONS_FILE, force=force, private=True)
        write_interactions(folder / INTERACTIONS_FILE, part, private=True)
        folders.append({"path": str(folder), "n_users": part.n_users, "n_rows": len(part)})
    beside = path.parent / CATALOGUE_FILE
    public = Catalogue.load(beside) if beside.is_file() else Catalogue.from_interactions(found)
    public.save(into / CATALOGUE_FILE)
    if as_json:
        print_json({"clients": folders, "catalogue": str(into / CATALOGUE_FILE)})
        return
    for folder_row in folders:
        typer.echo(f"{folder_row['path']}: {folder_row['n_users']} users")
    typer.echo(f"{into / CATALOGUE_FILE}: {count_of(len(public), 'item')}")


def _write(into: Path, interactions: Interactions) -> list[Path]:
    write_interactions(into / INTERACTIONS_FILE, interactions)
    return [into / INTERACTIONS_FILE]
