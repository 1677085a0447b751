"""The demo's further runs: the comparison in one process, and the second act."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.text import Text

from fedrec.data import leave_one_out
from fedrec.environment import provenance_of
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Rates
from fedrec.model.state import SharedState
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import Cells
from fedrec.processes import child_command
from fedrec.recommender import MODEL_NAME, ModelFile
from fedrec.settings.schema import Settings
from fedrec.training.learner import Learner
from fedrec_lab.comparison.measurement import (
    Measurement,
    MethodTask,
    differences_of,
    measurements_of,
)
from fedrec_lab.comparison.references import REFERENCES
from fedrec_lab.demo.parties import ANY_PAGE, run_parties
from fedrec_lab.demo.workspace import DEVICE, DemoData, Workspace, provisioned
from fedrec_lab.reports.federation_record import RunView, record_federation, result_rows
from fedrec_lab.reports.result_row import ResultRow
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation.runner import simulate

_SEGMENT = ("participants", "loss", "clipped_values", "clipped_users", "validation", "test")
"""Of a round's report: what its sums decided."""
_MOST_NAMED = 5
_BUDGET = 7
"""Settings that a reference may try: all of EASE's, in a few seconds."""


def differing_rounds(own: Sequence[RoundReport], others: Sequence[RoundReport]) -> list[str]:
    """Return a line for each round whose metric sums differ. The first lines name the fields.

    Args:
        own: the rounds of the single process.
        others: the rounds of the processes. They skip the numbers of abandoned rounds.
    """
    if [report.kind for report in own] != [report.kind for report in others]:
        return [f"{len(others)} rounds were published, {len(own)} in one process"]
    found = []
    for one, other in zip(own, others, strict=True):
        fields = [
            f"{name} {_shown(getattr(other, name))}, not {_shown(getattr(one, name))}"
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


def _shown(value: object) -> str:
    # Rates are HR and NDCG. The other figures are in rounds.jsonl.
    ndcg = getattr(value, "ndcg", None)
    return repr(value) if ndcg is None else f"NDCG {ndcg!r}"


def differing_tensors(when: str, own: SharedState, other: SharedState) -> list[str]:
    """Return a line for each tensor that differs: the number of values and the distance.

    Args:
        when: which version it is, for the lines.
        own: the single process's model.
        other: the processes' model. Tensors that were not exported are skipped.
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
        text: the end of the sentence "... every round's sums are".
        differences: what differs although it should not, line by line.
    """

    text: str
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnencryptedRun:
    """The result of the federation in one process without encryption.

    Attributes:
        test: test rates of its version that was best on validation.
        rounds: all its rounds.
        best: the model that was best on validation.
        latest: the model after the last round.
        measured: its own rates and ranks, and those of popularity and the references.
        at: the K of NDCG@K.
    """

    test: Rates
    rounds: tuple[RoundReport, ...]
    best: SharedState
    latest: SharedState
    measured: tuple[Measurement, ...] = ()
    at: int = 10

    def judge(self, protected: RunView, models: Mapping[Which, SharedState] | None) -> Verdict:
        """Say whether the sums of a federation of processes are these, and what differs.

        Args:
            protected: the rounds of the federation of processes.
            models: its models, as a client exports them, or None if its sums are not exact.
        """
        if models is None:
            return Verdict(
                text="exact. Sums of the processes only approximate them with this parameter set."
            )
        found = differing_rounds(self.rounds, protected.rounds)
        found += differing_tensors("the best model", self.best, models["best"])
        found += differing_tensors("the latest model", self.latest, models["latest"])
        text = "NOT the same: " + "; ".join(found) + "." if found else "the same."
        return Verdict(text=text, differences=tuple(found))

    def sentences(self, verdict: Verdict) -> list[str]:
        """Return the findings of the comparison as sentences."""
        same = f"Without encryption, in one process, every round's sums are {verdict.text}"
        return [same, *self.differences(self.measured[1:])]

    def differences(self, others: Sequence[Measurement]) -> list[str]:
        """Return its NDCG minus the NDCG of each other method, with the interval over users."""
        return [
            f"{own.label}: NDCG@{self.at} minus that of {other.label}: {found.difference.text()}, "
            f"{found.confidence:.0%} interval over {found.users} users"
            f"{'.' if found.difference.excludes(0.0) else ': no difference is shown.'}"
            for own in self.measured[:1]
            for other in others
            for found in differences_of((own,), (other,), self.at).values()
        ]

    @property
    def rows(self) -> list[ResultRow]:
        """Return the references' lines, without what a federation measures itself."""
        return [
            ResultRow(
                label=each.label,
                samples=(each.rates,),
                note="; ".join(filter(None, (each.chosen, each.note))),
            )
            for each in self.measured[2:]
        ]


def run_comparison(
    plan: Plan,
    data: DemoData,
    on_round: Callable[[RoundReport], None],
    *,
    n_clients: int = 1,
    cells: Cells = (),
    references: Sequence[str] = (),
) -> UnencryptedRun:
    """Run a plan's federation in this process, without encryption.

    Args:
        n_clients, cells: the parties and their cells, where rows depend on them.
        references: names in `REFERENCES`, measured on the same users with a small budget.

    Raises:
        TrainingError: if training diverges or nothing was measured.
    """
    # The protection stays, since cells count only under one. Nothing is protected here.
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
    task = MethodTask(
        settings=settings,
        catalogue=data.catalogue,
        users=users,
        protocols=(settings.evaluation.protocol,),
        seeds=(settings.federation.seed,),
        n_clients=n_clients,
        cells=cells,
        budget=_BUDGET,
    )
    measured = [found for found in measurements_of(result) if found.ranks]
    for name in references:
        measured += REFERENCES[name]().measure(task)
    return UnencryptedRun(
        test=report.test,
        rounds=result.rounds,
        best=result.best.shared,
        latest=result.last.shared,
        measured=tuple(measured),
        at=settings.evaluation.at,
    )


def exported_models(workspace: Workspace) -> Mapping[Which, SharedState]:
    """Let the first client export its models. The best one stays in the run's folder."""
    settings = workspace.parties.clients[0]
    ask_client("client export-model", settings, "--to", str(workspace.folder))
    with tempfile.TemporaryDirectory() as folder:
        ask_client("client export-model", settings, "--latest", "--to", folder)
        latest = ModelFile.load(Path(folder) / MODEL_NAME)
    best = ModelFile.load(workspace.folder / MODEL_NAME)
    return {"best": best.shared, "latest": latest.shared}


def recommend_to_first_user(workspace: Workspace) -> tuple[str, dict[str, Any]]:
    """Let the first client recommend to its first user, in its own process."""
    settings = workspace.parties.clients[0]
    lines = (settings.parent / "interactions.csv").read_text(encoding="utf-8").splitlines()
    user = lines[1].split(",")[0]
    return user, ask_client("recommend", settings, "--user", user, "-n", "10")


def ask_client(command: str, settings: Path, *arguments: str) -> dict[str, Any]:
    """Run `fedrec COMMAND` as a client would, in its own process, and return its output."""
    done = subprocess.run(
        child_command("fedrec", *command.split(), str(settings), *arguments, "--json"),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise TrainingError(
            f"`fedrec {command} {settings}` ended with exit code {done.returncode}:\n"
            f"{done.stdout}{done.stderr}".rstrip()
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
    """Yield the log entries of every client about the rounds in which it counted."""
    for state in workspace.client_states:
        for line in (state / "client-log.jsonl").read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            if found["outcome"] == "counted":
                yield found


def announce(console: Console, what: str, more: str) -> None:
    """Print the heading of the step that begins."""
    console.print(Text.assemble((what, "bold"), more))


def run_federation(
    workspace: Workspace,
    folder: RunFolder,
    console: Console,
    *,
    accept_exposure: bool = False,
    record_wire: Path | None = None,
) -> RunView:
    """Start all parties, show the rounds, and return what they measured.

    Args:
        record_wire: a folder for a recording of the coordinator's traffic. None records nothing.

    Raises:
        FedrecError: if a process fails or the run cannot be followed.
    """
    plan = workspace.plan
    view = RunView(planned=plan.rounds.published, at=plan.evaluation.at)
    n_clients = len(workspace.parties.clients)

    def started(address: str, page: str) -> None:
        what = f": coordinator on {address}, the key authority, {n_clients} clients"
        announce(console, "Running", what)
        announce(console, "Watch", f" it in a browser: {page}")

    run_parties(
        workspace.parties,
        folder.path / "logs",
        view,
        console,
        on_start=started,
        on_round=folder.append_round,
        accept_exposure=accept_exposure,
        record_wire=record_wire,
        page=ANY_PAGE,
    )
    return view


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondAct:
    """The result of the second federation.

    Attributes:
        test: rates of its best version on validation.
        seconds: the time from the start of its first process to its last round.
        folder: its run folder, inside the run folder of the first federation.
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

    def sentence(self, first: Plan) -> str:
        """Return its rounds, seconds and bytes as a sentence."""
        return (
            f"{self.plan.algorithm.name} takes {self.plan.rounds.total} rounds in place of "
            f"{first.rounds.total}, {self.seconds:.0f} s, {self.costs.up:,} bytes an upload."
        )

    def summary(self) -> dict[str, Any]:
        """Return the result as an object for JSON."""
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
        path: where its run folder shall be. Made here.

    Raises:
        FedrecError: if the federation cannot be started or fails.
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
