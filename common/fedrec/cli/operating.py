"""`fedrec status`, `clients` and `stop`: show a run's progress and its clients, or end it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import Address, OperatorFile, open_admin_link
from fedrec.cli.terminal import Result, TextTable, count_of, human_bytes, printable
from fedrec.clock import ago

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedrec.wire.admin_link import CurrentRound, RunStatus

MEMBER_HEADERS = ("client", "state", "last heard", "fedrec", "model", "counted", "sent", "why")

_MOST_NAMED = 4
_STATES = {"cannot_start": "can't start"}
"""The words for states whose names aren't words."""


def status_rows(found: RunStatus) -> list[tuple[str, str]]:
    """Return a run's status as rows of a table."""
    where = f"{found.federation}, run {found.run}, protection {found.protection}"
    abandoned = f", {found.rounds_abandoned} abandoned" if found.rounds_abandoned else ""
    rows: list[tuple[str, str]] = [
        ("federation", _text(where)),
        ("rounds", f"{found.rounds_published} of {found.rounds_planned} published{abandoned}"),
        ("clients", _here(found)),
    ]
    if found.epoch:
        follows = f", {found.next_epoch} after this round" if found.next_epoch else ""
        rows.append(("key epoch", f"{found.epoch}{follows}"))
    if found.disk_full:
        rows.append(("disk", _text(f"full: {found.disk_full} Clients wait until there is space.")))
    if found.unplaced:
        rows.append(("in no sum yet", _text(found.unplaced)))
    rows += _measured(found)
    if found.epsilon is not None:
        rows.append(("privacy", f"epsilon {found.epsilon:.4g} spent"))
    if found.finished:
        return [*rows, ("finished", _text(found.finish_reason) or "yes")]
    if found.stop_asked:
        rows.append(("stop", "asked for, the run ends with the round in progress"))
    current = found.current
    if current is None:
        return [*rows, ("now", _text(f"waits for {found.waits_for or 'clients'}"))]
    if found.waits_for:
        rows.append(("problem", _text(f"waits for {found.waits_for}")))
    if current.phase == "revealing":
        return [*rows, ("now", _of_the_authority(current, found.authority_heard))]
    rows.append(("now", _text(f"round {current.round} ({current.kind}), {current.phase}")))
    arrived = f"{current.arrived} of {current.expected} updates"
    rows.append(("arrived", f"{arrived}, {human_bytes(current.bytes_received)}"))
    if found.awaited:
        rows.append(("waits for", _text(_listed(_with_goodbyes(found)))))
    if current.seconds_left:
        rows.append(("closes in", f"{current.seconds_left:.0f} s at the latest"))
    return rows


def status_table(found: RunStatus) -> RenderableType:
    """Return a run's status as a table that a terminal can redraw."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in status_rows(found):
        table.add_row(*row)
    return table


def member_rows(found: RunStatus) -> list[tuple[str, ...]]:
    """Return the state of each member as rows, in the columns of `MEMBER_HEADERS`."""
    return [
        (
            _text(one.name),
            _text(_STATES.get(one.state, one.state)),
            ago(found.now - one.heard) if one.heard else "-",
            _text(one.version) or "-",
            str(one.model) if one.heard else "-",
            f"round {one.last_counted}" if one.last_counted else "-",
            human_bytes(one.bytes_counted),
            _text(one.why),
        )
        for one in found.members
    ]


def _here(found: RunStatus) -> str:
    """Return how many members are connected, and the states of the others."""
    if not found.members:
        # An older coordinator doesn't report members.
        heard = f"{found.clients_seen} heard since the coordinator started"
        return f"{heard}, of {found.clients_in_roster} in the roster"
    others = Counter(one.state for one in found.members if not one.is_here)
    counts = [f"{number} {_STATES.get(state, state)}" for state, number in sorted(others.items())]
    here = f"{found.clients_here} of {found.clients_in_roster} in the roster are here"
    return _text(", ".join([here, *counts]))


def _with_goodbyes(found: RunStatus) -> tuple[str, ...]:
    """Return the labels of awaited clients, with the time at which a client stopped."""
    stopped = {
        one.name: f"{one.name} (stopped {ago(found.now - one.heard)})"
        for one in found.members
        if one.state in ("stopped", "cannot_start")
    }
    return tuple(stopped.get(label, label) for label in found.awaited)


def _measured(found: RunStatus) -> list[tuple[str, str]]:
    """Return the metrics of the last measured round, and their evaluation protocol."""
    quality = found.quality
    if quality is None:
        return []
    rows = []
    for split, hr, ndcg in (
        ("validation", quality.validation_hr, quality.validation_ndcg),
        ("test", quality.test_hr, quality.test_ndcg),
    ):
        if hr is not None and ndcg is not None:
            rates = f"HR@{quality.at} {hr:.4f}  NDCG@{quality.at} {ndcg:.4f}"
            rows.append((split, f"{rates}  (round {quality.round})"))
    if rows and found.protocol:
        from fedrec.plan.cautions import explained

        rows.append(("protocol", _text(explained(found.protocol, found.caution))))
    if quality.loss is not None:
        rows.append(("loss", f"{quality.loss:.4f}"))
    return rows


def _of_the_authority(current: CurrentRound, heard_at: float) -> str:
    heard = "not heard since the coordinator started"
    if heard_at:
        at = datetime.fromtimestamp(heard_at)
        heard = f"last heard {at:%H:%M}" + (f" on {at:%Y-%m-%d}" if _is_old(at) else "")
    return f"round {current.round} is complete and waits for the key authority, {heard}"


def _listed(labels: tuple[str, ...]) -> str:
    named = ", ".join(labels[:_MOST_NAMED])
    more = len(labels) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _is_old(at: datetime) -> bool:
    """Return whether a time without its date would be misleading."""
    return at.date() != datetime.now().date()


def _text(value: str) -> str:
    return str(printable(value))


STATUS_EPILOG = (
    "Examples:\n"
    "  fedrec status 127.0.0.1:7447\n"
    "  fedrec status recommender.example:7447 --operator operator.pem --json"
)


def status(
    address: Address = "",
    operator: OperatorFile = None,
) -> Result:
    """Show the round in progress, the published rounds, and the number of connected clients."""
    with open_admin_link(address, operator) as link:
        found = link.status()
    return Result(content=asdict(found), text=(TextTable(rows=status_rows(found)),))


CLIENTS_EPILOG = (
    "Examples:\n"
    "  fedrec clients 127.0.0.1:7447\n"
    "  fedrec clients recommender.example:7447 --operator operator.pem --json"
)


def clients(
    address: Address = "",
    operator: OperatorFile = None,
) -> Result:
    """Show each client's state, when it was last heard, and what was counted from it.

    Clients that aren't here come first: away (silent), stopped (said goodbye), starting (joined,
    but hasn't asked for a task), can't start, and finished (it has the final version). The others
    are waiting, training for the round in progress, or paused with their cell.
    """
    with open_admin_link(address, operator) as link:
        found = link.status()
    more = found.clients_in_roster - len(found.members)
    note = f"and {count_of(more, 'more client')}" if more > 0 else ""
    if not found.members:
        awaited = found.waits_for or "clients"
        note = f"No client is a member yet. The coordinator waits for {awaited}."
        if more:
            note = "This coordinator has an earlier release, which doesn't report its clients."
    return Result(
        content={"now": found.now, "members": [asdict(one) for one in found.members]},
        text=(
            *((TextTable(rows=member_rows(found), headers=MEMBER_HEADERS),) * bool(found.members)),
            *((note,) if note else ()),
        ),
    )


STOP_EPILOG = (
    "Examples:\n"
    "  fedrec stop 127.0.0.1:7447\n"
    "  fedrec stop recommender.example:7447 --operator operator.pem --now"
)


def stop(
    address: Address = "",
    now: Annotated[
        bool, typer.Option("--now", help="Don't wait for the round in progress.")
    ] = False,
    operator: OperatorFile = None,
) -> Result:
    """End the run after the round in progress. Published rounds are kept."""
    with open_admin_link(address, operator) as link:
        message = str(printable(link.stop_run(now=now)))
    return Result(content={"message": message}, text=(message,))
