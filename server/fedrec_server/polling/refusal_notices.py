"""Telling clients that a round, or their part of it, was refused: once each, when they next ask.

What is told is kept in memory: after a restart `fedrec status` says it still.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from fedrec.errors import FedrecError, SumOutOfBounds
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import Wait
from fedrec_server.rounds.changes import Change, RoundAbandoned, UpdatesRefused
from fedrec_server.rounds.endings import OUT_OF_BOUNDS, REFUSED
from fedrec_server.rounds.state import Round

__all__ = ["RefusalNotices", "log_unfit"]

_LEFT_OUT = "this client's update holds what no honest client sends; the round goes on without it"


class RefusalNotices:
    """What clients have yet to hear."""

    def __init__(self) -> None:
        self._untold: dict[ClientId, Wait] = {}

    def note(self, round_: Round | None, changes: Collection[Change]) -> frozenset[ClientId]:
        """Remember what follows from some changes; return whom it is news for.

        Args:
            round_: the round in progress before them.
        """
        found: dict[ClientId, Wait] = {}
        for change in changes:
            if isinstance(change, UpdatesRefused):
                left_out = Wait(reason=_LEFT_OUT, about=change.round)
                found |= dict.fromkeys(change.left_out, left_out)
            if isinstance(change, RoundAbandoned) and round_ is not None and _is_told(change):
                given_up = Wait(reason=change.reason, about=change.round)
                found |= dict.fromkeys(round_.asked - found.keys(), given_up)
        self._untold |= found
        return frozenset(found)

    def tell(self, client_id: ClientId) -> Wait | None:
        """Return what a client has yet to hear, once."""
        return self._untold.pop(client_id, None)


def log_unfit(
    run: str, round_id: RoundId, roster: Roster, unfit: Collection[tuple[ClientId, FedrecError]]
) -> None:
    """Name those whose updates were refused, for operators."""
    log = structlog.get_logger().bind(run=run, round=round_id)
    for client_id, error in unfit:
        name = roster.member(client_id).label or client_id[:16]
        # The message on values names an item.
        why = "out of bounds" if isinstance(error, SumOutOfBounds) else error.message
        log.error("update refused", client=name, why=why)


def _is_told(change: RoundAbandoned) -> bool:
    return change.reason == OUT_OF_BOUNDS or change.reason.startswith(REFUSED)
