"""A run's status as rows for people."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from fedrec.cli.terminal import human_bytes, printable

if TYPE_CHECKING:
    from fedrec.wire.admin_link import RunStatus

__all__ = ["status_rows"]


def status_rows(found: RunStatus) -> list[tuple[str, str]]:
    """Return a run's status as rows for people."""
    where = f"{found.federation}, run {found.run}, protection {found.protection}"
    rows: list[tuple[str, str]] = [
        ("federation", _text(where)),
        ("rounds", f"{found.rounds_published} of {found.rounds_planned} published"),
        ("abandoned", str(found.rounds_abandoned)),
        ("clients", f"{found.clients_seen} seen of {found.clients_in_roster} in the roster"),
    ]
    if found.epoch:
        follows = f", {found.next_epoch} after this round" if found.next_epoch else ""
        rows.append(("key epoch", f"{found.epoch}{follows}"))
    if found.finished:
        return [*rows, ("finished", _text(found.finish_reason) or "yes")]
    current = found.current
    if current is None:
        return [*rows, ("now", _text(f"waits for {found.waits_for or 'clients'}"))]
    if current.phase == "revealing":
        heard = "not heard since the coordinator started"
        if found.authority_heard:
            at = datetime.fromtimestamp(found.authority_heard)
            heard = f"last heard {at:%H:%M}" + (f" on {at:%Y-%m-%d}" if _is_old(at) else "")
        waits = f"round {current.round} is complete and waits for the key authority, {heard}"
        return [*rows, ("now", waits)]
    rows.append(("now", _text(f"round {current.round} ({current.kind}), {current.phase}")))
    arrived = f"{current.arrived} of {current.expected} updates"
    rows.append(("arrived", f"{arrived}, {human_bytes(current.bytes_received)}"))
    if current.seconds_left:
        rows.append(("closes in", f"{current.seconds_left:.0f} s at the latest"))
    return rows


def _is_old(at: datetime) -> bool:
    """Tell whether a time of day alone would mislead."""
    return at.date() != datetime.now().date()


def _text(value: str) -> str:
    return str(printable(value))
