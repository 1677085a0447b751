"""Training a federation for a comparison, and reading its measurements."""

from __future__ import annotations

from pathlib import Path

from fedrec.evaluation.metrics import N_CANDIDATES, Protocol
from fedrec.formats import CHECKPOINT_FILE
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.schema import Plan
from fedrec.settings.schema import Settings
from fedrec_lab.comparison.measurement import Measurement, MeasurementStopped, MethodTask
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.simulation.result import SimulationResult
from fedrec_lab.simulation.runner import simulate

_MOST_CELLS = 1 << 27
"""Users times items up to which drawing candidates takes seconds."""


def draws_negatives(plan: Plan) -> bool:
    """Tell whether the plan's algorithm trains on sampled negatives."""
    return algorithm_of(plan, 1).negatives_per_positive > 0


def protocol_groups(
    protocols: tuple[Protocol, ...], *, negatives: bool
) -> tuple[tuple[Protocol, ...], ...]:
    """Return the protocols that one training can be measured under, group by group.

    `paper` leaves the held-out items out of the pool of training negatives. Who draws negatives
    trains differently for it; who draws none trains once.
    """
    if not negatives:
        return (protocols,) if protocols else ()
    honest = tuple(protocol for protocol in protocols if protocol != "paper")
    leaking = tuple(protocol for protocol in protocols if protocol == "paper")
    return tuple(group for group in (honest, leaking) if group)


def further_protocols(plan: Plan, *, n_users: int, n_items: int) -> tuple[Protocol, ...]:
    """Return what a simulation measures besides the plan's protocol: what costs hardly anything.

    `paper` is never among it: with negatives it takes a training of its own, without any it is
    `sampled` under another name.
    """
    own = plan.evaluation.protocol
    if plan.evaluation.at > N_CANDIDATES or (own == "paper" and draws_negatives(plan)):
        return ()
    if n_items <= N_CANDIDATES or n_users * n_items > _MOST_CELLS:
        return ()
    honest: tuple[Protocol, ...] = ("full", "sampled")
    return tuple(protocol for protocol in honest if protocol != own)


def train(task: MethodTask, settings: Settings, seed: int) -> SimulationResult:
    """Run a federation with one seed, measured under all of a task's protocols.

    Args:
        settings: what trains; its protocol and seed are replaced by the task's.

    Raises:
        MeasurementStopped: the task asked to stop; with a folder the training can be resumed.
        TrainingError: it diverged.
    """
    plan_protocol = task.protocols[0]
    if not draws_negatives(settings.plan):
        # Any protocol does; the settings' own is one that goes with the algorithm.
        plan_protocol = settings.evaluation.protocol
    changed = settings.model_copy(
        update={
            "federation": settings.federation.model_copy(update={"seed": seed}),
            "evaluation": settings.evaluation.model_copy(update={"protocol": plan_protocol}),
        }
    )
    folder = None if task.folder is None else _checkpoint_folder(task.folder)
    n_rounds = settings.rounds.total + 2

    def told(report: RoundReport) -> None:
        task.tell(f"round {report.round}/{n_rounds}")

    result = simulate(
        changed,
        n_clients=task.n_clients,
        cells=task.cells,
        users=task.users,
        catalogue=task.catalogue,
        also=task.protocols,
        folder=folder,
        resume=folder is not None and (folder / CHECKPOINT_FILE).is_file(),
        accept_other_arithmetic=task.accept_other_arithmetic,
        on_round=told,
        stop=task.stop,
    )
    if not result.finished:
        raise MeasurementStopped
    return result


def _checkpoint_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def measurements_of(
    result: SimulationResult, *, method: str = "", label: str = ""
) -> list[Measurement]:
    """Return what a federation reached and what its closing round compared it with.

    Args:
        method, label: take the model's own row alone, under these names.
    """
    table = result.comparison()
    rows = table.rows[:1] if method else table.rows
    return [
        Measurement(
            method=method or row.method,
            label=label or row.label,
            protocol=protocol,
            seed=sample.seed,
            rates=sample.rates,
            chosen=sample.chosen,
            note="" if method else row.note,
        )
        for row in rows
        for protocol, samples in row.samples.items()
        for sample in samples
    ]
