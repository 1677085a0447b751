"""What operators get to see of a run: one line for each change, without anybody's name."""

from __future__ import annotations

import json

import numpy as np
import structlog

from fedrec.evaluation.metrics import METRIC_NAMES, SPLITS, MetricSums
from fedrec.ids import RoundId
from fedrec_server.rounds.changes import (
    AlreadyCounted,
    CellsPaused,
    Change,
    ClientJoined,
    CollectingEnded,
    EpochBegan,
    ReportKept,
    RoundAbandoned,
    RoundLearnt,
    RoundMeasured,
    RoundOpened,
    RoundPublished,
    RunFinished,
    RunResumed,
    StepEnded,
    StepKept,
    StopNoted,
    SumKept,
    UpdateCounted,
    UpdatesRefused,
)
from fedrec_server.store.store import Entry

Fields = dict[str, str | int | float | bool | list[int]]


def entry_of(change: Change, at: float) -> Entry | None:
    """Return the journal's line on a change; None where it is not worth one."""
    line = _line(change)
    if line is None:
        return None
    kind, round_id, fields = line
    text = json.dumps(fields, sort_keys=True)
    return Entry(unix_seconds=at, kind=kind, round=round_id, fields_json=text)


def log_entry(run: str, entry: Entry, *, published: RoundId | None = None) -> None:
    """Write a journal line to the log, metric sums as what they mean.

    Args:
        published: the last published round, where it is known, for lines about no single one.
    """
    fields = json.loads(entry.fields_json)
    measured = _measured(fields.pop("metrics", []))
    about = {"round": entry.round} if entry.round else {}
    if published is not None and not entry.round:
        about["last_published"] = published
    structlog.get_logger().info(entry.kind, run=run, **about, **fields, **measured)


def _measured(values: list[int]) -> dict[str, float]:
    """Return the loss and the model's rates, where a sum has them."""
    if len(values) != len(METRIC_NAMES):
        return {}
    sums = MetricSums(np.array(values, dtype=np.int64))
    found = {} if sums.loss is None else {"loss": round(sums.loss, 4)}
    for split in SPLITS:
        rates = sums.rates("model", split)
        if rates is not None:
            found |= {f"{split}_hr": round(rates.hr, 4), f"{split}_ndcg": round(rates.ndcg, 4)}
    return found


def _line(change: Change) -> tuple[str, RoundId, Fields] | None:
    match change:
        case ClientJoined() | AlreadyCounted() | ReportKept() | StepKept():
            return None
        case RoundOpened():
            fields: Fields = {"kind": change.kind, "asked": len(change.asked)}
            return "round opened", change.round, fields
        case UpdateCounted(header=header):
            return "update counted", header.round, _charged(change, {"bytes": header.length})
        case CollectingEnded():
            fields = {"counted": change.counted}
            if change.left_out:
                fields["left_out"] = len(change.left_out)
            return "collecting ended", change.round, fields
        case SumKept():
            return "sum made", change.round, _charged(change, {"bytes": change.total.length})
        case UpdatesRefused():
            return "updates refused", change.round, {"updates": len(change.left_out)}
        case CellsPaused():
            fields = {"cells": list(change.cells), "left_out": len(change.left_out)}
            return "cells paused", change.round, fields
        case StepEnded():
            fields = {"step": change.step, "clients": change.counted}
            return "step ended", change.round, _charged(change, fields)
        case RoundPublished():
            return "round published", change.round, _published(change)
        case RoundLearnt(statement=word):
            fields = {"kind": word.kind, "rows": word.n_rows, "metrics": _values(word.metrics)}
            return "round learnt", word.round, fields
        case RoundMeasured():
            said = b"" if change.agreed is None else change.agreed.metrics
            fields = {"rows": change.rows.n_rows, "metrics": _values(said)}
            if change.reason:
                fields["reason"] = change.reason
            return "round measured", change.round, fields
        case RoundAbandoned():
            fields = {"kind": change.kind, "reason": change.reason, "counted": change.counted}
            if change.pause_seconds:
                fields["stalled_seconds"] = round(change.pause_seconds, 1)
            return "round abandoned", change.round, fields
        case StopNoted():
            return "stop asked for", RoundId(0), {}
        case EpochBegan():
            fields = {"epoch": change.epoch, "members": change.members}
            return "key epoch began", RoundId(0), fields
        case RunFinished():
            return "run finished", RoundId(0), {"reason": change.reason, "failed": change.failed}
        case RunResumed():
            return "run resumed", RoundId(0), {"after_round": change.after_round}


def _charged(change: SumKept | UpdateCounted | StepEnded, fields: Fields) -> Fields:
    """Return the fields, and that the privacy ledger counts the round where it begins to."""
    return {**fields, "charged": True} if change.charged else fields


def _published(change: RoundPublished) -> Fields:
    fields: Fields = {
        "kind": change.kind,
        "counted": change.counted,
        "bytes_received": change.bytes_received,
        "bytes_published": change.blob.length,
        "seconds": round(change.seconds, 3),
    }
    if change.reports_until is None and change.rows is not None:
        fields |= {"rows": change.rows.n_rows, "metrics": _values(change.metrics)}
    return fields


def _values(metrics: bytes) -> list[int]:
    return [
        int.from_bytes(metrics[start : start + 8], "little", signed=True)
        for start in range(0, len(metrics), 8)
    ]
