"""An event of a run as one line for people; the usual ones fit 80 columns."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fedrec.cli.terminal import human_bytes, printable

if TYPE_CHECKING:
    from fedrec.wire.admin_link import RunEvent

__all__ = ["event_line"]


def event_line(event: RunEvent) -> str:
    """Return an event's time, round and kind, and what else there is to say."""
    time = datetime.fromtimestamp(event.unix_seconds).strftime("%H:%M:%S")
    about = f"round {event.round}"
    what = f"{about}: {event.kind}" if event.round else event.kind
    if event.round and event.kind.startswith("round "):
        what = about + event.kind.removeprefix("round")
    if event.kind == "round published":
        said = _published(event)
    elif event.kind == "run finished":
        said = _ending(event.fields)
    else:
        said = _fields(event.fields)
    return str(printable(f"{time}  {what}" + (f"  {said}" if said else "")))


def _ending(fields: Any) -> str:
    """Return why a run is over."""
    reason = str(fields.get("reason", ""))
    return f"failed: {reason}" if fields.get("failed") else reason


def _published(event: RunEvent) -> str:
    """Return what a published round measured, and what it took."""
    fields = dict(event.fields)
    parts = [str(fields.pop("kind", ""))]
    parts += _rates(fields.pop("metrics", []))
    if "bytes_received" in fields:
        parts.append(human_bytes(fields.pop("bytes_received")))
    if "seconds" in fields:
        parts.append(f"{fields.pop('seconds'):.2f} s")
    return ", ".join(part for part in parts if part)


def _rates(values: list[int]) -> list[str]:
    # A line does not wait for numpy where nothing was measured.
    if not values:
        return []
    import numpy as np

    from fedrec.evaluation.metrics import METRIC_NAMES, MetricSums

    if len(values) != len(METRIC_NAMES):
        return []
    rates = MetricSums(np.array(values, dtype=np.int64)).rates("model", "validation")
    return [] if rates is None else [f"HR {rates.hr:.4f} NDCG {rates.ndcg:.4f}"]


def _fields(fields: Any) -> str:
    # The metrics are a long list of sums; they are in the output of --json.
    shown = {name: value for name, value in fields.items() if name != "metrics"}
    return ", ".join(
        # A size has its unit, which says what it is.
        _value(name, value) if name == "bytes" else f"{name} {_value(name, value)}"
        for name, value in shown.items()
    )


def _value(name: str, value: object) -> str:
    if name.startswith("bytes") and isinstance(value, int):
        return human_bytes(value)
    if name == "seconds":
        return f"{value} s"
    return value if isinstance(value, str) else json.dumps(value)
