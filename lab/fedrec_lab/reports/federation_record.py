"""Writing a run of separate processes into its run folder, from what the coordinator may say."""

from __future__ import annotations

from collections.abc import Sequence

from fedrec.plan.cautions import measured_caution
from fedrec.plan.schema import Plan
from fedrec_lab.reports.html import Fact, ReportContent
from fedrec_lab.reports.ledger import ledger_of
from fedrec_lab.reports.result_row import ResultRow, reference_rows
from fedrec_lab.reports.round_figures import round_figures
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.reports.run_view import RunView
from fedrec_lab.reports.shortfall import shortfall


def result_rows(
    plan: Plan, view: RunView, compared: Sequence[ResultRow] = ()
) -> tuple[ResultRow, ...]:
    """Return the model chosen on validation, what it is compared with, and the references."""
    rows = []
    best = view.best
    if best is not None and best.test is not None:
        name = f"{plan.algorithm.name} + {plan.update.structure} under {plan.protection.name}"
        said = shortfall(plan, best.validation, view.references, view.rounds)
        note = "; ".join(filter(None, (f"version {best.round - 1}, chosen on validation", said)))
        rows.append(ResultRow(label=name, samples=(best.test,), note=note))
    references = () if view.references is None else reference_rows(view.references)
    return (*rows, *compared, *references)


def record_federation(
    folder: RunFolder,
    plan: Plan,
    view: RunView,
    *,
    n_items: int,
    title: str,
    subtitle: str,
    compared: Sequence[ResultRow] = (),
    findings: Sequence[str] = (),
    statements: Sequence[str] = (),
    facts: Sequence[Fact] = (),
) -> None:
    """Write metrics, ledger and report; the model itself is with the clients.

    Args:
        n_items: size of the catalogue, for the sizes of other ways to upload.
        compared: rows to stand below the run's own.

    Raises:
        StorageError: a file cannot be written.
    """
    ledger = ledger_of(plan, view.rounds, simulated=False, n_items=n_items, n_charged=view.charged)
    folder.write_metrics(view.rounds, view.references)
    folder.write_ledger(ledger)
    best = view.best
    caution = measured_caution(plan, view.reference("untrained", "test"))
    folder.write_report(
        ReportContent(
            title=title,
            subtitle=subtitle,
            rows=result_rows(plan, view, compared),
            at=plan.evaluation.at,
            protocol=plan.evaluation.protocol,
            caution=caution,
            findings=tuple(findings),
            figures=round_figures(
                plan,
                view.rounds,
                n_items=n_items,
                popularity=view.reference("popularity", "validation"),
                best_version=None if best is None else best.round - 1,
                caution=caution,
            ),
            statements=(*statements, *ledger.statements),
            facts=tuple(facts),
            rounds=tuple(view.rounds),
        )
    )
