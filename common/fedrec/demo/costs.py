"""What travelled in a demonstration, by the clients' own journals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from fedrec.demo.workspace import Workspace

__all__ = ["RoundCosts", "journal_lines", "measured_costs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Bytes that one client moved in a round, measured at its own network interface.

    Attributes:
        up: median over clients and rounds of all bytes sent.
        down_idle: median of bytes received by clients that neither revealed nor verified.
        down_revealing: median of bytes received by clients that did; 0 where nobody did.
    """

    up: int
    down_idle: int
    down_revealing: int


def measured_costs(workspace: Workspace) -> RoundCosts:
    """Read the clients' own journals."""
    lines = list(journal_lines(workspace))
    idle = [line["bytes_down"] for line in lines if not line["revealed"]]
    revealing = [line["bytes_down"] for line in lines if line["revealed"]]
    return RoundCosts(
        up=int(median(line["bytes_up"] for line in lines)),
        down_idle=int(median(idle)) if idle else 0,
        down_revealing=int(median(revealing)) if revealing else 0,
    )


def journal_lines(workspace: Workspace) -> Iterator[dict[str, int]]:
    """Yield what every client wrote down of every round in which it counted."""
    for state in workspace.client_states:
        for line in (state / "client-log.jsonl").read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            if found["outcome"] == "counted":
                yield found
