"""The demonstration from end to end: prepare, run, compare, look at the coordinator, report."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from fedrec.algorithms import ALGORITHMS
from fedrec.cli.terminal import Result, TextTable
from fedrec.data import partition_users
from fedrec.environment import provenance_of
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Rates
from fedrec.extras import require
from fedrec.plan.exposure import check_exposure
from fedrec.plan.layout import protection_modules, protection_of
from fedrec.plan.privacy import trust_statement
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import cells_in_use, cells_of_roster
from fedrec.settings.schema import Settings
from fedrec.settings.starter import TUNED
from fedrec.settings.validation import load_settings
from fedrec.training.learner import Learner
from fedrec_lab.audit.wire import WireReport, audit_wire
from fedrec_lab.demo.further_runs import (
    RoundCosts,
    SecondAct,
    UnencryptedRun,
    Verdict,
    announce,
    exported_models,
    measured_costs,
    recommend_to_first_user,
    run_comparison,
    run_federation,
    run_second_act,
)
from fedrec_lab.demo.parties import PAGE_NEEDS, PARTIES_NEED, cast_table
from fedrec_lab.demo.workspace import DEVICE, DemoData, Workspace, load_data, provisioned
from fedrec_lab.reports.drawing import SizeBar
from fedrec_lab.reports.federation_record import RunView, record_federation, result_rows
from fedrec_lab.reports.figures import message_sizes
from fedrec_lab.reports.html import Fact
from fedrec_lab.reports.result_row import ResultRow, plain_table
from fedrec_lab.reports.run_folder import RunFolder

AUDIT_NAME = "wire-audit.json"


def recording_of(workspace: Workspace) -> Path:
    """Return the folder into which a demonstration's coordinator records its traffic."""
    return workspace.folder / "recording"


def look_at_coordinator(workspace: Workspace) -> WireReport:
    """Audit a coordinator's traffic and folder with all that the clients know.

    All findings are stored in the run's folder, field by field, as `AUDIT_NAME`.

    Raises:
        FedrecError: if the recording, the folder or the keys cannot be read.
    """
    report = audit_wire(
        load_settings(workspace.parties.coordinator),
        recording=recording_of(workspace),
        truth=[state.parent for state in workspace.client_states],
    )
    text = json.dumps(report.to_json(), indent=2) + "\n"
    (workspace.folder / AUDIT_NAME).write_text(text, encoding="utf-8")
    return report


def finish_recording(workspace: Workspace, *, keep: bool) -> tuple[str, str]:
    """Keep the recording only on request, and return two lines about it."""
    folder = recording_of(workspace)
    if not keep:
        mebibytes = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
        shutil.rmtree(folder)
        recording = f"The recording, {mebibytes:.1f} MiB, was deleted. --keep-recording keeps it."
    else:
        own = shlex.quote(str(workspace.parties.coordinator))
        recording = (
            "The recording is there, too. To look again:\n"
            f"  fedrec audit {own} --recording {shlex.quote(str(folder))}"
        )
    return f"Field by field: {AUDIT_NAME} in the run's folder.", recording


FIRST, SECOND = "fedmf", "fedals"
REFERENCES_SHOWN = ("ceiling", "ease", "edlae")
"""The references that are tuned in seconds. `fedrec evaluate` has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the demo.

    Attributes:
        algorithm: one with tuned settings in the starter.
        rounds, rank: 0 takes those of the tuned settings.
        protection: one of `fedrec.protection.PROTECTIONS`.
        preset: parameter set of the protection. "default" is its first.
        compare: also run the federation without encryption, in one process.
        second_act: then run fedals under bfv, after fedmf only.
        keep_recording: keep the recorded traffic in the run's folder, next to its audit.
        accept_exposure: consent to the exposure of a plan without encryption, for all processes.
    """

    algorithm: str = "fedmf"
    protection: str = "ckks"
    preset: str = "default"
    rounds: int = 0
    rank: int = 0
    n_clients: int = 3
    seed: int = 1
    synthetic: bool = False
    compare: bool = True
    second_act: bool = True
    keep_recording: bool = False
    accept_exposure: bool = False
    runs: Path = Path("runs")

    def plan(self) -> Plan:
        """Return the plan: the settings of `fedrec init`, but for what was chosen."""
        rank = {"rank": self.rank} if self.rank else {}
        protection = {"name": self.protection, "preset": self.preset}
        return self._plan(self.algorithm, self.rounds, protection, rank)

    def second_plan(self) -> Plan | None:
        """Return the plan of the second act, or None if there is none."""
        if not self.second_act or self.algorithm != FIRST:
            return None
        name = "none" if self.protection == "none" else "bfv"
        return self._plan(SECOND, 0, {"name": name}, {})

    def _plan(
        self, algorithm: str, rounds: int, protection: dict[str, str], update: dict[str, int]
    ) -> Plan:
        tuned = TUNED[algorithm].model_dump()
        needs_all = ALGORITHMS[algorithm].about.needs_all_clients
        return Plan.model_validate(
            {
                "federation": {"name": "demo", "seed": self.seed, "maximum_users": 1024},
                "algorithm": tuned["algorithm"],
                "update": tuned["update"] | update,
                "protection": protection,
                "rounds": {
                    "total": rounds or tuned["rounds"]["total"],
                    "minimum_clients": self.n_clients if needs_all else min(3, self.n_clients),
                    "minimum_summands": 3 if self.protection != "none" else 1,
                },
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    view: RunView
    test: Rates
    best_version: int
    costs: RoundCosts
    bars: tuple[SizeBar, ...]
    exposure: WireReport
    comparison: UnencryptedRun | None
    verdict: Verdict | None
    second: SecondAct | None
    second_alone: UnencryptedRun | None
    recommendations: dict[str, Any]
    user: str
    seconds: float


def demonstrate(options: DemoOptions, console: Console) -> Result:
    """Run everything, write the run folder, and return the result.

    If the comparison came out otherwise, the result has its failure.

    Args:
        options: the choices of the reader.
        console: where to print each step as it begins.

    Raises:
        FedrecError: if the federation cannot be started or fails.
    """
    began = time.monotonic()
    plan = options.plan()
    data, folder, workspace = _prepared(options, plan, console)
    view = run_federation(
        workspace,
        folder,
        console,
        accept_exposure=options.accept_exposure,
        record_wire=recording_of(workspace),
    )
    best = view.best
    if best is None or best.test is None:
        raise TrainingError("The run measured nothing: no user has a held-out item.")
    # The coordinator has no model to leave behind: a client gives the shared one.
    models = exported_models(workspace)
    comparison = verdict = None
    if options.compare:
        comparison = _compare(workspace, data, console)
        verdict = comparison.judge(view, models)
    second_plan, second, second_alone = options.second_plan(), None, None
    if second_plan is not None:
        second = run_second_act(
            second_plan, data, folder.path / SECOND, n_clients=options.n_clients, console=console
        )
        if options.compare:
            second_alone = run_comparison(second_plan, data, lambda _: None)
    user, found = recommend_to_first_user(workspace)
    outcome = _Outcome(
        view=view,
        costs=measured_costs(workspace),
        bars=message_sizes(plan, len(data.catalogue)),
        test=best.test,
        best_version=best.round - 1,
        exposure=look_at_coordinator(workspace),
        comparison=comparison,
        verdict=verdict,
        second=second,
        second_alone=second_alone,
        recommendations=found,
        user=user,
        seconds=time.monotonic() - began,
    )
    return Result(
        content={"folder": str(folder.path), **_write(folder, plan, data, outcome)},
        text=(
            *_text(plan, outcome),
            *finish_recording(workspace, keep=options.keep_recording),
            "",
            "Client 1 exported the shared model into the run's folder, without any user's vector.",
            "It recommends from a history that is on this machine:",
            f"  fedrec recommend {shlex.quote(str(folder.path))} --user {user}",
            "",
            f"Took {outcome.seconds:.0f} s.",
            str(folder.path),
        ),
        failure=None if verdict is None else _failure(verdict, folder.path),
    )


def _prepared(
    options: DemoOptions, plan: Plan, console: Console
) -> tuple[DemoData, RunFolder, Workspace]:
    """Make the run folder and every party's own, and compile the trainer."""
    check_exposure(plan, accepted=options.accept_exposure)
    plans = filter(None, (plan, options.second_plan()))
    encrypting = (module for each in plans for module in protection_modules(each))
    require("torch", "pyarrow", "matplotlib", "scipy", *PARTIES_NEED, *PAGE_NEEDS, *encrypting)
    announce(console, "Preparing", ": data, keys, and a private folder for each client")
    data = load_data(synthetic=options.synthetic)
    folder = RunFolder.create(options.runs, "demo")
    catalogue = {"catalogue": str(folder.path / "catalogue.csv")}
    folder.write_settings(Settings.model_validate(plan.model_dump() | {"data": catalogue}))
    folder.write_environment(provenance_of(plan, DEVICE))
    workspace = provisioned(folder.path, plan, data, n_clients=options.n_clients)
    _introduce(plan, data, options.n_clients, console)
    console.print("Compiling the trainer. The result is kept for the next time")
    Learner(plan, len(data.catalogue), device=DEVICE).warm_up()
    return data, folder, workspace


def _introduce(plan: Plan, data: DemoData, n_clients: int, console: Console) -> None:
    """Print the data, the settings, the parties, and what a user has to trust."""
    chosen = protection_of(plan, len(data.catalogue)).chosen
    console.print(
        f"{data.name}: {data.interactions.n_users} users, {len(data.catalogue)} items, "
        f"{len(data.interactions):,} interactions. {data.note}"
    )  # fmt: skip
    update = f"{plan.update.structure} updates"
    if plan.update.structure != "dense":
        update += f" of rank {plan.update.rank}"
    security = f", {chosen.security_bits}-bit security" if chosen.security_bits else ""
    console.print(
        f"{n_clients} clients, {plan.algorithm.name} with {update}, "
        f"protection {chosen.protection} "
        f"({chosen.preset}{security}), {plan.rounds.total} rounds"
    )  # fmt: skip
    parts = partition_users(data.interactions, n_clients)
    console.print(cast_table(plan, [part.n_users for part in parts]))
    console.print(trust_statement(plan))


def _failure(verdict: Verdict, folder: Path) -> TrainingError | None:
    """Return the error of sums that differ from those of one process, if any do."""
    if not verdict.differences:
        return None
    return TrainingError(
        "The federation of processes should have the same sums as one process, bit by bit, but "
        f"{'; '.join(verdict.differences)}.",
        remedy=f"Everything is in {folder}. Please report it with what `fedrec doctor` prints.",
    )


def _compare(workspace: Workspace, data: DemoData, console: Console) -> UnencryptedRun:
    """Run the same federation in one process, without encryption."""
    announce(
        console,
        "Comparing",
        ": the same federation without encryption, in one process, then EASE and EDLAE",
    )
    plan, names = workspace.plan, [path.parent.name for path in workspace.parties.clients]
    # In the order in which `provision` dealt users out to them.
    names.sort(key=lambda name: int(name.rpartition("-")[2]))
    cells = cells_in_use(plan, cells_of_roster(workspace.roster, names), len(names))
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("rounds", total=plan.rounds.published)
        return run_comparison(
            plan,
            data,
            lambda _: progress.advance(bar),
            n_clients=len(names) if cells else 1,
            cells=cells,
            references=REFERENCES_SHOWN,
        )


def _rows(plan: Plan, outcome: _Outcome) -> tuple[ResultRow, ...]:
    return result_rows(plan, outcome.view, _compared(outcome))


def _compared(outcome: _Outcome) -> list[ResultRow]:
    rows = []
    if outcome.comparison is not None:
        samples = (outcome.comparison.test,)
        rows.append(ResultRow(label="the same without encryption", samples=samples))
    if outcome.second is not None:
        rows.append(outcome.second.row)
    return rows + (outcome.comparison.rows if outcome.comparison is not None else [])


def _findings(plan: Plan, outcome: _Outcome) -> list[str]:
    findings = []
    if outcome.comparison is not None and outcome.verdict is not None:
        findings += outcome.comparison.sentences(outcome.verdict)
    if outcome.second is not None:
        findings.append(outcome.second.sentence(plan))
    if outcome.comparison is not None and outcome.second_alone is not None:
        findings += outcome.second_alone.differences(outcome.comparison.measured)
    return findings


def _text(plan: Plan, outcome: _Outcome) -> Iterator[str | TextTable]:
    yield "\nQuality on held-out items"
    yield plain_table(_rows(plan, outcome), at=plan.evaluation.at)
    yield from (f"  {sentence}" for sentence in _findings(plan, outcome))
    sizes = [(f"upload: {bar.label}", bar.n_bytes) for bar in outcome.bars]
    sizes += [("measured: sent", outcome.costs.up), ("measured: received", outcome.costs.down)]
    yield ""
    yield TextTable(
        title="Bytes of one client in one round",
        headers=("what", "bytes", "against this run"),
        rows=[(what, f"{size:,}", f"{size / sizes[0][1]:.2f} x") for what, size in sizes],
    )
    yield "uploads: for a table of all items. Measured: only items that enough users hold"
    yield "\nThe coordinator's view, in its recorded traffic and its folder"
    yield from (f"  {sentence}" for sentence in outcome.exposure.sentences())
    yield ""
    yield TextTable(
        title=f"Ten recommendations for user {outcome.user}, made on client 1",
        headers=("rank", "title", "score"),
        rows=[
            (str(item["rank"]), item["title"], f"{item['score']:.3f}")
            for item in outcome.recommendations["items"]
        ],
    )
    yield ""


def _write(folder: RunFolder, plan: Plan, data: DemoData, outcome: _Outcome) -> dict[str, object]:
    """Write the run's folder, and return its summary."""
    record_federation(
        folder,
        plan,
        outcome.view,
        n_items=len(data.catalogue),
        title="fedrec demo",
        subtitle=f"{data.name}, {plan.protection.name}, {plan.rounds.total} rounds",
        compared=_compared(outcome),
        findings=_findings(plan, outcome),
        statements=outcome.exposure.sentences(),
        facts=(
            Fact(name="data", value=data.note),
            Fact(name="seconds", value=f"{outcome.seconds:.0f}"),
        ),
    )
    summary: dict[str, object] = {
        "plan": plan.model_dump(),
        "test": _as_dict(outcome.test),
        "best_version": outcome.best_version,
        "without_encryption": _as_dict(outcome.comparison.test) if outcome.comparison else None,
        "differences": list(outcome.verdict.differences) if outcome.verdict else None,
        "second_act": None if outcome.second is None else outcome.second.summary(),
        "references": {row.label: asdict(row.samples[0]) for row in _rows(plan, outcome)[1:]},
        "costs": asdict(outcome.costs),
        "alternatives": {bar.label: bar.n_bytes for bar in outcome.bars},
        "exposure": outcome.exposure.summary(),
        "recommendations": outcome.recommendations,
        "abandoned": outcome.view.abandoned,
        "seconds": outcome.seconds,
    }
    path = folder.path / "summary.json"
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _as_dict(rates: Rates | None) -> dict[str, float] | None:
    return None if rates is None else asdict(rates)
