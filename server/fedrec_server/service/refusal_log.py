"""The log's lines on refused calls: one a minute for each caller and code, however many there are.

A member with changed software, or one that tries again and again, would else fill the disk that
the run is on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from fedrec.errors import FedrecError, InternalError
from fedrec.wire.error_status import new_incident

__all__ = ["RefusalLog"]

EVERY_SECONDS = 60.0
MOST_KNOWN = 10_000


@dataclass(slots=True)
class _Told:
    """A line, and how many refusals of the same kind came since."""

    at: float
    incident: str
    more: int = 0


class RefusalLog:
    """Writes what was refused.

    Args:
        now: seconds that only grow.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._told: dict[tuple[str, str], _Told] = {}

    def tell(self, error: Exception, method: str, client: str) -> str:
        """Log a refusal, or count it; return the incident under which the log has it.

        Args:
            client: what people call the caller; empty where nobody knows.
        """
        code = error.code if isinstance(error, FedrecError) else InternalError.code
        known, now = self._told.get((client, code)), self._now()
        if known is not None and now < known.at + EVERY_SECONDS:
            known.more += 1
            return known.incident
        if len(self._told) >= MOST_KNOWN:
            recent = now - EVERY_SECONDS
            self._told = {key: told for key, told in self._told.items() if told.at > recent}
        incident = new_incident()
        self._told[client, code] = _Told(at=now, incident=incident)
        about: dict[str, object] = {"client": client} if client else {}
        if known is not None and known.more:
            about["more_since_the_last_line"] = known.more
        log = structlog.get_logger().bind(method=method.rpartition("/")[2], incident=incident)
        if isinstance(error, FedrecError):
            log.info("call refused", code=code, why=error.message, **about)
        else:
            log.error("call failed", exc_info=error, **about)
        return incident
