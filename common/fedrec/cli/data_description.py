"""What `fedrec data describe` says of a file, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from fedrec.cli.data_options import flags_of
from fedrec.cli.terminal import print_json, print_table

if TYPE_CHECKING:
    from fedrec.data import DatasetSummary, Interactions, ReadReport
    from fedrec.data.settings import DataSettings


_MOST_NAMES = 10


def print_description(
    found: Interactions,
    report: ReadReport,
    data: DataSettings,
    *,
    minimum_item_users: int,
    as_json: bool,
) -> None:
    """Print how a file was read and what is in it.

    Args:
        found: what was read and counts.
        minimum_item_users: items that fewer users have are counted.
    """
    from fedrec.data import describe
    from fedrec.data.source import RANDOM_HOLDOUT
    from fedrec.data.times import shown_span
    from fedrec.data.trying import time_columns

    summary = describe(found, minimum_item_users=minimum_item_users)
    span = shown_span(found.times(), are_dates=report.has_dates)
    proposed = [] if found.has_times else time_columns(report, data)
    if as_json:
        content: dict[str, object] = asdict(summary) | {
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
        }
        print_json(content)
        return
    times = "none" if span is None else f"{span[0]} to {span[1]}"
    rows = [
        *_reading_rows(report),
        *_count_rows(summary, minimum_item_users),
        ("times", times),
        *(_time_rows(summary) if span else ()),
    ]
    print_table(rows, title=f"{report.path}, {report.read_as}")
    if span is None:
        typer.echo(f"{report.path} {RANDOM_HOLDOUT}.")
    if proposed:
        names = " and ".join(options["timestamp_column"] for options in proposed)
        like = f"column {names} looks like times and is ignored; to read it"
        if len(proposed) > 1:
            like = f"columns {names} look like times and are ignored; to read one"
        typer.echo(f"The {like}, add{' or'.join(map(flags_of, proposed))}")


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
        ("rows that repeat one", str(summary.n_duplicates)),
        ("density", f"{100 * summary.density:.3g} %"),
        (
            "interactions of a user",
            f"{summary.minimum_per_user} to {summary.maximum_per_user}, "
            f"median {summary.median_per_user:g}",
        ),
        ("items with one user", str(summary.items_with_one_holder)),
    ]
    fewer = f"items with fewer than {minimum_item_users} users"
    return [*rows, (fewer, str(summary.items_below_minimum_holders))]


def _time_rows(summary: DatasetSummary) -> list[tuple[str, str]]:
    rows = [("users whose last time is tied", str(summary.users_with_tied_last_timestamp))]
    if summary.interactions_without_time:
        rows.insert(0, ("interactions without a time", str(summary.interactions_without_time)))
    return rows
