"""What travelled in a demonstration, against what other ways would have cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from fedrec.config.schema import Plan, ProtectionSettings, UpdateSettings
from fedrec.demo.workspace import Workspace
from fedrec.reports.figures import SizeBar
from fedrec.training.layout import protection_of

__all__ = ["RoundCosts", "alternatives", "measured_costs"]


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
    lines = list(_journal_lines(workspace))
    idle = [line["bytes_down"] for line in lines if not line["revealed"]]
    revealing = [line["bytes_down"] for line in lines if line["revealed"]]
    return RoundCosts(
        up=int(median(line["bytes_up"] for line in lines)),
        down_idle=int(median(idle)) if idle else 0,
        down_revealing=int(median(revealing)) if revealing else 0,
    )


def _journal_lines(workspace: Workspace) -> Iterator[dict[str, int]]:
    for state in workspace.client_states:
        for line in (state / "client-log.jsonl").read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            if found["outcome"] == "counted":
                yield found


def alternatives(plan: Plan, n_items: int) -> list[SizeBar]:
    """Return the upload of one client and round under this plan and under others."""
    dense_values = n_items * plan.algorithm.dim
    paper = ProtectionSettings(name="ckks", preset="paper")
    dense = UpdateSettings(structure="dense", fraction_bits=plan.update.fraction_bits)

    def upload(**changes: object) -> int:
        return protection_of(plan.model_copy(update=changes), n_items).chosen.message_bytes

    own = protection_of(plan, n_items).chosen
    return [
        SizeBar(
            label=f"this run: {plan.update.structure}, {own.protection} {own.preset}",
            n_bytes=own.message_bytes,
            chosen=True,
        ),
        SizeBar(label="the same update, plain integers",
                n_bytes=upload(protection=ProtectionSettings(name="none"))),
        SizeBar(label="the same update, the paper's CKKS set", n_bytes=upload(protection=paper)),
        SizeBar(label="dense table, plain float32", n_bytes=4 * dense_values),
        SizeBar(label="dense table, the paper's CKKS set",
                n_bytes=upload(protection=paper, update=dense)),
    ]  # fmt: skip
