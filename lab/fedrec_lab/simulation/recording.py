"""Record the rounds and users of a simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrec.data.interactions import user_groups
from fedrec.environment import describe_environment
from fedrec.errors import DataError
from fedrec.evaluation.metrics import rate_of_users
from fedrec.plan.cautions import marked
from fedrec_lab.reports.figures import quality_by_activity, round_figures, share_of_clients, spectra
from fedrec_lab.reports.html import Fact, Figure, ReportContent, protocol_tables
from fedrec_lab.reports.ledger import Ledger, ledger_of
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.reports.table_diagnostics import diagnose_model
from fedrec_lab.simulation.checkpoint import CheckpointFolder
from fedrec_lab.simulation.result import SimulationResult, UserRanks, against_popularity, user_ranks

_USERS_WITH_TABLES = 50
"""The number of users whose tables are enough for the median of their spectra."""


def user_figures(
    result: SimulationResult, ranks: UserRanks, *, protocol: str
) -> tuple[Figure, ...]:
    """Return quality by activity, its spread over clients, and the spectra of item tables.

    A client is a party of the simulation or, if there is only one, a user as in the papers.

    Args:
        ranks: the ranks of the held-out test items.
        protocol: the protocol of the ranking, as `marked` writes it.
    """
    at, users = result.settings.evaluation.at, result.users
    measured = np.nonzero(ranks.model >= 0)[0]
    found = []
    if len(measured):
        gains = {
            "the model": rate_of_users(ranks.model, at),
            "popularity": rate_of_users(ranks.popularity, at),
        }
        activity = np.diff(users.train_indptr)[measured]
        own = {name: values[measured] for name, values in gains.items()}
        found.append(
            Figure(
                name="quality-by-activity",
                plot=quality_by_activity(activity, own, at=at, protocol=protocol),
                caption="Quality on test in fifths of the users, by their training interactions.",
            )
        )
        found.append(
            Figure(
                name="spread-over-clients",
                plot=share_of_clients(_clients(result, measured), gains, at=at, protocol=protocol),
                caption="How quality on test is spread over clients. Further right is better.",
            )
        )
    best = result.best
    tables = diagnose_model(
        result.settings.plan,
        len(result.catalogue),
        best.shared,
        dict(best.private.tensors),
        most_users=_USERS_WITH_TABLES,
    )
    if tables:
        found.append(
            Figure(
                name="spectra",
                plot=spectra(tables),
                caption="Singular values of the item tables: one that falls fast uses few of its "
                "dimensions.",
            )
        )
    return tuple(found)


def _clients(result: SimulationResult, measured: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the measured users of each client. A client without any is left out."""
    if result.n_clients == 1:
        return list(measured[:, None])
    groups = user_groups(result.users.user_ids, result.n_clients)
    found = [np.intersect1d(group, measured) for group in groups]
    return [group for group in found if len(group)]


def record_simulation(result: SimulationResult, run: RunFolder) -> None:
    """Write model, users, metrics, ledger and report. Then drop a finished run's checkpoint.

    Raises:
        StorageError: a file cannot be written. The checkpoint is still there.
    """
    run.write_settings(result.settings)
    run.write_environment(result.provenance)
    run.write_metrics(result.rounds, result.evaluation)
    run.write_results(result.comparison())
    run.write_ledger(_ledger(result))
    result.recommender().save(run.path)
    ranks = user_ranks(result)
    plan = result.settings.plan
    key = (plan.evaluation.protocol, plan.federation.seed)
    run.write_ranks({key: ranks.model}, result.users)
    run.write_report(report_content(result, ranks))
    if result.finished:
        CheckpointFolder(run.path).remove()


def save_run(result: SimulationResult, run_folder: str | Path) -> Path:
    """Write a simulation's run folder as `fedrec simulate` does, in place of an earlier one.

    `compare_runs`, `Recommender.load` and `fedrec runs` read it. A stopped run can be saved, too,
    and `simulate(..., folder=run_folder, resume=True)` still resumes it from its checkpoint there.

    Returns:
        The folder's path.

    Raises:
        StorageError: a file cannot be written.
    """
    run = RunFolder(Path(run_folder))
    result.recommender().save(run.path)
    run.write_rounds(result.rounds)
    record_simulation(result, run)
    return run.path


def _ledger(result: SimulationResult) -> Ledger:
    n_items = len(result.catalogue)
    return ledger_of(result.settings.plan, result.rounds, simulated=True, n_items=n_items)


def report_content(result: SimulationResult, ranks: UserRanks | None = None) -> ReportContent:
    """Return the content of a simulation's report.

    Args:
        ranks: the users' ranks on test, if they are known.
    """
    ranks = ranks or user_ranks(result)
    settings = result.settings
    protocol, at = settings.evaluation.protocol, settings.evaluation.at
    compared = result.comparison()
    caution = compared.cautions.get(protocol, "")
    ledger = _ledger(result)
    state = "" if result.finished else ", stopped before its end"
    return ReportContent(
        title=f"{settings.federation.name}: {settings.algorithm.name}",
        subtitle=f"A simulated federation of {len(result.users)} users and "
        f"{len(result.catalogue)} items, {len(result.rounds)} rounds{state}.",
        rows=result.rows(),
        at=at,
        protocol=protocol,
        caution=caution,
        also=protocol_tables(compared)[1:],
        findings=_comparison(ranks, at),
        figures=(
            *_round_figures(result, caution),
            *user_figures(result, ranks, protocol=marked(protocol, caution)),
        ),
        statements=ledger.statements,
        facts=_facts(result),
        rounds=result.rounds,
    )


def _comparison(ranks: UserRanks, at: int) -> tuple[str, ...]:
    try:
        found = against_popularity(ranks, at=at)
    except DataError:
        return ()
    difference, ratio = found.difference, found.ratio
    verdict = "This split shows no difference between the model and popularity"
    if difference.excludes(0.0):
        model, other = ("the model", "popularity")[:: 1 if difference.estimate > 0 else -1]
        verdict = f"{model.capitalize()} is better than {other}"
    return (
        f"{verdict}: NDCG minus popularity's is {difference.estimate:+.4f}, {found.confidence:.0%} "
        f"bootstrap interval over {found.users} users {difference.low:+.4f} to "
        f"{difference.high:+.4f}. As a ratio: {ratio.estimate:.2f}, {ratio.low:.2f} to "
        f"{ratio.high:.2f}.",
    )


def _round_figures(result: SimulationResult, caution: str) -> tuple[Figure, ...]:
    evaluation = result.evaluation
    return round_figures(
        result.settings.plan,
        result.rounds,
        n_items=len(result.catalogue),
        popularity=None if evaluation is None else evaluation.rates("popularity", "validation"),
        best_version=result.best.round,
        caution=caution,
    )


def _facts(result: SimulationResult) -> tuple[Fact, ...]:
    machine = describe_environment()
    trained = result.provenance
    settings = [
        Fact(name=f"{section}.{key}", value=str(value))
        for section, values in result.settings.plan.model_dump().items()
        for key, value in values.items()
    ]
    return (
        *settings,
        Fact(name="fedrec", value=machine.fedrec),
        Fact(name="Python", value=machine.python),
        *(Fact(name=name, value=version) for name, version in machine.packages),
        Fact(name="machine", value=f"{machine.cpu}, {machine.cpu_count} processors"),
        Fact(name="device", value=trained.arithmetic.device),
        Fact(name="what trained", value=trained.path),
        Fact(name="arithmetic", value=trained.arithmetic.digest()),
        *(
            Fact(
                name=f"other arithmetic accepted after round {change.round}",
                value=f"{change.before}, then {change.after}; {change.at}. {change.difference}",
            )
            for change in trained.accepted
        ),
    )
