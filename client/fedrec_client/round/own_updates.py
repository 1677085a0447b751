"""This client's own updates: whether they were counted, and whether the coordinator knows them.

A client answers no round twice, and stores an update before it sends it. An update with its own
signature that it does not know was made from another copy of its folder. If the coordinator does
not know an update that it acknowledged, or a round that it published, it was restored from an older
state.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import FedrecError, FolderIsOld, RefusedError, SecondCopy, SplitView
from fedrec.follower.catching_up import CatchingUp
from fedrec.follower.pull_loop import RollbackDetection
from fedrec.identity.public import verify
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.wire.messages import NOTHING, PublishedRound, Remembered, Task, UploadHeader
from fedrec_client.round.local_model import LocalModel
from fedrec_client.state.client_state import SentUpdate
from fedrec_client.state.private_store import PrivateStore


class UpdatesCounted(CatchingUp):
    """Catches up, and commits or drops the staged update of a round."""

    _model: LocalModel
    _store: PrivateStore

    def _commit(
        self, found: PublishedRound, shared: SharedState, metrics: NDArray[np.int64]
    ) -> None:
        """Move to a checked round, and settle it in the journal."""
        member, staged = self._membership, self._store.state.staged
        answered = staged is not None and staged.header.round == found.round
        counted = answered and staged is not None and staged.header in found.contributions
        before = self._store.in_progress
        received = {}
        if counted and self._model.is_personal(found.kind):
            # Until all of it has arrived, nothing of the round is committed.
            received = {
                name: self._link.own_model(member.client_id, member.run, found.round, name)
                for name in self._model.received
            }
        self._model.publish(
            found.round,
            shared,
            metrics=metrics,
            counted=counted,
            received=received,
            statement=found.statement,
        )
        if before is not None and before < found.round:
            self._journal.settle(before, "abandoned")
        why = ""
        if answered and not counted and self._is_left_out(found):
            why = "cell_paused" if member.paused_by(found.statement) else "cell_incomplete"
        self._journal.settle(found.round, "counted" if counted else "not_counted", why)

    def _is_left_out(self, found: PublishedRound) -> bool:
        """Return whether a round is without clients that are always in this client's sums."""
        member = self._membership
        cell = member.roster.partition.cell_of(member.client_id)
        counted = {header.client_id for header in found.contributions}
        return cell is not None and counted.isdisjoint(cell.core)

    def _check_known(self, found: PublishedRound, manifest: bytes) -> None:
        """Refuse a round whose contributors agreed on something else than this client received.

        Raises:
            SplitView: the contributors agreed on something else. The message names the round.
        """
        staged = self._store.state.staged
        if staged is None or not staged.acknowledged or staged.header.round != found.round:
            return
        if staged.header.key_list != found.contributions[0].key_list:
            raise SplitView(
                f"The clients in round {found.round} signed a different list of keys than the one "
                "this client received.",
                remedy="The coordinator told clients different things. Tell the data owners.",
            )


class UpdatesRemembered(RollbackDetection):
    """Detects whether the coordinator or this folder is an older copy."""

    _store: PrivateStore

    def remembered(self) -> Remembered:
        """Return the data about own updates for the next request to the coordinator."""
        state = self._store.state
        sent = state.acknowledged
        known = (
            NOTHING
            if sent is None
            else Remembered(acknowledged_round=sent.round, acknowledged_digest=sent.digest)
        )
        if self._went_back is None:
            return known
        return replace(known, statement=state.statement, header=state.acknowledged_header)

    def agrees(self, task: Task) -> bool:
        """Return whether the coordinator still knows what it knew before. If not, the client waits.

        Raises:
            FolderIsOld: an older copy of this folder was restored, or the folder was copied.
            SecondCopy: two copies of this folder answered the same round.
            RefusedError: the update that the coordinator reports as this client's is not its own.
        """
        state = self._store.state
        if task.latest is None or task.published_round < state.version:
            return super().agrees(task)
        header, sent = task.latest.header, state.acknowledged
        least = RoundId(0) if sent is None else sent.round
        found = RoundId(0) if header is None else header.round
        if header is not None:
            try:
                self._check(header)
            except FedrecError as error:
                self._refuse("latest_refused", header.round, error)
        if found < least and least <= state.version:
            return self._wait_for(least, found)
        if header is None or found < least:
            # For a round that was not published, the same bytes can be sent again.
            self._store.take_back(header)
            self._journal.tell("forgotten", least, detail="sent again if it is requested")
            self._went_back = None
            return True
        if not self._is_known(header):
            self._refuse("folder_is_old_or_copied", found, self._of_another_copy(header))
        self._store.acknowledge(header)
        self._went_back = None
        return True

    def _is_known(self, header: UploadHeader) -> bool:
        state = self._store.state
        found = SentUpdate(round=header.round, digest=header.digest)
        return found == state.acknowledged or found in state.unacknowledged

    def _check(self, header: UploadHeader) -> None:
        member = self._membership
        if (header.client_id, header.run) != (member.client_id, member.run):
            raise RefusedError("The update that the coordinator reports belongs to another client.")
        verify(member.identity.public.signing_key, header.statement(), header.signature)

    def _of_another_copy(self, header: UploadHeader) -> FedrecError:
        state, folder = self._store.state, self._store.folder
        sent = (*state.unacknowledged, *([state.acknowledged] if state.acknowledged else []))
        if any(one.round == header.round for one in sent):
            return SecondCopy(
                f"Round {header.round} was answered from two copies of {folder}.",
                remedy="Keep both, but run only the other one: the coordinator has its answer. "
                "Nothing was changed here.",
            )
        return FolderIsOld(
            f"The coordinator has this client's update for round {header.round}, but {folder} ends "
            f"with round {state.answered_round}. It is an older copy, or another copy runs.",
            remedy="Run the newest copy of the folder, and only that one. If it is lost, keep "
            "this one, and ask the key authority to replace this client (fedrec keys "
            "replace). Nothing was changed here.",
        )

    def _refuse(self, event: str, round_id: RoundId, error: FedrecError) -> None:
        self._context.refused(event, round_id, error)
        raise error
