"""Rounds and references as one Parquet table, a row for each thing that was measured."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedrec.evaluation.metrics import RATES, SCORERS, SPLITS, MetricSums, Rates
from fedrec_lab.reports.round_report import RoundReport

__all__ = ["metrics_parquet", "parquet_of"]


def metrics_parquet(rounds: Sequence[RoundReport], references: MetricSums | None = None) -> bytes:
    """Return a Parquet file; every row is one scorer on one split in one round.

    `version` is the model that was measured; the references, which belong to no version, have
    the last one measured.
    """
    return parquet_of(
        {
            "round": "int64",
            "kind": "string",
            "version": "int64",
            "scorer": "string",
            "split": "string",
            "users": "int64",
            **dict.fromkeys(RATES, "double"),
            "loss": "double",
            "participants": "int64",
            "seconds": "double",
            "vector_bytes": "int64",
        },
        _rows(rounds, references),
    )


def parquet_of(kinds: Mapping[str, str], rows: Iterable[Mapping[str, object]]) -> bytes:
    """Return a Parquet file.

    Args:
        kinds: Arrow's name for the type of every column.
        rows: values by column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in kinds.items()])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), out)
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
        **asdict(rates),
        "loss": report.loss if scorer == "model" else None,
        "participants": report.participants,
        "seconds": report.seconds,
        "vector_bytes": report.vector_bytes,
    }
