"""`fedrec recommend`: items for a user, from the folder of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.terminal import AsJson, print_json, print_table

__all__ = ["EPILOG", "recommend"]

EPILOG = (
    "Examples:\n"
    "  fedrec recommend runs/movies-20260101-120000 --user 196\n"
    "  fedrec recommend runs/movies-20260101-120000 --history 50 --history 181 -n 5 --json"
)


def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a run left.")],
    user: Annotated[str, typer.Option(help="A user, as the data names it.")] = "",
    history: Annotated[
        list[str] | None,
        typer.Option(help="An item of somebody new, as the data names it; repeat it."),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many items.")] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also what the user has already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Recommend to a user whose vector the run has, or to somebody new from a few items.

    A simulation's folder has its users' vectors. A deployed federation's has not: they stay
    with the clients, where `fedrec client recommend` answers.
    """
    from fedrec.errors import SettingsError
    from fedrec.recommender.recommender import Recommender

    if bool(user) == bool(history):
        raise SettingsError(
            "Either --user or --history is needed, and not both.",
            remedy="Give --user ID, or --history ITEM once for each item.",
        )
    recommender = Recommender.load(run)
    if user:
        ids, scores = recommender.recommend(user, n, exclude_seen=not include_seen)
    else:
        known = history or []
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
