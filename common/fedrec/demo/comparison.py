"""The same federation without encryption, to be held against the encrypted one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedrec.config.schema import Plan, Settings
from fedrec.data import leave_one_out
from fedrec.demo.workspace import DemoData
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Rates
from fedrec.reports.bootstrap import PairedBootstrap
from fedrec.reports.round_report import RoundReport
from fedrec.simulation.federation import simulate
from fedrec.simulation.ranks import against_popularity

__all__ = ["Comparison", "run_comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the federation reaches in one process and without encryption.

    Attributes:
        test: test rates of its version that was best on validation.
        rounds: all its rounds.
        bootstrap: its NDCG against popularity's, resampled over users.
    """

    test: Rates
    rounds: tuple[RoundReport, ...]
    bootstrap: PairedBootstrap

    def sentences(self, protected: list[RoundReport], *, exact: bool) -> list[str]:
        """Return what the comparison shows.

        Args:
            protected: the rounds of the federation of processes.
            exact: whether its protection promises exact sums.
        """
        own = [(report.loss, report.validation, report.test) for report in self.rounds]
        others = [(report.loss, report.validation, report.test) for report in protected]
        same = own == others
        interval = self.bootstrap.difference
        found = "the same." if same else "NOT the same."
        if not exact:
            found = "exact; those of the processes are only near them, as their set says."
        return [
            f"Without encryption, in one process, every round's sums are {found}",
            f"NDCG minus popularity's: {interval.estimate:.4f}, "
            f"{self.bootstrap.confidence:.0%} interval over {self.bootstrap.users} users "
            f"[{interval.low:.4f}, {interval.high:.4f}].",
        ]


def run_comparison(
    plan: Plan, data: DemoData, on_round: Callable[[RoundReport], None]
) -> Comparison:
    """Run a plan's federation in this process, all users merged, with protection none.

    Raises:
        TrainingError: when training diverges or nothing was measured.
    """
    settings = Settings.model_validate(plan.model_dump() | {"protection": {"name": "none"}})
    users = leave_one_out(data.interactions, data.catalogue)
    result = simulate(settings, users=users, catalogue=data.catalogue, on_round=on_round)
    report = result.best_report
    if report is None or report.test is None:
        raise TrainingError("The comparison measured nothing: no user has a held-out item.")
    return Comparison(test=report.test, rounds=result.rounds, bootstrap=against_popularity(result))
