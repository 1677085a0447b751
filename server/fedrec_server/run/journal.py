"""The journal of a run for operators: one line for each change, without any client's name."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import structlog

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
from fedrec_server.rounds.state import NO_ROUND
from fedrec_server.run.figures import ModelQuality
from fedrec_server.store.store import Entry

Fields = dict[str, Any]


def log_entry(run: str, entry: Entry, *, published: RoundId | None = None) -> None:
    """Write a journal line to the log, with metric sums converted to metrics.

    Args:
        published: the last published round, if known, for lines that are not about a single round.
    """
    fields = json.loads(entry.fields_json)
    measured = _measured(fields.pop("metrics", []))
    about = {"round": entry.round} if entry.round else {}
    if published is not None and not entry.round:
        about["last_published"] = published
    structlog.get_logger().info(entry.kind, run=run, **about, **fields, **measured)


def _measured(values: list[int]) -> dict[str, float]:
    """Return the loss and the model's metrics, if a sum has them."""
    figures = ModelQuality().after(NO_ROUND, values).figures()
    return {name: round(value, 4) for name, value in figures.items() if value is not None}


def entry_of(change: Change, at: float) -> Entry | None:
    """Return the journal's line for a change, or None if it needs none."""
    line = partial(_entry, at)
    match change:
        case ClientJoined() | AlreadyCounted() | ReportKept() | StepKept():
            return None
        case RoundOpened():
            return line("round opened", change.round, kind=change.kind, asked=len(change.asked))
        case UpdateCounted(header=header):
            fields = {"bytes": header.length, **_charged(change.charged)}
            return line("update counted", header.round, **fields)
        case CollectingEnded():
            fields = {"left_out": len(change.left_out)} if change.left_out else {}
            return line("collecting ended", change.round, counted=change.counted, **fields)
        case SumKept():
            fields = {"bytes": change.total.length, **_charged(change.charged)}
            return line("sum made", change.round, **fields)
        case UpdatesRefused():
            return line("updates refused", change.round, updates=len(change.left_out))
        case CellsPaused():
            left_out = len(change.left_out)
            return line("cells paused", change.round, cells=list(change.cells), left_out=left_out)
        case StepEnded():
            fields = {"clients": change.counted, **_charged(change.charged)}
            return line("step ended", change.round, step=change.step, **fields)
        case RoundPublished():
            fields = {}
            if change.reports_until is None and change.rows is not None:
                fields = {"rows": change.rows.n_rows, "metrics": _values(change.metrics)}
            return line(
                "round published",
                change.round,
                kind=change.kind,
                counted=change.counted,
                bytes_received=change.bytes_received,
                bytes_published=change.blob.length,
                seconds=round(change.seconds, 3),
                **fields,
            )
        case RoundLearnt(statement=word):
            fields = {"rows": word.n_rows, "metrics": _values(word.metrics)}
            return line("round learnt", word.round, kind=word.kind, **fields)
        case RoundMeasured():
            agreed = b"" if change.agreed is None else change.agreed.metrics
            fields = {"reason": change.reason} if change.reason else {}
            fields |= {"rows": change.rows.n_rows, "metrics": _values(agreed)}
            return line("round measured", change.round, **fields)
        case RoundAbandoned():
            paused = round(change.pause_seconds, 1)
            fields = {"stalled_seconds": paused} if change.pause_seconds else {}
            fields |= {"kind": change.kind, "reason": change.reason, "counted": change.counted}
            return line("round abandoned", change.round, **fields)
        case StopNoted():
            return line("stop asked for", RoundId(0))
        case EpochBegan():
            return line("key epoch began", RoundId(0), epoch=change.epoch, members=change.members)
        case RunFinished():
            return line("run finished", RoundId(0), reason=change.reason, failed=change.failed)
        case RunResumed():
            return line("run resumed", RoundId(0), after_round=change.after_round)


def _entry(at: float, event: str, round_id: RoundId, **fields: Any) -> Entry:
    text = json.dumps(fields, sort_keys=True)
    return Entry(unix_seconds=at, kind=event, round=round_id, fields_json=text)


def _charged(charged: bool) -> Fields:
    """Return a field with whether the privacy ledger begins to count the round."""
    return {"charged": True} if charged else {}


def _values(metrics: bytes) -> list[int]:
    return [
        int.from_bytes(metrics[start : start + 8], "little", signed=True)
        for start in range(0, len(metrics), 8)
    ]
