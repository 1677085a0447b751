"""What became of the served model, for people and for the log."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import structlog

from fedrec.ids import RoundId

__all__ = ["ModelChange", "log_change"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    """A version that is served from now on, or one that could not be read.

    Attributes:
        version: what is served; None where nothing is.
        run: the run that it belongs to; empty where nothing is served.
        problem: why a newer version is not served; empty where it is.
    """

    version: RoundId | None
    run: str = ""
    problem: str = ""

    def __str__(self) -> str:
        if self.version is None:
            return f"not ready: {self.problem}"
        if self.problem:
            return f"version {self.version} stays in service: {self.problem}"
        return f"version {self.version} is served"


def log_change(change: ModelChange) -> None:
    """Write it to the log."""
    log = structlog.get_logger("fedrec.client")
    said = {key: value for key, value in asdict(change).items() if value not in ("", None)}
    if not change.problem:
        log.info("version served", **said)
    elif change.version is None:
        log.warning("not ready", **said)
    else:
        log.warning("version stays in service", **said)
