"""The report of a run: one HTML file without external resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from pydantic import TypeAdapter, ValidationError

from fedrec.errors import StorageError
from fedrec.plan.cautions import explained, marked
from fedrec_lab.reports.comparison_table import ComparisonTable
from fedrec_lab.reports.drawing import Plot, as_element, why_no_figures
from fedrec_lab.reports.result_row import ResultRow, cells, headings
from fedrec_lab.reports.round_report import RoundReport

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #3b82f6; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; color: CanvasText; background: Canvas; }
h1 { font-size: 1.6rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
.subtitle { opacity: .75; margin-top: .2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.results tbody tr:first-child { font-weight: 600; background: var(--soft); }
.facts td { text-align: left; overflow-wrap: anywhere; }
.facts td:first-child { white-space: nowrap; opacity: .75; }
figure { margin: 1rem 0; }
figure svg { max-width: 100%; height: auto; }
figcaption { opacity: .75; font-size: .9rem; }
.statement { border-left: 4px solid var(--accent); padding: .2rem 1rem; background: var(--soft); }
summary { cursor: pointer; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A named value, e.g. a setting or a version."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure and its caption.

    Attributes:
        name: the name of its files, without an extension.
    """

    name: str
    plot: Plot
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolTable:
    """The results of methods under one protocol.

    Attributes:
        protocol: the protocol, or empty in reports of older releases.
        rows: the results, the run's own model first.
        caution: a warning about these figures, or None if it is unknown.
    """

    protocol: str
    rows: tuple[ResultRow, ...]
    caution: str | None = ""

    @property
    def heading(self) -> str:
        """Return the protocol, marked if it flatters results."""
        return marked(self.protocol, self.caution)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContent:
    """The content of a report.

    Attributes:
        rows: the result table under the plan's protocol, the run's own model first.
        at: the K of the metrics.
        protocol: the plan's protocol, or empty in reports of older releases.
        caution: a warning about figures under it, or None if it is unknown.
        also: tables under other protocols, if they were measured.
        findings: sentences that say the result, before the tables.
        statements: the protection of the run, and its limits.
        facts: settings and machine.
    """

    title: str
    subtitle: str
    rows: tuple[ResultRow, ...]
    at: int
    protocol: str = ""
    caution: str | None = ""
    also: tuple[ProtocolTable, ...] = ()
    findings: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    statements: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    rounds: tuple[RoundReport, ...] = ()

    @property
    def tables(self) -> tuple[ProtocolTable, ...]:
        """Return the result tables, the plan's protocol first."""
        own = ProtocolTable(protocol=self.protocol, rows=self.rows, caution=self.caution)
        return (own, *self.also)

    def to_json(self) -> bytes:
        """Return everything as JSON. Figures are data."""
        return _CONTENT.dump_json(self, indent=1)

    @classmethod
    def from_json(cls, raw: bytes, name: str) -> ReportContent:
        """Read text from `to_json`.

        Args:
            name: the file's name, for errors.

        Raises:
            StorageError: the text is not a report's content.
        """
        try:
            return _CONTENT.validate_json(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            problem = f"{where}: {first['msg']}" if where else first["msg"]
            raise StorageError(
                f"{name} is not the content of a report: {problem}.",
                remedy="Restore it from a backup, or run the settings again.",
            ) from error


_CONTENT = TypeAdapter(ReportContent)


def render_report(content: ReportContent) -> str:
    """Return the page. All text is escaped, and nothing is loaded from elsewhere."""
    results = (part for table in content.tables for part in _under(table, content.at))
    parts = [
        f"<h1>{escape(content.title)}</h1>",
        f'<p class="subtitle">{escape(content.subtitle)}</p>',
        *_paragraphs([*_in_words(content), *content.findings]),
        *_section("Results", results),
        *_section("Figures", _figures(content.figures)),
        *_section("Privacy", _paragraphs(content.statements, kind=' class="statement"')),
        *_section("Settings and machine", _facts(content.facts)),
        *_section("Rounds", _rounds(content)),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(content.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _section(title: str, parts: Iterable[str]) -> list[str]:
    found = list(parts)
    return [f"<h2>{escape(title)}</h2>", *found] if found else []


def _paragraphs(sentences: Sequence[str], kind: str = "") -> list[str]:
    return [f"<p{kind}>{escape(sentence)}</p>" for sentence in sentences]


def _in_words(content: ReportContent) -> list[str]:
    """Return the result of the first row as a sentence."""
    at, under = content.at, f" under {content.protocol}" * bool(content.protocol)
    return [
        f"{row.label} reaches HR@{at} {rates.hr:.4f} and NDCG@{at} {rates.ndcg:.4f} on the test "
        f"items of {rates.users:,} users{under}."
        for row in content.rows[:1]
        for rates in row.samples[:1]
    ]


def protocol_tables(table: ComparisonTable) -> tuple[ProtocolTable, ...]:
    """Return the results of a comparison, a table for each protocol."""
    tables = []
    for protocol in table.protocols:
        found = ((row.result(protocol), row.chosen(protocol)) for row in table.rows)
        rows = tuple(
            replace(row, note=f"{chosen}, chosen on validation" if chosen else "")
            for row, chosen in found
            if row is not None
        )
        caution = table.cautions.get(protocol, "")
        tables.append(ProtocolTable(protocol=protocol, rows=rows, caution=caution))
    return tuple(tables)


def _under(table: ProtocolTable, at: int) -> list[str]:
    """Return the table of a protocol, followed by the protocol's description."""
    if not table.rows:
        return []
    notes = [f"{row.label}: {row.note}" for row in table.rows if row.note]
    if table.protocol:
        notes.append(f"Protocol: {table.protocol}. Metrics on test at {at}.")
    if table.caution != "":
        notes.append(explained(table.protocol, table.caution))
    titles = headings(at, table.heading)
    return [_table(titles, map(cells, table.rows), kind="results"), *_paragraphs(notes)]


def _figures(figures: Sequence[Figure]) -> list[str]:
    why_none = why_no_figures()
    if figures and why_none:
        return _paragraphs([why_none])
    # The SVG is the only text without escaping here. Text in figures is escaped when they are
    # drawn.
    return [
        f"<figure>{as_element(each.plot)}<figcaption>{escape(each.caption)}</figcaption></figure>"
        for each in figures
    ]


def _facts(facts: Sequence[Fact]) -> list[str]:
    return [_table([], ([fact.name, fact.value] for fact in facts), kind="facts")] if facts else []


def _rounds(content: ReportContent) -> list[str]:
    rounds, at = content.rounds, content.at
    if not rounds:
        return []
    under = marked(content.protocol, content.caution)
    hr, ndcg = (f"{under} {name}@{at}".lstrip() for name in ("HR", "NDCG"))
    titles = ["round", "kind", "loss", hr, ndcg, "users", "clipped", "s", "bytes"]
    table = _table(titles, map(_round, rounds), kind="rounds")
    count = f"{len(rounds)} rounds. HR and NDCG are on validation, for the version before the round"
    return [f"<details><summary>{escape(count)}</summary>{table}</details>"]


def _round(report: RoundReport) -> list[str]:
    rates = report.validation
    return [
        str(report.round),
        report.kind,
        "" if report.loss is None else f"{report.loss:.4f}",
        "" if rates is None else f"{rates.hr:.4f}",
        "" if rates is None else f"{rates.ndcg:.4f}",
        str(report.participants),
        str(report.clipped_values),
        f"{report.seconds:.2f}",
        f"{report.vector_bytes:,}",
    ]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if titles else ""
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'
