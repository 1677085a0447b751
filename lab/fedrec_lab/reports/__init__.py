"""Reports: the run folder, tables, figures and the HTML page."""

from fedrec_lab.reports.comparison_table import (
    ComparisonRow,
    ComparisonTable,
    Interval,
    PairedBootstrap,
    Sample,
    paired_bootstrap,
)
from fedrec_lab.reports.drawing import SizeBar
from fedrec_lab.reports.figures import quality_by_round, size_bars
from fedrec_lab.reports.html import Fact, Figure, ReportContent, render_report
from fedrec_lab.reports.ledger import Ledger, ledger_of
from fedrec_lab.reports.result_row import ResultRow, plain_table, reference_rows, rich_table
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RunFolder

__all__ = [
    "ComparisonRow",
    "ComparisonTable",
    "Fact",
    "Figure",
    "Interval",
    "Ledger",
    "PairedBootstrap",
    "ReportContent",
    "ResultRow",
    "RoundReport",
    "RunFolder",
    "Sample",
    "SizeBar",
    "ledger_of",
    "paired_bootstrap",
    "plain_table",
    "quality_by_round",
    "reference_rows",
    "render_report",
    "rich_table",
    "size_bars",
]
