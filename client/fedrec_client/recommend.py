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
from fedrec_client.cli import DataFile, Latest, StateFolder

if TYPE_CHECKING:
    from fedrec_client.own_recommender import Recommendations, Wanted
    from fedrec_client.state.held_model import Which

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
    from fedrec_client.own_recommender import Wanted

    if [bool(user), bool(history), bool(similar)].count(True) != 1:
        raise SettingsError(
            "Exactly one of --user, --history and --similar is needed.",
            remedy="Give --user ID, --history ITEM once for each item, or --similar ITEM.",
        )
    wanted = Wanted(n=n, exclude_seen=not include_seen, exclude=exclude, candidates=candidates)
    own = source / _CLIENT_FILE if source.is_dir() else source
    is_client = own.is_file()
    given = {"--history": history} if is_client else {"--latest": latest, "--state": state}
    if beyond := [flag for flag, value in given.items() if value]:
        kind = "a client" if is_client else "a run"
        raise SettingsError(
            f"{beyond[0]} does not apply to {kind}, which {source} is.", remedy="Omit it."
        )
    if not is_client:
        found = _of_run(source, wanted, user, history or [], similar, data)
        content = {"run": str(source), "round": int(found.version)}
        items = [asdict(item) for item in found.items]
        return Result(content=content | {"items": items}, text=_recommended(found))
    from fedrec.settings.validation import load_settings
    from fedrec_client.own_recommender import recommend as recommend_items
    from fedrec_client.own_recommender import similar as similar_items

    log_to_stderr(logging.WARNING)
    settings = load_settings(own, {"client.state": state, "data.path": data})
    which: Which = "latest" if latest else "best"
    if similar:
        found = similar_items(settings, similar, wanted, which=which)
    else:
        found = recommend_items(settings, user, wanted, which=which)
    if found.tail is not None:
        typer.echo(f"Tail at home: {found.tail}.", err=True)
    return Result(content=asdict(found), text=_recommended(found))


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


def _of_run(
    run: Path, wanted: Wanted, user: str, history: list[str], similar: str, data: str | None
) -> Recommendations:
    from fedrec.errors import DataError
    from fedrec.ids import RoundId
    from fedrec.recommender.recommender import Recommender
    from fedrec_client.own_recommender import Recommendations, ranked

    recommender = Recommender.load(run)
    catalogue = recommender.catalogue
    chosen, block = wanted.filters(catalogue)
    known = items_of_flag("--history", history, catalogue)
    if similar:
        (item,) = items_of_flag("--similar", [similar], catalogue)
        found = recommender.similar_items(item, wanted.n, candidates=chosen, block=block)
    elif user and data is None and recommender.user_ids:
        if not recommender.knows(user):
            raise DataError(
                f"User {user!r} is not among the {len(recommender.user_ids)} users of {run}.",
                remedy="Give an id as in the data, --history ITEM once for each item of a new "
                "user, or --data FILE with the history of this user.",
            )
        found = recommender.recommend(
            user, wanted.n, exclude_seen=wanted.exclude_seen, candidates=chosen, block=block
        )
    else:
        known = _history_of(run, user, data) if user else known
        found = recommender.recommend_vector(
            recommender.fold_in(known),
            wanted.n,
            exclude=known if wanted.exclude_seen else (),
            candidates=chosen,
            block=block,
        )
    return Recommendations(version=RoundId(recommender.round), items=ranked(catalogue, found))


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
