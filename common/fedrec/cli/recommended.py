"""Recommended items as a table for people, the same from a run's folder and on a client."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from fedrec.cli.terminal import print_table

__all__ = ["print_recommended"]


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
