"""`fedrec keys roster list`, `cells` and `resume`: which clients are summed together."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from math import log2
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.terminal import Result, TextTable
from fedrec_authority.cli.roster import AUTHORITY_FOLDER, KeysFolder, changed

if TYPE_CHECKING:
    from fedrec.identity.cells import Partition
    from fedrec.ids import ClientId


_BITS = (20, 40)
_ABSENT = {"1 %": 0.01, "10 %": 0.10}
_PRESENCE = {"waiting": "waits for other newcomers", "guest": "guest"}


def list_members(into: KeysFolder = AUTHORITY_FOLDER) -> Result:
    """Show members, former members and applicants, and whether rounds wait for them."""
    from fedrec.identity.cells import Partition
    from fedrec_authority.folder.authority_folder import AuthorityFolder

    folder = AuthorityFolder(into)
    membership, roster = folder.membership, folder.last_roster
    partition = Partition() if roster is None else roster.partition.with_paused(folder.paused)
    rows = [
        (
            "member" if member.is_present else "former",
            member.client_id,
            member.identity.label,
            *_place(partition, member.client_id if member.is_present else None),
            f"added {_day(member.added_at)}"
            + (f", removed {_day(member.removed_at)}" if member.removed_at else ""),
        )
        for member in membership.members
    ]
    rows += [
        ("applies", identity.client_id, identity.label, 0, "guest" if consent else "", "")
        for identity, consent in folder.applicants()
    ]
    names = ("state", "client_id", "label", "cell", "presence", "when")
    paused = {cell.id for cell in partition.in_use if cell.state == "paused"}
    # A single cell contains every member, so the column would not tell anything.
    many = len(partition.in_use) > 1
    shown = [
        (
            *(state, client_id, label, _cell(cell, paused) if many else ""),
            *(_PRESENCE.get(presence, ""), when),
        )
        for state, client_id, label, cell, presence, when in rows
    ]
    is_changed = membership.is_changed or folder.is_interrupted(folder.newest)
    rotate = "Members have changed. Run `fedrec keys rotate` to make an epoch with them."
    return Result(
        content={
            "epoch": membership.last_epoch,
            "is_changed": is_changed,
            "cell_size": partition.cell_size,
            "paused": sorted(paused),
            "clients": [dict(zip(names, row, strict=True)) for row in rows],
        },
        text=(
            TextTable(rows=shown, title=f"after epoch {membership.last_epoch}"),
            *((rotate,) if is_changed else ()),
        ),
    )


def sizes(
    corrupt_share: Annotated[
        str, typer.Option(help="Share of the clients that may collude, at most .5.")
    ] = ".1",
    clients: Annotated[
        int, typer.Option(min=0, help="Number of clients. If 0, uses the current members.")
    ] = 0,
    into: KeysFolder = AUTHORITY_FOLDER,
) -> Result:
    """Show how large cells must be if some clients collude, and what that costs.

    A client only hides among the honest clients of its cell. Larger cells have more of them, but
    more often a client is away, which keeps the whole cell out of a round. Set the size with
    rounds.minimum_summands before the federation begins, 3 at least. It can't be changed later.
    """
    from fedrec.errors import SettingsError
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.members.cell_placement import HONEST, size_needed, too_few_honest

    share = _share(corrupt_share)
    members = clients or len(AuthorityFolder(into).membership.present)
    if members < HONEST:
        raise SettingsError(
            f"{members} clients are too few for a cell, which needs {HONEST}.",
            remedy="Set --clients to the planned number of clients.",
        )
    found = {"smallest": HONEST} | {
        f"2^-{bits}": size_needed(members, share, bits) for bits in _BITS
    }
    chances = {size: float(too_few_honest(members, share, size)) for size in found.values() if size}
    rows = [
        {"below": below, "size": size}
        | ({} if size is None else {"chance": chances[size], "counted": _counted(size)})
        for below, size in found.items()
    ]
    table = TextTable(
        rows=[
            (below, "none", "")
            if size is None
            else (
                below,
                str(size),
                _power(chances[size]),
                *map("{:.2f}".format, _counted(size).values()),
            )
            for below, size in found.items()
        ],
        title=f"{members} clients, {float(share):.0%} of them colluding",
        headers=(
            f"a cell has fewer than {HONEST} honest",
            "size",
            "chance at most",
            *(f"counted with {absent} away" for absent in _ABSENT),
        ),
    )
    content = {"clients": members, "corrupt_share": float(share), "sizes": rows}
    return Result(content=content, text=(table,))


def resume(
    cell: Annotated[int, typer.Argument(min=1, metavar="CELL", help="The cell's number.")],
    into: KeysFolder = AUTHORITY_FOLDER,
) -> Result:
    """Let a paused cell take part in rounds again from the next epoch."""
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.folder.folder_changes import changing

    with changing(AuthorityFolder(into)) as folder:
        made = folder.rotate(resume=cell)
        membership = folder.membership
    return changed(into, f"resumed cell {cell}", made, membership)


def _place(partition: Partition, client_id: ClientId | None) -> tuple[int, str]:
    """Return a member's cell, or 0, and whether rounds wait for it."""
    if client_id is None or not partition.cell_size:
        return 0, ""
    cell = partition.cell_of(client_id)
    if cell is None:
        return 0, "waiting"
    return cell.id, "guest" if client_id in cell.guests else "core"


def _cell(number: int, paused: set[int]) -> str:
    if not number:
        return ""
    return f"cell {number}" + (", paused" if number in paused else "")


def _share(text: str) -> Fraction:
    from fedrec.errors import SettingsError

    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share <= Fraction(1, 2):
        raise SettingsError(
            f"--corrupt-share: {text!r} is not from 0 to .5.", remedy="Use .1 for a tenth."
        )
    return share


def _counted(size: int) -> dict[str, float]:
    """Return the share of clients that a round counts while some are away."""
    from fedrec_authority.members.cell_placement import counted_share

    return {absent: counted_share(size, share) for absent, share in _ABSENT.items()}


def _power(chance: float) -> str:
    return "0" if not chance else "1" if chance >= 1 else f"2^{log2(chance):.1f}"


def _day(unix_seconds: int) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d")
