"""`fedrec recommend`: items for a user, from the folder of a finished run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.data_options import DataFlags, data_settings, flags_of, takes_data_flags
from fedrec.cli.flags import CandidateItems, ExcludedItems, SimilarTo, items_of_flag
from fedrec.cli.terminal import AsJson, count_of, print_json, print_table, printable


def print_recommended(items: Iterable[tuple[int, float, str, str]]) -> None:
    """Print items with rank and score; where there is none, say why on stderr.

    Args:
        items: rank, score, id and title of each.
    """
    rows = [(str(rank), f"{score:.3f}", item, title) for rank, score, item, title in items]
    if not rows:
        typer.echo(
            "No item is left: the model has learned none that --candidates allows, --exclude does "
            "not name and the user has not already (--include-seen).",
            err=True,
        )
        return
    print_table(rows, headers=("rank", "score", "item", "title"))


EPILOG = (
    "Examples:\n"
    "  fedrec recommend runs/movies-20260101-120000 --user 196\n"
    "  fedrec recommend runs/movies-20260101-120000 --user 196 --data interactions.csv\n"
    "  fedrec recommend runs/movies-20260101-120000 --history 50 --history 181 -n 5 --json\n"
    "  fedrec recommend runs/movies-20260101-120000 --similar 50\n"
    "  fedrec recommend runs/movies-20260101-120000 --user 196 --candidates @films.txt --exclude 50"
)


@takes_data_flags
def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a run left.")],
    user: Annotated[str, typer.Option(help="A user, as the data names it.")] = "",
    history: Annotated[
        list[str] | None,
        typer.Option(help="An item of somebody new, as the data names it; repeat it."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the user's history is, if the run does not say.")
    ] = None,
    similar: SimilarTo = "",
    n: Annotated[int, typer.Option("-n", min=1, help="How many items.")] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also what the user has already.")
    ] = False,
    exclude: ExcludedItems = None,
    candidates: CandidateItems = None,
    *,
    reading: DataFlags,
    as_json: AsJson = False,
) -> None:
    """Recommend to a user of the run, to somebody new from a few items, or what is like an item.

    A simulation's folder has its users' vectors. A deployed federation's has not: they stay
    with the clients, where `fedrec client recommend` answers. Its folder has a model once
    `fedrec client export-model` put it there, as the demo does. Then a vector is computed from
    the user's history, if the data that the run's settings name is on this machine, and
    forgotten.
    """
    from fedrec.errors import DataError, SettingsError
    from fedrec.recommender.recommender import Recommender

    if [bool(user), bool(history), bool(similar)].count(True) != 1:
        raise SettingsError(
            "One of --user, --history and --similar is needed, and only one.",
            remedy="Give --user ID, --history ITEM once for each item, or --similar ITEM.",
        )
    if reading and data is None:
        raise SettingsError(
            f"{flags_of(reading).strip()} says how to read a file that is not named.",
            remedy="Name it with --data FILE; the run's settings say how its own data is read.",
        )
    recommender = Recommender.load(run)
    catalogue = recommender.catalogue
    block = items_of_flag("--exclude", exclude or [], catalogue)
    chosen = None
    if candidates is not None:
        chosen = items_of_flag("--candidates", candidates, catalogue)
    known = items_of_flag("--history", history or [], catalogue)
    if similar:
        (item,) = items_of_flag("--similar", [similar], catalogue)
        ids, scores = recommender.similar_items(item, n, candidates=chosen, block=block)
    elif user and data is None and recommender.user_ids:
        if not recommender.knows(user):
            raise DataError(
                f"User {user!r} is not among the {len(recommender.user_ids)} users of {run}.",
                remedy="Give an id as the data writes it, --history ITEM once for each item of "
                "somebody new, or --data FILE with the history of this user.",
            )
        ids, scores = recommender.recommend(
            user, n, exclude_seen=not include_seen, candidates=chosen, block=block
        )
    else:
        if user:
            known = _history_of(run, user, data, reading)
        ids, scores = recommender.recommend_vector(
            recommender.fold_in(known),
            n,
            exclude=() if include_seen else known,
            candidates=chosen,
            block=block,
        )
    items = [
        (rank, float(score), item, catalogue.title_of(item))
        for rank, (item, score) in enumerate(zip(ids.tolist(), scores.tolist(), strict=True), 1)
    ]
    if as_json:
        records = [
            {"rank": rank, "item_id": item, "title": title, "score": score}
            for rank, score, item, title in items
        ]
        print_json({"run": str(run), "round": int(recommender.round), "items": records})
        return
    print_recommended(items)


def _history_of(run: Path, user: str, data: Path | None, reading: DataFlags) -> list[str]:
    """Return what a user without a stored vector has already, and say where that was found."""
    from fedrec.recommender.histories import find_history

    found = find_history(run, user, None if data is None else data_settings(data, reading))
    typer.echo(
        f"The vector of {printable(user)} is computed from {count_of(len(found.item_ids), 'item')} "
        f"in {found.source}; it is not the one that was trained.",
        err=True,
    )
    return list(found.item_ids)
