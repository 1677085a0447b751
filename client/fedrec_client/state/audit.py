"""The audit log: everything that this client refused, one JSON line each, forced to disk."""

from __future__ import annotations

import json
from pathlib import Path

import structlog

from fedrec.clock import Clock
from fedrec.durable import append_line
from fedrec.errors import FedrecError
from fedrec.ids import RoundId

__all__ = ["AUDIT_FILE", "AuditLog"]

AUDIT_FILE = "audit.jsonl"

_log = structlog.get_logger("fedrec.client")


class AuditLog:
    """Appends to `audit.jsonl` in the state folder; holds no vector, key or user."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / AUDIT_FILE
        self._clock = clock

    def refused(self, event: str, *, run: str, round_id: RoundId, error: FedrecError) -> None:
        """Record what was refused and why."""
        line = {
            "time": self._clock.now(),
            "event": event,
            "run": run,
            "round": round_id,
            "code": error.code,
            "message": error.message,
        }
        append_line(self._path, json.dumps(line, separators=(",", ":")))
        _log.warning(event, run=run, round=round_id, code=error.code, message=error.message)
