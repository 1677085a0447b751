"""A hundred million devices on paper: the tables of docs/explanation/scale.md.

    python benchmarks/scale_on_paper.py
    python benchmarks/scale_on_paper.py --page docs/explanation/scale.md

Nothing runs here. Messages have the sizes that `fedrec check` computes. What one machine does was
measured by the benchmark that `MEASURED` names, and prices are assumptions. `make bench` leaves the
script out, because it measures nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from fedrec.plan.price import price
from fedrec.plan.schema import Plan
from fedrec.protection.masks.terms import MAX_CLIENTS

N_ITEMS, DIM, RANK = 50_000, 16, 4
GB, DAY = 1e9, 86_400.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its unit and its origin."""

    value: float
    unit: str
    source: str


MEASURED = {
    "upload": Figure(311e6, "B/s durable and acknowledged", "bench_uploads.py"),
    "connection": Figure(67e3, "B for each connection", "bench_idle_clients.py"),
    "poll": Figure(19e3, "B for each poll that waits", "bench_idle_clients.py"),
    "waking": Figure(1e-3, "s of processor time to wake a poll", "bench_idle_clients.py"),
    "counting": Figure(4.7e-5, "s of processor time to count an update", "bench_adding.py"),
    "adding": Figure(4.4e-8, "s of processor time to add a value under bfv", "bench_adding.py"),
}
ASSUMED = {
    "devices": Figure(1e8, "devices", "the question"),
    "edges": Figure(1_000, "edges", "one for 100,000 devices"),
    "sampled": Figure(2_000, "devices of an edge in a round", "2 % of them"),
    "memory": Figure(16e9, "B of memory for a coordinator", "a small machine"),
    "deadline": Figure(300, "s for a round's uploads", "rounds.deadline_seconds"),
    "wake": Figure(60, "s until the last device knows a new version", "a choice"),
    "egress": Figure(0.02, "USD for a GB from a CDN", "a list price"),
    "machine": Figure(0.09, "USD for two virtual processors and an hour", "a list price"),
    "check_in": Figure(DAY, "s between two check-ins of a device", "once a day"),
}


def known(name: str) -> float:
    """Return the value of a figure."""
    return {**MEASURED, **ASSUMED}[name].value


def message(protection: str) -> tuple[int, int]:
    """Return a client's bytes up and down in a round with an edge's sampled devices."""
    plan = Plan.model_validate(
        {
            "federation": {"maximum_users": 2**21},
            "algorithm": {"name": "fedmf", "dim": DIM},
            "update": {"structure": "colr", "rank": RANK},
            "protection": {"name": protection},
            "rounds": {"clients_per_round": int(known("sampled"))},
        }
    )
    found = price(plan, n_items=N_ITEMS, n_clients=int(known("sampled")))
    return found.up_bytes, found.down_bytes


def one_coordinator() -> list[tuple[str, str, str]]:
    """Return the limits of one coordinator: what, the number of clients, and why."""
    up, _ = message("bfv")
    each = known("connection") + known("poll")
    values = N_ITEMS * (RANK + 1)
    return [
        ("clients that agree on masks in a round", f"{MAX_CLIENTS:,}", "masks/terms.py"),
        (
            "uploads of a round before its deadline",
            f"{known('upload') * known('deadline') / up:,.0f}",
            f"{up / 1e6:.1f} MB each under bfv",
        ),
        (
            "adding a round's updates before its deadline, on one processor",
            f"{known('deadline') / (known('adding') * values + known('counting')):,.0f}",
            f"{values:,} values each",
        ),
        (
            "waking every waiting poll in a minute, on one processor",
            f"{known('wake') / known('waking'):,.0f}",
            f"{1e3 * known('waking'):.0f} ms each",
        ),
        (
            "connections with a poll that waits",
            f"{known('memory') / each:,.0f}",
            f"{each / 1e3:.0f} kB each in {known('memory') / GB:.0f} GB",
        ),
    ]


def a_tree() -> list[tuple[str, ...]]:
    """Return a round of the tree under each protection, as rows of a table."""
    edges, sampled = known("edges"), known("sampled")
    rows: list[tuple[str, ...]] = []
    for protection in ("none", "masks", "bfv"):
        up, down = message(protection)
        rows.append(
            (
                protection,
                f"{up / 1e6:.2f} MB",
                f"{down / 1e6:.2f} MB",
                f"{sampled * up / GB:.1f} GB in {sampled * up / known('upload'):.0f} s",
                f"{edges * up / GB:.1f} GB in {edges * up / known('upload'):.0f} s",
                f"{edges * sampled * up / 1e12:.1f} TB",
                f"{edges * sampled * down / 1e12:.1f} TB",
                f"{money(down, edges * sampled):,.0f} USD",
            )
        )
    return rows


def money(down: float, devices: float) -> float:
    """Return the price of a round in USD: downloads by the devices, and two hours of all edges."""
    return known("egress") * down * devices / GB + 2 * known("machine") * known("edges")


def everybody() -> tuple[float, float]:
    """Return TB up and USD of a round with all devices under bfv."""
    up, down = message("bfv")
    return known("devices") * up / 1e12, money(down, known("devices"))


def table(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [headers, tuple("---" for _ in headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text() -> str:
    """Return the page's tables."""
    uploaded, spent = everybody()
    check_ins = known("devices") / known("check_in")
    figures = [
        (name, f"{figure.value:g} {figure.unit}", figure.source)
        for name, figure in {**MEASURED, **ASSUMED}.items()
    ]
    return "\n\n".join(
        [
            "### Where one coordinator ends",
            table(("limit", "clients", "from"), one_coordinator()),
            "### A round of a tree",
            table(
                (
                    "protection", "a device up", "a device down", "into an edge",
                    "into the root", "up in all", "down in all", "price of a round",
                ),
                a_tree(),
            ),
            f"A round with all devices under `bfv` would take {uploaded:,.0f} TB up and cost "
            f"{spent:,.0f} USD. Devices that check in once a day are {check_ins:,.0f} calls a "
            f"second in all, and {check_ins / known('edges'):.1f} for an edge.",
            "### Figures",
            table(("name", "value", "source"), figures),
        ]
    )  # fmt: skip


BEGIN, END = "<!-- scale_on_paper.py -->", "<!-- end -->"


def on_page(page: str) -> str:
    """Return a page with these tables in place of its own."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{text()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="the page whose tables are replaced")
    chosen = parser.parse_args()
    if chosen.page is None:
        print(text())
    else:
        chosen.page.write_text(on_page(chosen.page.read_text()))


if __name__ == "__main__":
    main()
