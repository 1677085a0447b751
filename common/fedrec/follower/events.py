"""Report events of a follower to its listeners: a live view, a log or a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import structlog

from fedrec.ids import RoundId

EventName = Literal[
    "starting",
    "waiting_to_join",
    "roster_refused",
    "data",
    "preparing",
    "prepared",
    "joined",
    "waited_for",
    "unplaced",
    "epoch_changed",
    "waiting_for_snapshot",
    "waiting",
    "training",
    "trained",
    "diverged",
    "protected",
    "sent",
    "closed",
    "published",
    "abandoned",
    "revealing",
    "revealed",
    "reveal_refused",
    "split_view",
    "cell_paused",
    "round_refused",
    "task_refused",
    "snapshot_sent",
    "snapshot_taken",
    "snapshot_refused",
    "stale",
    "disk_full",
    "coordinator_went_back",
    "forgotten",
    "unreachable",
    "reached",
    "tail_at_home",
    "finished",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEvent:
    """One event. It contains no user, vector or key.

    Attributes:
        run: the event's run, or empty before one is known.
        round: the event's round, or None.
        detail: a word or sentence to display.
        bytes_up: payload bytes sent since the outcome of the last round was recorded.
        bytes_down: payload bytes received since then.
        seconds: the duration.
    """

    name: EventName
    run: str = ""
    round: RoundId | None = None
    detail: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0


OnEvent = Callable[[ClientEvent], None]

_log = structlog.get_logger("fedrec.client")


def log_event(event: ClientEvent) -> None:
    """Write an event to the log with all fields that have a value."""
    facts = asdict(event) | {"seconds": round(event.seconds, 4)}
    del facts["name"]
    _log.info(event.name.replace("_", " "), **{key: value for key, value in facts.items() if value})
