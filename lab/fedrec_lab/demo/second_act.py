"""The demonstration's second act: fedals on the same data, between processes of its own."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrec.config.schema import Plan, Settings
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Rates
from fedrec.provenance import provenance_of
from fedrec.training.learner import Learner
from fedrec_lab.demo.costs import RoundCosts, measured_costs
from fedrec_lab.demo.running import announce, run_federation
from fedrec_lab.demo.workspace import DEVICE, DemoData, provisioned
from fedrec_lab.reports.federation_record import record_federation, result_rows
from fedrec_lab.reports.result_row import ResultRow
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.reports.run_view import RunView

__all__ = ["SecondAct", "run_second_act"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondAct:
    """What the second federation reached.

    Attributes:
        test: of its version that was best on validation.
        seconds: from the start of its first process to its last round.
        folder: its run folder, inside the first one's.
    """

    plan: Plan
    view: RunView
    test: Rates
    costs: RoundCosts
    seconds: float
    folder: Path

    @property
    def row(self) -> ResultRow:
        """Its line in the table of the first federation."""
        return result_rows(self.plan, self.view)[0]

    def sentence(self, first: Plan, first_test: Rates) -> str:
        """Return how it compares with the first federation."""
        ratio = self.test.ndcg / first_test.ndcg if first_test.ndcg > 0 else float("inf")
        return (
            f"{self.plan.algorithm.name} reaches {ratio:.2f} times {first.algorithm.name}'s "
            f"NDCG@{self.plan.evaluation.at} after {self.plan.rounds.total} rounds in place of "
            f"{first.rounds.total}, in {self.seconds:.0f} s, {self.costs.up:,} bytes an upload."
        )

    def summary(self) -> dict[str, Any]:
        """Return what a program may want to read."""
        return {
            "plan": self.plan.model_dump(),
            "test": asdict(self.test),
            "costs": asdict(self.costs),
            "seconds": self.seconds,
            "folder": str(self.folder),
        }


def run_second_act(
    plan: Plan, data: DemoData, path: Path, *, n_clients: int, console: Console
) -> SecondAct:
    """Run a federation of processes on data that the first one used, with new keys.

    Args:
        path: where its run folder shall be; made here.

    Raises:
        FedrecError: when it cannot be started or fails.
    """
    path.mkdir()
    folder = RunFolder(path)
    catalogue = {"catalogue": str(path / "catalogue.csv")}
    folder.write_settings(Settings.model_validate(plan.model_dump() | {"data": catalogue}))
    folder.write_environment(provenance_of(plan, DEVICE))
    announce(
        console,
        "Second act",
        f": {plan.algorithm.name} on the same data, protection {plan.protection.name}, "
        f"{plan.rounds.total} rounds",
    )
    Learner(plan, len(data.catalogue), device=DEVICE).warm_up()
    workspace = provisioned(path, plan, data, n_clients=n_clients)
    began = time.monotonic()
    view = run_federation(workspace, folder, console)
    seconds = time.monotonic() - began
    best = view.best
    if best is None or best.test is None:
        raise TrainingError("The second run measured nothing: no user has a held-out item.")
    record_federation(
        folder,
        plan,
        view,
        n_items=len(data.catalogue),
        title="fedrec demo, second act",
        subtitle=f"{data.name}, {plan.protection.name}, {plan.rounds.total} rounds",
    )
    return SecondAct(
        plan=plan,
        view=view,
        test=best.test,
        costs=measured_costs(workspace),
        seconds=seconds,
        folder=path,
    )
