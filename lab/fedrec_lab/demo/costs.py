"""What travelled in a demonstration, by the clients' own journals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from fedrec_lab.demo.workspace import Workspace

__all__ = ["RoundCosts", "journal_lines", "measured_costs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Bytes that one client moved in a round, measured at its own network interface.

    Attributes:
        up: median over clients and rounds of all bytes sent.
        down: median over clients and rounds of all bytes received.
    """

    up: int
    down: int


def measured_costs(workspace: Workspace) -> RoundCosts:
    """Read the clients' own journals."""
    lines = list(journal_lines(workspace))
    return RoundCosts(
        up=int(median(line["bytes_up"] for line in lines)),
        down=int(median(line["bytes_down"] for line in lines)),
    )


def journal_lines(workspace: Workspace) -> Iterator[dict[str, int]]:
    """Yield what every client wrote down of every round in which it counted."""
    for state in workspace.client_states:
        for line in (state / "client-log.jsonl").read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            if found["outcome"] == "counted":
                yield found
