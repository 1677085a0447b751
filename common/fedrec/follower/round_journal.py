"""A follower's journals for people: every round's cost, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import structlog

from fedrec.clock import Clock
from fedrec.durable import append_line
from fedrec.errors import FedrecError
from fedrec.follower.events import ClientEvent, EventName, OnEvent
from fedrec.follower.patient_link import Meter
from fedrec.ids import RoundId

AUDIT_FILE = "audit.jsonl"

_log = structlog.get_logger("fedrec.client")


class AuditLog:
    """Append refusals to `audit.jsonl` in the state folder. It contains no vector, key or user."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / AUDIT_FILE
        self._clock = clock

    def refused(self, event: str, *, run: str, round_id: RoundId, error: FedrecError) -> None:
        """Record an event that was refused, and the reason."""
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


JOURNAL_FILE = "client-log.jsonl"

Outcome = Literal["counted", "not_counted", "abandoned"]
Phase = Literal["seconds_training", "seconds_protecting", "seconds_revealing"]


@dataclass(slots=True, kw_only=True)
class RoundCost:
    """One round's line in `client-log.jsonl`.

    Attributes:
        outcome: whether this client's update was counted in the published round, or `abandoned` if
            the round was never published.
        bytes_up: payload bytes sent since the previous line.
        bytes_down: payload bytes received since the previous line.
    """

    round: RoundId
    outcome: Outcome = "not_counted"
    bytes_up: int = 0
    bytes_down: int = 0
    seconds_training: float = 0.0
    seconds_protecting: float = 0.0
    seconds_revealing: float = 0.0


class RoundJournal:
    """Collect the costs of the rounds in progress, and report events to the listener.

    Attributes:
        run: the run of future events, or empty before one is known.
    """

    def __init__(self, folder: Path, clock: Clock, meter: Meter, on_event: OnEvent) -> None:
        self._path = folder / JOURNAL_FILE
        self._clock = clock
        self._meter = meter
        self._on_event = on_event
        self._open: dict[RoundId, RoundCost] = {}
        self._sent = meter.sent
        self._received = meter.received
        self._lines: list[str] = []
        self.run = ""

    def tell(
        self,
        name: EventName,
        round_id: RoundId | None = None,
        *,
        detail: str = "",
        seconds: float = 0.0,
    ) -> None:
        """Report an event with the round's bytes up to now."""
        self._on_event(
            ClientEvent(
                name=name,
                run=self.run,
                round=round_id,
                detail=detail,
                bytes_up=self._meter.sent - self._sent,
                bytes_down=self._meter.received - self._received,
                seconds=seconds,
            )
        )

    @contextmanager
    def timed(self, round_id: RoundId, phase: Phase, name: EventName) -> Iterator[None]:
        """Add the seconds of a block to a round's cost. Report `name` if it succeeds."""
        began = self._clock.now()
        yield
        seconds = self._clock.now() - began
        cost = self._cost(round_id)
        setattr(cost, phase, getattr(cost, phase) + seconds)
        self.tell(name, round_id, seconds=seconds)

    def settle(self, round_id: RoundId, outcome: Outcome, why: str = "") -> None:
        """Write a round's line once its outcome is known.

        Args:
            why: the reason for this outcome, if it is known.
        """
        cost = self._cost(round_id)
        cost.outcome = outcome
        cost.bytes_up = self._meter.sent - self._sent
        cost.bytes_down = self._meter.received - self._received
        name: EventName = "abandoned" if outcome == "abandoned" else "published"
        self.tell(name, round_id, detail=f"{outcome}: {why}" if why else outcome)
        self._lines.append(json.dumps(asdict(cost), separators=(",", ":")))
        self._sent, self._received = self._meter.sent, self._meter.received
        self._open = {number: open_ for number, open_ in self._open.items() if number > round_id}
        self.write()

    def write(self) -> None:
        """Write the lines that are pending because the disk was full.

        Raises:
            DiskFull: the disk is still full.
        """
        while self._lines:
            append_line(self._path, self._lines[0])
            del self._lines[0]

    def _cost(self, round_id: RoundId) -> RoundCost:
        return self._open.setdefault(round_id, RoundCost(round=round_id))
