"""Writing a finished simulation into its run folder."""

from __future__ import annotations

from fedrec.errors import DataError
from fedrec.reports.environment import describe_environment
from fedrec.reports.figures import quality_by_round, size_bars
from fedrec.reports.html import Fact, Figure, ReportContent
from fedrec.reports.ledger import Ledger, ledger_of
from fedrec.reports.message_sizes import message_sizes
from fedrec.reports.run_folder import RunFolder
from fedrec.simulation.checkpoint import CheckpointFolder
from fedrec.simulation.ranks import against_popularity
from fedrec.simulation.result import SimulationResult

__all__ = ["record_simulation", "report_content"]


def record_simulation(result: SimulationResult, run: RunFolder) -> None:
    """Write model, users, metrics, ledger and report; then drop a finished run's checkpoint.

    Raises:
        StorageError: a file cannot be written; the checkpoint is still there.
    """
    run.write_settings(result.settings)
    run.write_environment(result.provenance)
    run.write_metrics(result.rounds, result.evaluation)
    run.write_results(result.comparison())
    run.write_ledger(_ledger(result))
    result.recommender().save(run.path)
    run.write_report(report_content(result))
    if result.finished:
        CheckpointFolder(run.path).remove()


def _ledger(result: SimulationResult) -> Ledger:
    n_items = len(result.catalogue)
    return ledger_of(result.settings.plan, result.rounds, simulated=True, n_items=n_items)


def report_content(result: SimulationResult) -> ReportContent:
    """Return what the report of a simulation says."""
    settings = result.settings
    protocol, at = settings.evaluation.protocol, settings.evaluation.at
    ledger = _ledger(result)
    state = "" if result.finished else ", stopped before its end"
    return ReportContent(
        title=f"{settings.federation.name}: {settings.algorithm.name}",
        subtitle=f"A simulated federation of {len(result.users)} users and "
        f"{len(result.catalogue)} items, {len(result.rounds)} rounds{state}.",
        rows=result.rows(),
        at=at,
        findings=(f"Protocol: {protocol}; metrics on test at {at}.", *_comparison(result)),
        figures=_figures(result),
        statements=ledger.statements,
        facts=_facts(result),
        rounds=result.rounds,
    )


def _comparison(result: SimulationResult) -> tuple[str, ...]:
    try:
        found = against_popularity(result)
    except DataError:
        return ()
    difference, ratio = found.difference, found.ratio
    verdict = "excludes" if difference.excludes(0.0) else "includes"
    return (
        f"NDCG minus popularity's: {difference.estimate:+.4f}, {found.confidence:.0%} bootstrap "
        f"interval over {found.users} users {difference.low:+.4f} to {difference.high:+.4f}, which "
        f"{verdict} 0. As a ratio: {ratio.estimate:.2f}, {ratio.low:.2f} to {ratio.high:.2f}.",
    )


def _figures(result: SimulationResult) -> tuple[Figure, ...]:
    settings = result.settings
    popularity = (
        None if result.evaluation is None else result.evaluation.rates("popularity", "validation")
    )
    quality = quality_by_round(
        result.rounds,
        at=settings.evaluation.at,
        popularity=popularity,
        best_version=result.best.round,
    )
    sizes = size_bars(message_sizes(settings.plan, len(result.catalogue)))
    return (
        Figure(svg=quality, caption="Quality on validation by version of the model."),
        Figure(svg=sizes, caption="One client's upload in one round; orange: these settings."),
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
