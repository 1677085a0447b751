"""The same federation without encryption, to be held against the encrypted one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from fedrec.config.schema import Plan, Settings
from fedrec.data import leave_one_out
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Rates
from fedrec.model.state import SharedState
from fedrec.planning.cell_rows import Cells
from fedrec_lab.demo.differences import differing_rounds, differing_tensors
from fedrec_lab.demo.workspace import DEVICE, DemoData
from fedrec_lab.reports.bootstrap import PairedBootstrap
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_view import RunView
from fedrec_lab.simulation.ranks import against_popularity, user_ranks
from fedrec_lab.simulation.runner import simulate

__all__ = ["Comparison", "Verdict", "Which", "run_comparison"]


Which = Literal["best", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the sums of the processes are those of the single process.

    Attributes:
        told: the end of the sentence "... every round's sums are".
        differences: what differs although it should not, line by line.
    """

    told: str
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the federation reaches in one process and without encryption.

    Attributes:
        test: test rates of its version that was best on validation.
        rounds: all its rounds.
        best: the model that was best on validation.
        latest: the model after the last round.
        bootstrap: its NDCG against popularity's, resampled over users.
    """

    test: Rates
    rounds: tuple[RoundReport, ...]
    best: SharedState
    latest: SharedState
    bootstrap: PairedBootstrap

    def judge(self, protected: RunView, models: Mapping[Which, SharedState] | None) -> Verdict:
        """Say whether the sums of a federation of processes are these, and what differs.

        Args:
            protected: the rounds of the federation of processes.
            models: its models, as a client exports them; None where its sums are not exact.
        """
        if models is None:
            return Verdict(
                told="exact; those of the processes are only near them, as their set says."
            )
        found = differing_rounds(self.rounds, protected.rounds)
        found += differing_tensors("the best model", self.best, models["best"])
        found += differing_tensors("the latest model", self.latest, models["latest"])
        told = "NOT the same: " + "; ".join(found) + "." if found else "the same."
        return Verdict(told=told, differences=tuple(found))

    def sentences(self, verdict: Verdict) -> list[str]:
        """Return what the comparison shows."""
        interval = self.bootstrap.difference
        return [
            f"Without encryption, in one process, every round's sums are {verdict.told}",
            f"NDCG minus popularity's: {interval.estimate:.4f}, "
            f"{self.bootstrap.confidence:.0%} interval over {self.bootstrap.users} users "
            f"[{interval.low:.4f}, {interval.high:.4f}].",
        ]


def run_comparison(
    plan: Plan,
    data: DemoData,
    on_round: Callable[[RoundReport], None],
    *,
    n_clients: int = 1,
    cells: Cells = (),
) -> Comparison:
    """Run a plan's federation in this process, without encryption.

    Args:
        n_clients, cells: the parties and their cells, where rows depend on them.

    Raises:
        TrainingError: when training diverges or nothing was measured.
    """
    # The protection stays, since cells count only under one; nothing is protected here.
    settings = Settings.model_validate(plan.model_dump() | {"client": {"device": DEVICE}})
    users = leave_one_out(data.interactions, data.catalogue)
    result = simulate(
        settings,
        users=users,
        catalogue=data.catalogue,
        on_round=on_round,
        n_clients=n_clients,
        cells=cells,
    )
    report = result.best_report
    if report is None or report.test is None:
        raise TrainingError("The comparison measured nothing: no user has a held-out item.")
    return Comparison(
        test=report.test,
        rounds=result.rounds,
        best=result.best.shared,
        latest=result.last.shared,
        bootstrap=against_popularity(user_ranks(result), at=result.settings.evaluation.at),
    )
