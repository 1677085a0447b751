"""Who is who in a demonstration: a line for each process, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fedrec.config.schema import Plan
from fedrec.protection import PROTECTIONS

__all__ = ["cast_table"]


def cast_table(plan: Plan, users: Sequence[int]) -> Table:
    """Return for every process who would run it, what it holds, and what it never sees.

    Args:
        users: how many users each client has.
    """
    table = Table(title="Who is who", title_justify="left")
    for column in ("process", "who would run it", "holds", "never sees"):
        table.add_column(column)
    table.add_row("coordinator", "a service provider", *PROTECTIONS[plan.protection.name].views)
    opens = PROTECTIONS[plan.protection.name].needs_reveal
    alone = opens and plan.authority_opens
    holds = "the list of members, their certificates"
    table.add_row(
        "authority",
        "the data owners together",
        f"{holds}, the key that opens sums" if alone else holds,
        "interactions, a single client's update" if alone else "interactions, updates",
    )
    for number, n_users in enumerate(users, start=1):
        table.add_row(
            f"client-{number}",
            f"data owner {number}",
            f"interactions of {n_users} users, and what it learns of them",
            "another client's interactions or update",
        )
    return table
