"""Reports: the run folder, tables, figures and the HTML page."""

from fedrec.reports.bootstrap import Interval, PairedBootstrap, paired_bootstrap
from fedrec.reports.comparison_table import ComparisonRow, ComparisonTable, Sample
from fedrec.reports.figures import quality_by_round, size_bars
from fedrec.reports.html import Fact, Figure, ReportContent, render_report
from fedrec.reports.ledger import Ledger, ledger_of
from fedrec.reports.plots import SizeBar
from fedrec.reports.result_row import ResultRow, reference_rows
from fedrec.reports.round_report import RoundReport
from fedrec.reports.run_folder import RunFolder
from fedrec.reports.tables import markdown_table, plain_table, rich_table

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
    "markdown_table",
    "paired_bootstrap",
    "plain_table",
    "quality_by_round",
    "reference_rows",
    "render_report",
    "rich_table",
    "size_bars",
]
