"""`fedrec costs`: the CoLR paper's Table 3, what encryption costs, beside what it costs here.

`fedrec costs space`: the PFedCLR paper's Table 6, what models take, by the rules behind it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.terminal import AsJson, print_json, print_table

if TYPE_CHECKING:
    from fedrec.papers.colr_costs import CostRow
    from fedrec.papers.encryption_costs import OwnCosts

__all__ = ["EPILOG", "costs"]

_SPACE = "space"
EPILOG = (
    "Examples:\n"
    "  fedrec costs\n"
    "  fedrec costs colr\n"
    "  fedrec costs --sizes-only --json\n"
    "  fedrec costs space\n"
    "  fedrec costs topk --sample 4000"
)


def costs(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="What rows begin with: fedmf, topk or colr; or space."),
    ] = "",
    sample: Annotated[
        int,
        typer.Option(min=1, help="Paillier ciphertexts that are timed; the rest is scaled."),
    ] = 100,
    sizes_only: Annotated[
        bool, typer.Option("--sizes-only", help="Measure no seconds on this machine.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Regenerate the CoLR paper's Table 3: seconds and sizes of encrypted updates.

    Every row shows what the paper printed, the sizes by the rules that its sizes follow, and what
    the same number of values takes here. Sizes are exact. Seconds are this machine's: a client
    protects an update and reveals a sum, the coordinator adds the updates of 60 clients; a ~ says
    that they were scaled up from a sample of the values.

    space shows the PFedCLR paper's Table 6 instead: what a client and a server hold of a model, as
    printed and by the rules that every printed size follows.
    """
    if name == _SPACE:
        _print_space(as_json)
        return
    from fedrec.errors import SettingsError
    from fedrec.papers.colr_costs import COSTS
    from fedrec.papers.encryption_costs import own_costs

    rows = [row for row in COSTS if row.name.startswith(name)]
    if not rows:
        raise SettingsError(
            f"There is no row {name!r} in the table.",
            remedy=f"Rows are {', '.join(row.name for row in COSTS)}; the other table is {_SPACE}.",
        )
    found = [(row, own_costs(row, sample=sample, timed=not sizes_only)) for row in rows]
    if as_json:
        print_json({"rows": [_content(row, ours) for row, ours in found]})
        return
    print_table(
        [line for row, ours in found for line in _lines(row, ours)],
        title="CoLR, table 3: one update of MovieLens-1M (3,706 items, dim 64)",
        headers=("row", "values", "set", "client s", "server s", "cipher KB", "plain KB"),
    )
    typer.echo("\nKB are 1,024 bytes. Under topk the paper also sends an index of 4 bytes in the")
    typer.echo("clear with each value, which is in its plain KB only.")


def _print_space(as_json: bool) -> None:
    from fedrec.papers.pfedclr_costs import SPACE

    if as_json:
        found = [
            {
                "published": asdict(row),
                "by_rule": {"client_bytes": row.client_bytes, "server_bytes": row.server_bytes},
            }
            for row in SPACE
        ]
        print_json({"rows": found})
        return
    print_table(
        [
            (
                row.name,
                f"{row.n_users:,}",
                f"{row.n_items:,}",
                f"{row.client_mb:.4f}",
                f"{row.by_rule[0]:.4f}",
                f"{row.server_mb:.4f}",
                f"{row.by_rule[1]:.4f}",
            )
            for row in SPACE
        ],
        title="PFedCLR, table 6: what a model of dim 16 takes, in MB of 2^20 bytes",
        headers=("row", "users", "items", "client", "by rule", "server", "by rule"),
    )
    typer.echo("\nThe paper's server keeps every user's upload; a coordinator here adds them up as")
    typer.echo("they come, under every protection that can add.")


def _content(row: CostRow, ours: tuple[OwnCosts, ...]) -> dict[str, object]:
    rules = {"cipher_bytes": row.cipher_bytes, "plain_bytes": row.plain_bytes}
    return {"published": asdict(row), "by_rule": rules, "ours": [asdict(own) for own in ours]}


def _lines(row: CostRow, ours: tuple[OwnCosts, ...]) -> list[tuple[str, ...]]:
    low, high = row.server_seconds
    server = f"{low:g}" if low == high else f"{low:g}-{high:g}"
    printed = (f"{row.client_seconds:g}", server, str(row.cipher_kb), str(row.plain_kb))
    by_rule = ("", "", _kb(row.cipher_bytes), _kb(row.plain_bytes))
    lines: list[tuple[str, ...]] = [
        (row.name, str(row.n_values), "published", *printed),
        ("", "", "by the paper's rules", *by_rule),
    ]
    for own in ours:
        seconds = (_seconds(own.client_seconds, own), _seconds(own.server_seconds, own))
        sizes = (_kb(own.cipher_bytes), _kb(own.plain_bytes))
        lines.append(("", "", f"{own.protection}/{own.preset}", *seconds, *sizes))
    return lines


def _kb(n_bytes: float) -> str:
    return f"{n_bytes / 1024:.1f}"


def _seconds(seconds: float | None, own: OwnCosts) -> str:
    if seconds is None:
        return ""
    shown = f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"
    return f"{'~' if own.sampled_values else ''}{shown}"
