"""The flag `--cells`: the partition of a deployed federation, where one process has all data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedrec.config.schema import Settings
    from fedrec.data.splits import UserSplit
    from fedrec.planning.cell_rows import Cells

__all__ = ["FLAG", "CellsOf", "read_cells", "tell_rows"]

FLAG = "--cells"

CellsOf = Annotated[
    str,
    typer.Option(
        FLAG,
        metavar="N|ROSTER",
        help="Cells of a deployed federation, as the key authority would make them, or its roster; "
        "items are trained that enough users hold outside federation.corrupt_cells of them.",
    ),
]


def read_cells(settings: Settings, given: str, clients: int) -> tuple[int, Cells, str]:
    """Return the number of clients, their cells, and a warning where the plan counts no cells.

    Args:
        given: the flag: a number, a roster's path, or nothing.
        clients: as asked for; 0 takes as few as the cells have, and is returned without cells.

    Raises:
        SettingsError: the clients make no such cells.
        KeysError: the file is no roster.
    """
    from fedrec.errors import SettingsError
    from fedrec.identity.key_files import read_public
    from fedrec.identity.roster import MAX_BYTES, Roster
    from fedrec.planning.cell_rows import (
        cells_in_use,
        cells_of_roster,
        deal_cells,
        fewest_clients_of,
    )

    plan = settings.plan
    if not given or (given.isdecimal() and int(given) < 2):
        return clients, (), ""
    if given.isdecimal():
        n_clients = clients or fewest_clients_of(plan, int(given))
        cells = deal_cells(plan, int(given), n_clients)
    else:
        names = settings.parties.clients
        n_clients = len(names)
        if clients not in (0, n_clients):
            raise SettingsError(
                f"--clients is {clients}, but parties.clients names {n_clients}.",
                remedy=f"Leave --clients out, or give {FLAG} a number.",
            )
        content = read_public(
            Path(given), max_bytes=MAX_BYTES, remedy=f"Give {FLAG} a number, or a roster's path."
        )
        roster = Roster.from_json(content)
        cells = cells_in_use(plan, cells_of_roster(roster, names), n_clients)
    if cells or plan.counts_by_cell:
        return n_clients, cells, ""
    return (
        n_clients,
        (),
        f"{FLAG} changes no row: cells are counted only where the key authority alone opens exact "
        "sums (protection.key_holder, privacy.mechanism) and federation.minimum_item_users is "
        "above 1.",
    )


def tell_rows(
    settings: Settings, users: UserSplit, n_items: int, *, n_clients: int, cells: Cells
) -> dict[str, int] | None:
    """Say on stderr which rows cells cost, and return it for `--json`; without cells nothing."""
    from fedrec.planning.cell_rows import cell_rows

    if not cells:
        return None
    found = cell_rows(settings.plan, users, n_items, n_clients=n_clients, cells=cells)
    typer.echo(found.sentence(settings.plan), err=True)
    return asdict(found)
