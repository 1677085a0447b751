"""`fedrec recommend`: items for a user, from a finished run or from a client's own state folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import CandidateItems, ExcludedItems, SimilarTo, items_of_flag
from fedrec.cli.terminal import Result, TextTable, count_of, printable
from fedrec.telemetry import log_to_stderr
from fedrec_client.cli import DataFile, Latest, StateFolder, wanted_of

if TYPE_CHECKING:
    from fedrec.recommender import Recommender
    from fedrec_client.own_recommender import Recommendations

_CLIENT_FILE = "client.toml"
"""The settings in a client's kit."""

EPILOG = (
    "Examples:\n"
    "  fedrec recommend client.toml --user 196\n"
    "  fedrec recommend runs/movies-20260101-120000 --user 196 --data interactions.csv\n"
    "  fedrec recommend runs/movies-20260101-120000 --history 50 --history 181 -n 5 --json\n"
    "  fedrec recommend runs/movies-20260101-120000 --similar 50\n"
    "  fedrec recommend client.toml --user 196 --candidates @films.txt --exclude 50"
)


def recommend(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|SETTINGS",
            help="A finished run's folder, a client's settings, or the folder of its kit.",
        ),
    ],
    user: Annotated[str, typer.Option(help="A user's id, as in the data.")] = "",
    history: Annotated[
        list[str] | None,
        typer.Option(help="An item of a new user, by its id in the data. Repeatable."),
    ] = None,
    data: DataFile = None,
    similar: SimilarTo = "",
    n: Annotated[int, typer.Option("-n", min=1, help="Number of items.")] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Include items that the user already has.")
    ] = False,
    exclude: ExcludedItems = None,
    candidates: CandidateItems = None,
    latest: Latest = False,
    state: StateFolder = None,
) -> Result:
    """Recommend items to a user, or to a new user from a few items, or find similar items.

    A client answers only for its own users and on its own machine: give its settings. --latest and
    --state apply to a client.

    A simulation's folder has its users' vectors. A deployed federation's folder has none. It has a
    model after `fedrec client export-model` put it there, as in the demo. Then a vector is computed
    from the user's history and discarded, if the data of the run's settings, or --data, is on this
    machine. --history applies to a run.
    """
    from fedrec.errors import SettingsError

    if [bool(user), bool(history), bool(similar)].count(True) != 1:
        raise SettingsError(
            "Exactly one of --user, --history and --similar is needed.",
            remedy="Pass --user ID, --history ITEM once for each item, or --similar ITEM.",
        )
    own = source / _CLIENT_FILE if source.is_dir() else source
    is_client = own.is_file()
    given = {"--history": history} if is_client else {"--latest": latest, "--state": state}
    if beyond := [flag for flag, value in given.items() if value]:
        kind = "a client" if is_client else "a run"
        raise SettingsError(
            f"{beyond[0]} does not apply to {kind}, which {source} is.", remedy="Omit it."
        )
    from fedrec.recommender import Recommender
    from fedrec_client.own_recommender import recommendations

    if is_client:
        changes = {"client.state": state, "data.path": data}
        model = _of_client(own, changes, latest=latest, has_users=not similar)
    else:
        model = Recommender.load(source)
    wanted = wanted_of(model.catalogue, n, include_seen, exclude, candidates)
    if similar:
        (item,) = items_of_flag("--similar", [similar], model.catalogue)
        answer = wanted.like_item(model, item)
    elif user and (is_client or (data is None and model.user_ids)):
        _check_known(model, user, source, is_client=is_client)
        answer = wanted.for_users(model, user)
    else:
        known = items_of_flag("--history", history or (), model.catalogue)
        answer = wanted.for_history(model, _history_of(source, user, data) if user else known)
    found = recommendations(model, answer)
    if found.tail is not None:
        typer.echo(f"Tail at home: {found.tail}.", err=True)
    content = asdict(found)
    if not is_client:
        content = {"run": str(source), "round": int(found.version), "items": content["items"]}
    return Result(content=content, text=_recommended(found))


def _of_client(
    settings_file: Path, changes: dict[str, str | None], *, latest: bool, has_users: bool
) -> Recommender:
    """Return the model of a client's state folder."""
    from fedrec.settings.validation import load_settings
    from fedrec_client.own_recommender import own_recommender, shared_recommender

    log_to_stderr(logging.WARNING)
    settings = load_settings(settings_file, changes)
    return (own_recommender if has_users else shared_recommender)(
        settings, "latest" if latest else "best"
    )


def _check_known(model: Recommender, user: str, source: Path, *, is_client: bool) -> None:
    from fedrec.errors import DataError

    if not model.knows(user):
        new = (
            ", --history ITEM once for each item of a new user, or --data FILE with the history of "
            "this user"
        )
        raise DataError(
            f"User {user!r} is not among the {len(model.user_ids)} users of {source}.",
            remedy=f"Pass an id as in the data{'' if is_client else new}.",
        )


def _recommended(found: Recommendations) -> Iterator[str | TextTable]:
    """Yield items with rank and score. If there are none, print why on stderr."""
    rows = [(str(item.rank), f"{item.score:.3f}", item.item_id, item.title) for item in found.items]
    if rows:
        yield TextTable(rows=rows, headers=("rank", "score", "item", "title"))
        return
    typer.echo(
        "No item is left. The model must have learned it, --candidates must allow it, --exclude "
        "must not name it, and the user must not already have it (--include-seen).",
        err=True,
    )


def _history_of(run: Path, user: str, data: str | None) -> list[str]:
    """Return the history of a user without a stored vector, and print where it was found."""
    from fedrec.cli.data_options import data_settings
    from fedrec.recommender.histories import find_history

    found = find_history(run, user, None if data is None else data_settings(data))
    typer.echo(
        f"The vector of {printable(user)} is computed from {count_of(len(found.item_ids), 'item')} "
        f"in {found.source}. It is not the one that was trained.",
        err=True,
    )
    return list(found.item_ids)
