"""`fedrec recommend`: items for a user, from the folder of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.terminal import AsJson, count_of, print_json, print_table, printable

if TYPE_CHECKING:
    from fedrec.recommender.recommender import Recommender

__all__ = ["EPILOG", "recommend"]

EPILOG = (
    "Examples:\n"
    "  fedrec recommend runs/movies-20260101-120000 --user 196\n"
    "  fedrec recommend runs/movies-20260101-120000 --user 196 --data interactions.csv\n"
    "  fedrec recommend runs/movies-20260101-120000 --history 50 --history 181 -n 5 --json"
)


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
    n: Annotated[int, typer.Option("-n", min=1, help="How many items.")] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also what the user has already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Recommend to a user of the run, or to somebody new from a few items.

    A simulation's folder has its users' vectors. A deployed federation's has not: they stay
    with the clients, where `fedrec client recommend` answers. Its folder has a model once
    `fedrec client export-model` put it there, as the demo does. Then a vector is computed from
    the user's history, if the data that the run's settings name is on this machine, and
    forgotten.
    """
    from fedrec.errors import SettingsError
    from fedrec.recommender.recommender import Recommender

    if bool(user) == bool(history):
        raise SettingsError(
            "Either --user or --history is needed, and not both.",
            remedy="Give --user ID, or --history ITEM once for each item.",
        )
    recommender = Recommender.load(run)
    known = _known_items(recommender, history or [])
    if user and data is None and recommender.user_ids:
        ids, scores = recommender.recommend(user, n, exclude_seen=not include_seen)
    else:
        if user:
            known = _history_of(run, user, data)
        excluded = () if include_seen else known
        ids, scores = recommender.recommend_vector(recommender.fold_in(known), n, exclude=excluded)
    items = [
        {
            "rank": rank,
            "item_id": item,
            "title": recommender.catalogue.title_of(item),
            "score": float(score),
        }
        for rank, (item, score) in enumerate(zip(ids.tolist(), scores.tolist(), strict=True), 1)
    ]
    if as_json:
        print_json({"run": str(run), "round": int(recommender.round), "items": items})
        return
    rows = [
        (str(item["rank"]), f"{item['score']:.3f}", str(item["item_id"]), str(item["title"]))
        for item in items
    ]
    print_table(rows, headers=("rank", "score", "item", "title"))


def _history_of(run: Path, user: str, data: Path | None) -> list[str]:
    """Return what a user without a stored vector has already, and say where that was found."""
    from fedrec.recommender.histories import find_history

    found = find_history(run, user, data)
    typer.echo(
        f"The vector of {printable(user)} is computed from {count_of(len(found.item_ids), 'item')} "
        f"in {found.source}; it is not the one that was trained.",
        err=True,
    )
    return list(found.item_ids)


def _known_items(recommender: Recommender, items: list[str]) -> list[str]:
    """Return items that were typed, if the model has them all."""
    from fedrec.errors import DataError

    unknown = [item for item in items if item not in recommender.catalogue]
    if unknown:
        raise DataError(
            f"--history {unknown[0]}: the model's catalogue has no such item.",
            remedy="Give items as the run's catalogue.csv names them.",
        )
    return items
