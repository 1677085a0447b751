"""Tables of costs in `fedrec reproduce`: CoLR's minutes and encryption, PFedCLR's space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from fedrec.cli.terminal import Result, TextTable

if TYPE_CHECKING:
    from fedrec_lab.papers.costs import CostRow, OwnCosts, OwnTimes, TimeRow


COSTS, SPACE = "colr/costs", "pfedclr/space"
"""The tables of costs, by their names in `fedrec reproduce`."""


def tables_named(name: str, *, sample: int, sizes_only: bool) -> Result | None:
    """Return published tables of costs with the costs here, or None for another name.

    Every row shows the published figures and those here. CoLR's table 2 is the paper's estimate.
    Its minutes on a link follow from the numbers of a message. For its minutes of computation, a
    client's training and the server's work are timed on this machine. In table 3 a client protects
    an update and reveals a sum, and the coordinator adds the updates of 60 clients. Sizes are
    exact, including those according to the paper's rules. A ~ marks seconds that were scaled up
    from a sample of the values. The ratio is the paper's: encrypted bytes over plain bytes.

    Args:
        name: `SPACE`, or `COSTS`, optionally with a slash and the beginning of rows.
        sample: number of Paillier ciphertexts to time.
        sizes_only: measure no seconds on this machine.

    Raises:
        SettingsError: there is no such row.
    """
    from fedrec.errors import SettingsError
    from fedrec_lab.papers import costs

    if name == SPACE:
        return _space()
    table, _, begins = name.removeprefix(COSTS).partition("/")
    if table or not name.startswith(COSTS):
        return None
    times = [row for row in costs.TIMES if row.name.startswith(begins)]
    rows = [row for row in costs.COSTS if row.name.startswith(begins)]
    if not rows and not times:
        known = dict.fromkeys([row.name for row in costs.COSTS] + [row.name for row in costs.TIMES])
        raise SettingsError(
            f"There is no row {begins!r} in the tables.", remedy=f"Rows are {', '.join(known)}."
        )
    taken = [(row, costs.own_times(row, timed=not sizes_only)) for row in times]
    found = [(row, costs.own_costs(row, sample=sample, timed=not sizes_only)) for row in rows]
    return Result(
        content={
            "times": [_times_content(row, ours) for row, ours in taken],
            "rows": [_content(row, ours) for row, ours in found],
        },
        text=_text(taken, found),
    )


def _text(
    taken: list[tuple[TimeRow, OwnTimes]], found: list[tuple[CostRow, tuple[OwnCosts, ...]]]
) -> Iterator[str | TextTable]:
    if taken:
        yield TextTable(
            rows=[line for row, ours in taken for line in _time_lines(row, ours)],
            title="CoLR, table 2: minutes of 1000 rounds on MovieLens-1M (3,706 items, dim 64)",
            headers=("row", "", "link", "computation", "total", "client s", "server s"),
        )
        yield "\nComputation is 1000 x (7 x client + 10 + server) seconds: 166.67 minutes are the"
        yield "constant. The paper does not print its seconds.\n"
    if found:
        yield TextTable(
            rows=[line for row, ours in found for line in _lines(row, ours)],
            title="CoLR, table 3: one update of MovieLens-1M (3,706 items, dim 64)",
            headers=(
                *("row", "values", "set", "client s", "server s"),
                *("cipher KB", "plain KB", "ratio"),
            ),
        )
        yield "\nKB are 1,024 bytes. Under topk an index of 4 bytes comes with each value: it is"
        yield "in the paper's plain KB, and here under paillier/paper and single in both."


def _time_lines(row: TimeRow, ours: OwnTimes) -> list[tuple[str, ...]]:
    printed = (row.link_minutes, row.computation_minutes, row.total_minutes)
    lines = [(row.name, "published", *(f"{minutes:.2f}" for minutes in printed), "", "")]
    link = f"{ours.link_minutes:.2f}"
    if ours.computation_minutes is None:
        return [*lines, ("", "here", link, "", "", "", "")]
    computation, total = ours.computation_minutes, ours.link_minutes + ours.computation_minutes
    seconds = (f"{ours.client_seconds:.3g}", f"{ours.server_seconds:.3g}")
    return [*lines, ("", "here", link, f"{computation:.2f}", f"{total:.2f}", *seconds)]


def _times_content(row: TimeRow, ours: OwnTimes) -> dict[str, object]:
    published = asdict(row)
    del published["update"]
    return {"published": published, "ours": asdict(ours)}


def _space() -> Result:
    from fedrec_lab.papers.costs import SPACE as ROWS

    return Result(
        content={
            "rows": [
                {
                    "published": asdict(row),
                    "by_rule": {"client_bytes": row.client_bytes, "server_bytes": row.server_bytes},
                }
                for row in ROWS
            ]
        },
        text=(
            TextTable(
                rows=[
                    (
                        row.name,
                        f"{row.n_users:,}",
                        f"{row.n_items:,}",
                        f"{row.client_mb:.4f}",
                        f"{row.by_rule[0]:.4f}",
                        f"{row.server_mb:.4f}",
                        f"{row.by_rule[1]:.4f}",
                    )
                    for row in ROWS
                ],
                title="PFedCLR, table 6: what a model of dim 16 takes, in MB of 2^20 bytes",
                headers=("row", "users", "items", "client", "by rule", "server", "by rule"),
            ),
            "\nThe paper's server keeps every user's upload. A coordinator here adds them up as",
            "they arrive, under every protection that can add.",
        ),
    )


def _content(row: CostRow, ours: tuple[OwnCosts, ...]) -> dict[str, object]:
    rules = {
        "cipher_bytes": row.cipher_bytes,
        "plain_bytes": row.plain_bytes,
        "ratio": row.ratio,
    }
    own_rows = [{**asdict(own), "ratio": own.ratio} for own in ours]
    return {"published": asdict(row), "by_rule": rules, "ours": own_rows}


def _lines(row: CostRow, ours: tuple[OwnCosts, ...]) -> list[tuple[str, ...]]:
    low, high = row.server_seconds
    server = f"{low:g}" if low == high else f"{low:g}-{high:g}"
    sizes = (str(row.cipher_kb), str(row.plain_kb), f"{row.printed_ratio:.2f}")
    printed = (f"{row.client_seconds:g}", server, *sizes)
    by_rule = ("", "", _kb(row.cipher_bytes), _kb(row.plain_bytes), f"{row.ratio:.2f}")
    lines: list[tuple[str, ...]] = [
        (row.name, str(row.n_values), "published", *printed),
        ("", "", "according to the paper's rules", *by_rule),
    ]
    for own in ours:
        seconds = (_seconds(own.client_seconds, own), _seconds(own.server_seconds, own))
        sizes = (_kb(own.cipher_bytes), _kb(own.plain_bytes), f"{own.ratio:.2f}")
        lines.append(("", "", f"{own.protection}/{own.preset}", *seconds, *sizes))
    return lines


def _kb(n_bytes: float) -> str:
    return f"{n_bytes / 1024:.1f}"


def _seconds(seconds: float | None, own: OwnCosts) -> str:
    if seconds is None:
        return ""
    shown = f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"
    return f"{'~' if own.sampled_values else ''}{shown}"
