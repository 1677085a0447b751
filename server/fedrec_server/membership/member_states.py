"""What each member does, as operators are told: made here once, for every view of it.

Whether a client is there follows from its calls and its last word (`run/presence.py`), what it does
from the round in progress. A client that is killed in a round is awaited, and so shown as training,
until the round's time is over: it trains without a call.
"""

from __future__ import annotations

from fedrec.clock import ago
from fedrec.ids import ClientId
from fedrec.wire.admin_link import MemberState
from fedrec_server.membership.missing_clients import NEVER_HEARD, missing, why_ended
from fedrec_server.run.counted_updates import CountedUpdates
from fedrec_server.run.live_run import LiveRun

__all__ = ["STARTING_SECONDS", "member_states"]

STARTING_SECONDS = 600.0
"""So long a client that joined may read its data and compile before it is taken to be away."""


def member_states(run: LiveRun, counted: CountedUpdates) -> list[MemberState]:
    """Return what the members do: those first that are not here, by name."""
    presence, members = run.presence, run.federation.keys.roster.members
    live, awaited = presence.live(), missing(run.state, presence)
    found = []
    for client_id, label in ((one.client_id, one.label) for one in members):
        state, why = _state_of(run, client_id, live=live, awaited=awaited)
        said, of_it = presence.goodbye_of(client_id), counted.of(client_id)
        heard = max(presence.last_heard(client_id), presence.idle_since(client_id))
        found.append(
            MemberState(
                name=label or client_id[:16],
                state=state,
                why=why,
                heard=heard if said is None else said.at,
                version=presence.release_of(client_id),
                model=presence.model_of(client_id),
                last_counted=of_it.round,
                bytes_counted=of_it.n_bytes,
            )
        )
    return sorted(found, key=lambda one: (one.is_here, one.name))


def _state_of(
    run: LiveRun, client_id: ClientId, *, live: frozenset[ClientId], awaited: frozenset[ClientId]
) -> tuple[str, str]:
    """Return what a member does, and more about it, for people.

    Args:
        live: who is here.
        awaited: for whom the round in progress waits, or the next one.
    """
    presence, round_ = run.presence, run.state.current
    said = presence.goodbye_of(client_id)
    if said is not None:
        why = why_ended(said.code) if said.code else ""
        return "cannot_start" if said.code and not said.had_begun else "stopped", why
    heard, joined = presence.last_heard(client_id), presence.idle_since(client_id)
    if joined:
        lasts = presence.now() - joined
        if lasts <= STARTING_SECONDS:
            return "starting", ""
        return "away", f"joined {ago(lasts)}, asked for no round yet; look at its terminal"
    trains = round_ is not None and client_id in awaited and heard >= round_.opened_at
    if not trains and client_id not in live:
        if not heard:
            return "away", NEVER_HEARD
        is_silent = presence.is_silent(client_id)
        return "away", "did not answer the round that was given up" if is_silent else ""
    cell = run.state.rules.partition.cell_of(client_id)
    if cell is not None and cell.state == "paused":
        return "paused", f"cell {cell.id}: the key authority takes it in again"
    return ("training", "") if trains else ("waiting", "")
