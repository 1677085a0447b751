"""A run of separate processes: the content of its coordinator's journal, and its run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedrec.evaluation.metrics import METRIC_NAMES, MetricSums, Rates, Scorer, Split
from fedrec.ids import RoundId
from fedrec.plan.cautions import measured_caution
from fedrec.plan.schema import Plan
from fedrec.wire.admin_link import RunEvent
from fedrec_lab.reports.figures import round_figures
from fedrec_lab.reports.html import Fact, ReportContent
from fedrec_lab.reports.ledger import ledger_of
from fedrec_lab.reports.result_row import ResultRow, reference_rows, shortfall
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RunFolder

NOTHING = MetricSums(np.zeros(len(METRIC_NAMES), dtype=np.int64))


@dataclass(slots=True, kw_only=True)
class RunView:
    """The content of a run's journal for its folder. A `RunStatus` has the current state.

    Attributes:
        planned: the number of rounds to publish: training, the count and the evaluation.
        references: metric sums of the evaluation round, once they are known.
        charged: the number of noisy sums in the coordinator's privacy ledger.
        unclear: why there are no metrics of the last round, or empty.
    """

    planned: int
    at: int
    rounds: list[RoundReport] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    references: MetricSums | None = None
    finished: str = ""
    failed: bool = False
    charged: int = 0
    unclear: str = ""
    _unmeasured: RunEvent | None = None

    def take(self, event: RunEvent) -> RoundReport | None:
        """Record an event. Return the report of a round that was just published."""
        fields = event.fields
        match event.kind:
            case "update counted" | "sum made" | "step ended":
                self.charged += int(fields.get("charged", False))
            case "round abandoned":
                self.abandoned.append(fields["reason"])
            case "run finished":
                self.finished, self.failed = fields["reason"], fields["failed"]
            case "round published" if "metrics" in fields:
                return self._published(event, fields["metrics"])
            case "round published":
                # Clients have not reported the metrics yet.
                self._unmeasured = event
            case "round measured":
                self.unclear = fields.get("reason", "")
                published, self._unmeasured = self._unmeasured, None
                if published is not None:
                    return self._published(published, fields["metrics"])
        return None

    def _published(self, event: RunEvent, metrics: list[int]) -> RoundReport:
        fields = event.fields
        sums = MetricSums.of_event(metrics) or NOTHING
        report = RoundReport.of(
            RoundId(event.round),
            fields["kind"],
            sums,
            seconds=fields["seconds"],
            vector_bytes=fields["bytes_received"] // max(1, fields["counted"]),
            n_clients=fields["counted"],
        )
        self.rounds.append(report)
        if fields["kind"] == "evaluate":
            self.references = sums
        return report

    def line(self, report: RoundReport) -> str:
        """Return one line about a published round."""
        rates = report.validation
        quality = f"{self.unclear}  " if self.unclear else ""
        if rates is not None:
            quality = f"HR@{self.at} {rates.hr:.4f}  NDCG@{self.at} {rates.ndcg:.4f}  "
        loss = "" if report.loss is None else f"loss {report.loss:.4f}  "
        return (
            f"round {len(self.rounds):>3}/{self.planned}  {report.kind:<8}  {quality}{loss}"
            f"{report.n_clients} clients, {report.vector_bytes / 1024:.0f} KiB each, "
            f"{report.seconds:.2f} s"
        )

    def reference(self, scorer: Scorer, split: Split) -> Rates | None:
        """Return a reference's result, or None if the run has not reached its last round."""
        return None if self.references is None else self.references.rates(scorer, split)

    @property
    def best(self) -> RoundReport | None:
        """Return the round that measured the best model on validation, the earliest of equals."""
        best: tuple[float, RoundReport] | None = None
        for report in self.rounds:
            if report.validation is not None and (best is None or report.validation.ndcg > best[0]):
                best = report.validation.ndcg, report
        return None if best is None else best[1]


def result_rows(
    plan: Plan, view: RunView, compared: Sequence[ResultRow] = ()
) -> tuple[ResultRow, ...]:
    """Return rows for the model chosen on validation, its baselines and the references."""
    rows = []
    best = view.best
    if best is not None and best.test is not None:
        name = f"{plan.algorithm.name} + {plan.update.structure} under {plan.protection.name}"
        warning = shortfall(plan, best.validation, view.references, view.rounds)
        note = "; ".join(filter(None, (f"version {best.round - 1}, chosen on validation", warning)))
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
    """Write metrics, ledger and report. The clients have the model itself.

    Args:
        n_items: size of the catalogue, to compute the sizes of other kinds of updates.
        compared: rows to show below the run's own.

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
