"""Files that no row names any more: deleted in the background, or swept at the next start."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from fedrec.ids import ClientId, RoundId
from fedrec_server.rounds.changes import (
    Change,
    CollectingEnded,
    RoundAbandoned,
    RoundPublished,
    StepEnded,
    UpdatesRefused,
)
from fedrec_server.rounds.state import Round, State
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import sum_name, update_name

KEPT_SUMS = 20
"""Ciphertext sums of so many rounds are there for who is behind; before them, copies of the model.
"""


class SuperfluousFiles:
    """Deletes what a run's changes make superfluous."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Begin to delete what nobody needs after some changes."""
        background = self._run.work.background
        for change in changes:
            match change:
                case RoundPublished() if change.reports_until is not None:
                    background(self._forget_sums())
                case CollectingEnded() | StepEnded() | UpdatesRefused() if change.left_out:
                    background(self._delete_updates(change.round, change.left_out))
        ended = any(isinstance(change, RoundPublished | RoundAbandoned) for change in changes)
        if ended and before.current is not None:
            background(self._delete_round(before.current, changes))

    async def _delete_round(self, round_: Round, changes: tuple[Change, ...]) -> None:
        kept = {c.blob.digest for c in changes if isinstance(c, RoundPublished)}
        names = [update_name(round_.number, client_id) for client_id in round_.accepted]
        if round_.total is not None and round_.total.digest not in kept:
            names.append(sum_name(round_.number))
        await self._delete(round_.number, names, partials=True)

    async def _forget_sums(self) -> None:
        """Delete ciphertext sums of which a copy of the model takes the place."""
        run = self._run
        names = await run.work.in_thread(run.store.forget_sums, KEPT_SUMS)
        await self._delete(run.state.published, names)

    async def _delete_updates(self, round_id: RoundId, clients: frozenset[ClientId]) -> None:
        """Delete updates that a round was closed without."""
        await self._delete(round_id, [update_name(round_id, client) for client in sorted(clients)])

    async def _delete(
        self, round_id: RoundId, names: Collection[str], *, partials: bool = False
    ) -> None:
        spool = self._run.store.spool

        def delete() -> None:
            for name in names:
                spool.delete(name)
            if partials:
                spool.delete_partials(round_id)

        try:
            await self._run.work.in_thread(delete)
        except OSError as error:
            log = structlog.get_logger().bind(run=self._run.name, round=round_id)
            log.warning("files left", why=error.strerror)
