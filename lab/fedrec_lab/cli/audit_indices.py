"""`fedrec audit indices`: what indices in the clear give away, or would."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import SettingsFile, SetValues, values_of
from fedrec.cli.terminal import AsJson, count_of, new_console, print_json, print_table

if TYPE_CHECKING:
    from fedrec_lab.audit.indices import IndexLeak

__all__ = ["indices"]


def indices(
    settings_file: SettingsFile,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Training rounds to watch.")] = 5,
    users: Annotated[
        int, typer.Option(min=0, help="Measure so many users, evenly chosen; 0 for all.")
    ] = 0,
    figure: Annotated[Path | None, typer.Option(help="Write a figure (SVG) to this file.")] = None,
    values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Measure what indices in the clear give away of users' histories.

    fedrec sends them only where update.indices is "clear": else a vector has its zeros, and nothing
    of an update's form depends on what a user touched. The papers' Top-K sends pairs of index and
    value, and others send only the rows that were touched. This trains every user of the data as a
    client of its own, takes the items of the rows that it would send as its history, and compares.
    Precision is the share of the guessed items that are the user's, recall the share of its items
    that are guessed; after several rounds those items are guessed that came in every one. What is
    found is a lower bound. Nothing is sent.
    """
    from fedrec.cli.data_options import echo_note
    from fedrec.config.loading import load_settings
    from fedrec.data.source import read_users
    from fedrec.extras import require
    from fedrec_lab.audit.indices import audit_indices

    require("torch", *(("matplotlib",) if figure is not None else ()))
    settings = load_settings(settings_file, values_of(values))
    split, catalogue = read_users(settings.data, reader="an audit", tell=echo_note)
    console = new_console(stderr=True)

    def tell(number: int) -> None:
        console.print(f"round {number} of {rounds}")

    found = audit_indices(
        settings.plan, split, len(catalogue), n_rounds=rounds, most_users=users, on_round=tell
    )
    if figure is not None:
        from fedrec_lab.reports.drawing import as_element
        from fedrec_lab.reports.figures import leak_by_round

        plot = leak_by_round(found.rounds, chance=found.chance)
        figure.write_text(as_element(plot), encoding="utf-8")
    if as_json:
        print_json({"path": str(settings_file), **asdict(found)})
        return
    _print(found)
    if figure is not None:
        typer.echo(f"\n{figure}")


def _print(found: IndexLeak) -> None:
    verb = "send" if found.is_sent else "would send"
    typer.echo(f"In the clear, {count_of(found.n_users, 'user')} {verb} {found.sent}.")
    typer.echo(f"A guess at random is right for {found.chance:.1%} of its items.\n")
    rows = [
        (
            str(row.rounds),
            f"{row.precision:.1%}",
            f"{row.recall:.1%}",
            f"{row.guessed:.1f}",
            f"{row.known_users} of {found.n_users}",
        )
        for row in found.rounds
    ]
    headers = ("rounds", "precision", "recall", "items guessed", "both at least 90 %")
    print_table(rows, headers=headers)
    if not found.is_sent:
        typer.echo(
            "\nfedrec sends none of these indices: zeros travel with the rest of the vector."
        )
        return
    last = found.rounds[-1]
    typer.echo(
        f'\nupdate.indices = "clear": these indices travel, whatever encrypts the values. After '
        f"{count_of(last.rounds, 'round')} the coordinator knows {last.recall:.0%} of a history, "
        f"and {last.precision:.0%} of what it guesses is right."
    )
