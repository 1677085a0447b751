"""The state of each member, and the clients for which a round waits, as text for operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby

import structlog

from fedrec.clock import ago
from fedrec.errors import ERRORS
from fedrec.identity.cells import core_among
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.wire.admin_link import MemberState
from fedrec_server.rounds import steps
from fedrec_server.rounds.backoff import is_stalled
from fedrec_server.rounds.selection import NOT_ENOUGH, absent, awaited
from fedrec_server.rounds.state import State
from fedrec_server.run.figures import CountedUpdates
from fedrec_server.run.live_run import LiveRun
from fedrec_server.run.presence import LIVE_SECONDS, Presence

STARTING_SECONDS = 600.0
"""How long a client that joined may read its data and compile before it counts as away."""


def member_states(run: LiveRun, counted: CountedUpdates) -> list[MemberState]:
    """Return the members' states sorted by name. Absent members come first."""
    presence, members = run.presence, run.federation.keys.roster.members
    live, awaited = presence.live(), missing(run.state, presence)
    found = []
    for client_id, label in ((one.client_id, one.label) for one in members):
        state, why = _state_of(run, client_id, live=live, awaited=awaited)
        of_it = counted.of(client_id)
        found.append(
            MemberState(
                name=label or client_id[:16],
                state=state,
                why=why,
                heard=presence.last_sign(client_id),
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
    """Return a member's state with details, as text.

    Args:
        live: the clients that are present.
        awaited: the clients for which the round in progress, or the next one, waits.
    """
    presence, round_ = run.presence, run.state.current
    goodbye = presence.goodbye_of(client_id)
    if presence.has_end(client_id) and (goodbye is None or not goodbye.code):
        return "finished", ""
    if goodbye is not None:
        why = why_ended(goodbye.code) if goodbye.code else ""
        return "cannot_start" if goodbye.code and not goodbye.had_begun else "stopped", why
    heard, joined = presence.last_heard(client_id), presence.idle_since(client_id)
    if joined:
        lasts = presence.now() - joined
        if lasts <= STARTING_SECONDS:
            return "starting", ""
        return "away", f"joined {ago(lasts)}, but has not asked for a round. Look at its terminal"
    trains = round_ is not None and client_id in awaited and heard >= round_.opened_at
    if not trains and client_id not in live:
        if not heard:
            return "away", NEVER_HEARD
        is_silent = presence.is_silent(client_id)
        return "away", "did not answer in the abandoned round" if is_silent else ""
    cell = run.state.rules.partition.cell_of(client_id)
    if cell is not None and cell.state == "paused":
        return "paused", f"cell {cell.id}: waits for the key authority to resume it"
    return ("training", "") if trains else ("waiting", "")


_MOST_NAMED = 3
_FORMS = (
    "the first clients: rounds begin when all invited clients have applied. So far, {applied}. "
    "Start the others"
)
_COMPILES = "A first start compiles for a while. Look at its terminal if that takes long"
_OLDER = (
    "its newest folder: {name} reports round {round}, but this folder ends with round "
    "{published}. Stop the coordinator and start it on the newest folder or backup. Without one, "
    "use `fedrec coordinator recover`"
)
NEVER_HEARD = "not heard from since the coordinator started"


class MissingClients:
    """Log the clients for which a round waits, once for each long wait."""

    def __init__(self) -> None:
        self._missing: frozenset[ClientId] = frozenset()
        self._since = 0.0
        self._is_reported = False
        self._stall_is_reported = False

    def notice(self, run: str, state: State, roster: Roster, presence: Presence) -> None:
        """Check which clients are present. Called regularly."""
        stalled = is_stalled(state)
        if stalled and not self._stall_is_reported and state.current is None:
            log = structlog.get_logger().bind(run=run)
            log.warning("run stalled", waits_for=waits_for(state, roster, presence))
            self._stall_is_reported = True
        if self._stall_is_reported and not stalled:
            structlog.get_logger().info("run goes on", run=run)
            self._stall_is_reported = False
        live = presence.live() if state.current is None else frozenset()
        missing, now = absent(state, live), presence.now()
        if missing != self._missing:
            self._missing, self._since, self._is_reported = missing, now, False
        # Clients that arrive one after the other are no news.
        if missing and not self._is_reported and now >= self._since + LIVE_SECONDS:
            log = structlog.get_logger().bind(run=run)
            log.info("round waits", waits_for=waits_for(state, roster, presence))
            self._is_reported = True


def waits_for(
    state: State,
    roster: Roster,
    presence: Presence,
    applied: Callable[[], Sequence[str]] = tuple,
) -> str:
    """Return the missing clients with the time of their last call, or empty if none is missing.

    If a member knows later rounds than this folder, the text reports that instead.

    Args:
        applied: returns the labels of all applicants, which are named while the federation forms.
    """
    furthest = presence.furthest()
    if furthest is not None and furthest[1] > state.published:
        client_id, version = furthest
        names = {one.client_id: one.label for one in roster.holders}
        name = names.get(client_id) or client_id[:16]
        return _OLDER.format(name=name, round=version, published=state.published)
    if is_stalled(state) and state.current is None and state.ending is None:
        return _stalled(state, roster, presence)
    if not state.roster and state.ending is None:
        labels = applied()
        return _FORMS.format(applied=f"{_some(labels)} applied" if labels else "none has")
    live = presence.live()
    why, missing = awaited(state, live), absent(state, live)
    if not why or not missing:
        return _more(state) if why == NOT_ENOUGH else why
    named = _named(missing, roster, presence)
    idle = [client_id for client_id in missing if presence.idle_since(client_id)]
    if len(idle) == len(missing):
        return f"{named}. {_COMPILES}"
    back = f"{named}. The run continues by itself when {_back(missing)}"
    return f"{back}. {_COMPILES}" if idle else back


def missing(state: State, presence: Presence) -> frozenset[ClientId]:
    """Return the clients for which the round in progress, or else the next one, waits.

    Return none if the key authority or the coordinator itself must act next.
    """
    round_ = state.current
    if round_ is not None:
        if round_.phase in ("summing", "revealing"):
            return frozenset()
        return frozenset(steps.invited(state.rules, round_) - steps.arrived(state.rules, round_))
    if is_stalled(state) and state.ending is None:
        return state.abandonments.unanswered & state.roster
    return absent(state, presence.live())


def labels_of(clients: Collection[ClientId], roster: Roster) -> list[str]:
    """Return the labels of clients, or the beginning of their ids."""
    return sorted(roster.member(one).label or one[:16] for one in clients)


def unplaced(roster: Roster) -> str:
    """Return the members outside every sum and why, or empty if there are no such members."""
    names = labels_of([one.client_id for one in roster.unplaced], roster)
    return f"{_some(names)}: {roster.why_unplaced()}" if names else ""


def why_ended(code: str) -> str:
    """Return the error with which a client ended. Its own terminal has details."""
    kind = ERRORS.get(code)
    return f"error [{code}]" + (f" {kind.public.rstrip('.')}" if kind is not None else "")


def _stalled(state: State, roster: Roster, presence: Presence) -> str:
    """Return which clients did not answer, if several rounds in a row were abandoned."""
    abandoned = state.abandonments
    silent = abandoned.unanswered & state.roster
    who = f"{_named(silent, roster, presence)}, to answer" if silent else "a round that succeeds"
    left = max(0.0, abandoned.retry_at - presence.now())
    return (
        f"{who}. Stalled: {abandoned.in_row} rounds in a row were abandoned, the last "
        f"because {abandoned.reason}. Next attempt in {left:.0f} s"
    )


def _named(clients: frozenset[ClientId], roster: Roster, presence: Presence) -> str:
    def since(one: ClientId) -> tuple[float, str]:
        return presence.idle_since(one) or presence.last_heard(one), roster.member(one).label

    longest = sorted(clients, key=since)
    first = longest[:_MOST_NAMED]
    named = [
        f"{_joined(labels_of(list(alike), roster))}, {heard}"
        for heard, alike in groupby(first, key=lambda one: _heard(presence, one))
    ]
    if len(clients) > _MOST_NAMED:
        named.append(f"{len(clients) - _MOST_NAMED} more")
    return "; ".join(named)


def _more(state: State) -> str:
    """Return how many more clients must join, if all others are present."""
    rules, summable = state.rules, state.rules.summable(state.roster)
    n_cells = rules.n_cells(summable)
    if n_cells < rules.fewest_cells:
        return (
            f"more cells: {n_cells} can be summed, {rules.fewest_cells} are needed "
            "(federation.corrupt_cells). `fedrec keys roster list` shows paused cells, `fedrec "
            "keys roster resume CELL` resumes one"
        )
    here, wanted = len(core_among(rules.partition, summable)), rules.needed
    if here >= wanted:
        return NOT_ENOUGH
    return (
        f"more clients: {here} are left for sums, {wanted} are needed (rounds.minimum_clients, "
        "rounds.minimum_summands). The key authority invites others with `fedrec provision --add`"
    )


def _heard(presence: Presence, client_id: ClientId) -> str:
    if (goodbye := presence.goodbye_of(client_id)) is not None:
        why = f": {why_ended(goodbye.code)}" if goodbye.code else ""
        return f"stopped {ago(presence.now() - goodbye.at)}{why}"
    if at := presence.idle_since(client_id):
        return f"joined {ago(presence.now() - at)}, has not asked for a round yet"
    at = presence.last_heard(client_id)
    return f"last heard {ago(presence.now() - at)}" if at else NEVER_HEARD


def _some(labels: Sequence[str]) -> str:
    first, more = list(labels[:_MOST_NAMED]), len(labels) - _MOST_NAMED
    return _joined([*first, f"{more} more"] if more > 0 else first)


def _back(missing: Collection[ClientId]) -> str:
    return "it is back" if len(missing) == 1 else "they are back"


def _joined(words: list[str]) -> str:
    if len(words) < 3:
        return " and ".join(words)
    return f"{', '.join(words[:-1])}, and {words[-1]}"
