"""What a round measured, as key holders know it: in their statements, and in their own record.

Under an approximate set nothing that was decrypted may reach the coordinator, metric sums
included. So every client keeps the sums of the rounds that it took part in or caught up with, and
whoever wants to know how a run goes asks one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import StorageError
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.ids import RoundId
from fedrec.protection import ProtectionPlan
from fedrec_client.durable import append_durably

__all__ = ["MEASURED_FILE", "read_measured", "record_measured", "stated_metrics"]

MEASURED_FILE = "measured.jsonl"


def stated_metrics(chosen: ProtectionPlan, metrics: NDArray[np.int64]) -> bytes:
    """Return the metric sums as statements carry them: nothing where they may not be released."""
    return metrics.astype("<i8").tobytes() if chosen.releases_metrics else b""


def record_measured(folder: Path, round_id: RoundId, metrics: NDArray[np.int64]) -> None:
    """Add a round to the state folder's record; after a crash it may stand there twice."""
    line = {"round": round_id, "metrics": metrics.tolist()}
    append_durably(folder / MEASURED_FILE, json.dumps(line, separators=(",", ":")))


def read_measured(folder: Path) -> Mapping[RoundId, NDArray[np.int64]]:
    """Return the metric sums of the recorded rounds, int64 (n_metrics,), in ascending order.

    Raises:
        StorageError: a line is damaged; an unfinished last one is left out.
    """
    path = folder / MEASURED_FILE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return {}
    found: dict[RoundId, NDArray[np.int64]] = {}
    try:
        for line in lines:
            fields = json.loads(line)
            values = np.array(fields["metrics"], dtype=np.int64)
            if values.shape != (len(METRIC_NAMES),):
                raise ValueError(f"{len(values)} sums")
            found[RoundId(fields["round"])] = values
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{path} is damaged: {error}.", remedy="Delete it; only the record of metrics is lost."
        ) from error
    return dict(sorted(found.items()))
