"""A run's status as plain values, and as rows for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedrec.cli.terminal import human_bytes, printable

__all__ = ["CurrentRound", "RunStatus", "status_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRound:
    """The round in progress."""

    round: int
    kind: str
    phase: str
    expected: int
    arrived: int
    bytes_received: int
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How far a run is.

    Attributes:
        last_event: the number of the newest event.
        current: the round in progress, or None between rounds.
    """

    federation: str
    run: str
    protection: str
    published_round: int
    rounds_published: int
    rounds_planned: int
    rounds_abandoned: int
    clients_seen: int
    clients_in_roster: int
    finished: bool
    finish_reason: str
    last_event: int
    current: CurrentRound | None = None

    @classmethod
    def of(cls, message: Any) -> RunStatus:
        """Take what the operators' service answered."""
        current = None
        if message.HasField("current"):
            current = CurrentRound(**_taken(message.current, CurrentRound))
        return cls(**_taken(message, RunStatus), current=current)


def status_rows(found: RunStatus) -> list[tuple[str, str]]:
    """Return a run's status as rows for people."""
    rows = [
        ("federation", f"{found.federation}, run {found.run}, protection {found.protection}"),
        ("rounds", f"{found.rounds_published} of {found.rounds_planned} published"),
        ("abandoned", str(found.rounds_abandoned)),
        ("clients", f"{found.clients_seen} seen of {found.clients_in_roster} in the roster"),
    ]
    if found.finished:
        return [*rows, ("finished", found.finish_reason or "yes")]
    current = found.current
    if current is None:
        return [*rows, ("now", "waiting for clients")]
    rows.append(("now", f"round {current.round} ({current.kind}), {current.phase}"))
    arrived = f"{current.arrived} of {current.expected} updates"
    rows.append(("arrived", f"{arrived}, {human_bytes(current.bytes_received)}"))
    if current.seconds_left:
        rows.append(("closes in", f"{current.seconds_left:.0f} s at the latest"))
    return rows


def _taken(message: Any, kind: type[Any]) -> dict[str, Any]:
    return {
        name: printable(getattr(message, name))
        for name in kind.__dataclass_fields__
        if name != "current"
    }
