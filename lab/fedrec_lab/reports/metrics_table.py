"""Rounds and references as one Parquet table, a row for each thing that was measured."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from fedrec.evaluation.metrics import SCORERS, SPLITS, MetricSums, Rates
from fedrec_lab.reports.round_report import RoundReport

__all__ = ["metrics_parquet"]


def metrics_parquet(rounds: Sequence[RoundReport], references: MetricSums | None = None) -> bytes:
    """Return a Parquet file; every row is one scorer on one split in one round.

    `version` is the model that was measured; the references, which belong to no version, have
    the last one measured.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("round", pa.int64()),
            ("kind", pa.string()),
            ("version", pa.int64()),
            ("scorer", pa.string()),
            ("split", pa.string()),
            ("users", pa.int64()),
            ("hr", pa.float64()),
            ("recall", pa.float64()),
            ("ndcg", pa.float64()),
            ("mrr", pa.float64()),
            ("loss", pa.float64()),
            ("participants", pa.int64()),
            ("seconds", pa.float64()),
            ("vector_bytes", pa.int64()),
        ]
    )
    rows = list(_rows(rounds, references))
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pydict(columns, schema=schema), out)
    return out.getvalue()


def _rows(rounds: Sequence[RoundReport], references: MetricSums | None) -> Iterator[dict[str, Any]]:
    for report in rounds:
        for split, rates in (("validation", report.validation), ("test", report.test)):
            if rates is not None:
                yield _row(report, "model", split, rates)
    if references is None or not rounds:
        return
    for scorer in SCORERS[1:]:
        for split in SPLITS:
            rates = references.rates(scorer, split)
            if rates is not None:
                yield _row(rounds[-1], scorer, split, rates)


def _row(report: RoundReport, scorer: str, split: str, rates: Rates) -> dict[str, Any]:
    return {
        "round": report.round,
        "kind": report.kind,
        "version": report.round - 1,
        "scorer": scorer,
        "split": split,
        "users": rates.users,
        "hr": rates.hr,
        "recall": rates.recall,
        "ndcg": rates.ndcg,
        "mrr": rates.mrr,
        "loss": report.loss if scorer == "model" else None,
        "participants": report.participants,
        "seconds": report.seconds,
        "vector_bytes": report.vector_bytes,
    }
