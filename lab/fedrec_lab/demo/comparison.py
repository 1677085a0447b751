"""What a federation's model is held against, and what is asked of its clients."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrec.child_process import child_command
from fedrec.config.schema import Plan, Settings
from fedrec.data import leave_one_out
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Rates
from fedrec.model.state import SharedState
from fedrec.planning.cell_rows import Cells
from fedrec.recommender import MODEL_NAME, ModelFile
from fedrec_lab.demo.workspace import DEVICE, DemoData, Workspace
from fedrec_lab.reports.comparison_table import PairedBootstrap
from fedrec_lab.reports.federation_record import RunView
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.simulation.result import against_popularity, user_ranks
from fedrec_lab.simulation.runner import simulate

_SEGMENT = ("participants", "loss", "clipped_values", "clipped_users", "validation", "test")
"""Of a round's report: what its sums decided."""
_MOST_NAMED = 5


def differing_rounds(own: Sequence[RoundReport], others: Sequence[RoundReport]) -> list[str]:
    """Return a line for each round whose metric sums differ, the first ones by their fields.

    Args:
        own: the rounds of the single process.
        others: those of the processes; a round that was given up leaves out a number, and no more.
    """
    if [report.kind for report in own] != [report.kind for report in others]:
        return [f"{len(others)} rounds were published, {len(own)} in one process"]
    found = []
    for one, other in zip(own, others, strict=True):
        fields = [
            f"{name} {_told(getattr(other, name))}, not {_told(getattr(one, name))}"
            for name in _SEGMENT
            if getattr(one, name) != getattr(other, name)
        ]
        if fields:
            found.append(f"round {one.round}, metrics: {'; '.join(fields)}")
    more = len(found) - _MOST_NAMED
    if more > 0:
        last = found[-1].partition(",")[0]
        found[_MOST_NAMED:] = [f"and {more} more rounds, the last one {last}"]
    return found


def _told(value: object) -> str:
    # Rates tell HR and NDCG; a reader finds the rest in rounds.jsonl.
    ndcg = getattr(value, "ndcg", None)
    return repr(value) if ndcg is None else f"NDCG {ndcg!r}"


def differing_tensors(when: str, own: SharedState, other: SharedState) -> list[str]:
    """Return a line for each tensor of a model that differs, with how many values and how far.

    Args:
        when: which version it is, for the lines.
        own: the single process's model.
        other: the processes' model; what was not exported is not looked at.
    """
    found = []
    for name, values in sorted(other.tensors.items()):
        wanted = own.tensors.get(name)
        if wanted is None or wanted.shape != values.shape:
            found.append(f"{when}, {name}: its shape is another")
            continue
        wrong = np.count_nonzero(values != wanted)
        if wrong:
            apart = float(np.abs(values - wanted).max())
            found.append(f"{when}, {name}: {wrong:,} of {values.size:,} values, by up to {apart:g}")
    return found


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


def exported_models(workspace: Workspace) -> Mapping[Which, SharedState]:
    """Let the first client export its models; the best one stays in the run's folder."""
    settings = workspace.client_settings[0]
    ask_client(settings, "export-model", "--to", str(workspace.folder))
    with tempfile.TemporaryDirectory() as folder:
        ask_client(settings, "export-model", "--latest", "--to", folder)
        latest = ModelFile.load(Path(folder) / MODEL_NAME)
    best = ModelFile.load(workspace.folder / MODEL_NAME)
    return {"best": best.shared, "latest": latest.shared}


def recommend_to_first_user(workspace: Workspace) -> tuple[str, dict[str, Any]]:
    """Let the first client recommend to its first user, in its own process."""
    settings = workspace.client_settings[0]
    lines = (settings.parent / "interactions.csv").read_text(encoding="utf-8").splitlines()
    user = lines[1].split(",")[0]
    return user, ask_client(settings, "recommend", "--user", user, "-n", "10")


def ask_client(settings: Path, verb: str, *arguments: str) -> dict[str, Any]:
    """Return what `fedrec client VERB` prints, run as a process of its own like any client's."""
    done = subprocess.run(
        child_command("fedrec", "client", verb, str(settings), *arguments, "--json"),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise TrainingError(
            f"`fedrec client {verb} {settings}` ended with exit code {done.returncode}:\n"
            f"{done.stdout}{done.stderr}".rstrip()
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
