"""The client's state folder: private vectors, the update in progress, and the follower's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedrec.environment import Provenance
from fedrec.errors import RefusedError, StorageError
from fedrec.follower.follower_store import FollowerStore
from fedrec.follower.stored_state import Content, FileRef, checked_path, write_blob
from fedrec.ids import RoundId
from fedrec.model.block_folder import BlockFolder
from fedrec.model.state import PrivateState
from fedrec.model.tables import BLOCKS, names_in, read_manifest
from fedrec.plan.agreement import plan_from_json
from fedrec.plan.schema import PLAN_FORM
from fedrec.wire.messages import RevealStatement, UploadHeader
from fedrec_client.state.client_state import (
    BestModel,
    ClientState,
    SentUpdate,
    StagedRound,
    SteppedRound,
)


class PrivateStore(FollowerStore[ClientState]):
    """A client's durable state, in addition to `FollowerStore`."""

    state_type = ClientState

    def __init__(
        self, folder: Path, *, read_only: bool = False, setting: str = "client.state"
    ) -> None:
        self._blocks = BlockFolder.at(folder / BLOCKS)
        super().__init__(folder, read_only=read_only, setting=setting)

    def close(self) -> None:
        """Close the folder."""
        if self._lock is not None:
            self._blocks.close()
        super().close()

    def go_on(self, present: Provenance, *, accepted: bool, now: float) -> None:
        """Check that the training path and arithmetic are unchanged, or record an accepted change.

        Before the first answer there are no bits that could differ. A run of a former release
        continues with this one's training path: its updates are as good, and headers name the path
        of the release that began it.

        Args:
            accepted: whether the user accepts another path or arithmetic.
            now: unix seconds.

        Raises:
            RefusedError: a change was not accepted, or a different release made the state.
        """
        found = self.state.provenance
        if found is None or self.state.answered_round == 0:
            kept = present
        elif found.is_of_another_release(present) and not self._is_of_former_release:
            # Headers name the training path, so every further update would be refused.
            raise RefusedError(
                f"The run in {self.folder} began with {found.path}, but this release of fedrec has "
                f"{present.path}. Releases with different training can't share a run. Nothing was "
                "changed.",
                remedy="Finish the run with the release that began it. Upgrade all parties before "
                "the next run.",
            )
        else:
            kept = found.continued(
                present,
                what=f"The state folder {self.folder}",
                round_id=self.state.answered_round,
                now=now,
                accepted=accepted or not found.arithmetic.difference(present.arithmetic),
            )
        if kept != found:
            self.change(provenance=kept)

    @property
    def _is_of_former_release(self) -> bool:
        return plan_from_json(self.state.pin.plan_json.encode()).form < PLAN_FORM

    def read_private(self, ref: FileRef) -> PrivateState:
        """Return a private state after checking its files, without reading its tensors."""
        return PrivateState.open(checked_path(self.folder, ref), self._blocks)

    def stage(
        self,
        header: UploadHeader,
        update: bytes,
        private: Content,
        *,
        spent: bytes | None = None,
    ) -> None:
        """Store an update and the private state that follows from it, before anything is sent.

        Args:
            spent: the privacy spent including this update. It is charged in the same commit and
                never refunded, even if the round is abandoned.

        Raises:
            StorageError: this or a later round already has an update.
        """
        if self.state.answered_round >= header.round:
            raise StorageError(
                f"Round {self.state.answered_round} was answered. An update for round "
                f"{header.round} would be a second answer.",
                remedy="This is a defect of fedrec. Please report it.",
            )
        charged = self.state.spent if spent is None else write_blob(self.folder, "spent", spent)
        self.change(
            answered_round=header.round,
            spent=charged,
            unacknowledged=(*self.state.unacknowledged, _sent(header)),
            staged=StagedRound(
                header=header,
                update=write_blob(self.folder, "update", update),
                private=write_blob(self.folder, "private", private),
            ),
        )

    @property
    def in_progress(self) -> RoundId | None:
        """The round that this client answered and whose outcome it does not know, or None."""
        staged, masking = self.state.staged, self.state.masking
        if masking is not None:
            return masking.round
        return None if staged is None else staged.header.round

    def keep_counted(self, content: bytes) -> None:
        """Record permanently the data that this client is about to send about its users."""
        self.change(counted=self.keep_file("counted", content))

    def keep_masking(
        self,
        masking: SteppedRound,
        staged: StagedRound | None = None,
        *,
        spent: FileRef | None = None,
    ) -> None:
        """Store a step of a round under masks with its message, before anything is sent.

        Args:
            masking: the round after the step.
            staged: the masked vector, in the step that makes it.
            spent: the privacy spent including that vector. It is charged in the same commit and
                never refunded. Before that step, nothing about users has left the client.

        Raises:
            StorageError: the round is new, but this or a later one was already answered.
        """
        before = self.state.masking
        begins = before is None or before.round != masking.round
        if begins and self.state.answered_round >= masking.round:
            raise StorageError(
                f"Round {self.state.answered_round} was answered. Keys for round {masking.round} "
                "would be a second answer.",
                remedy="This is a defect of fedrec. Please report it.",
            )
        sent = () if staged is None else (_sent(staged.header),)
        self.change(
            masking=masking,
            answered_round=max(self.state.answered_round, masking.round),
            staged=staged or self.state.staged,
            unacknowledged=(*self.state.unacknowledged, *sent),
            spent=spent or self.state.spent,
        )

    def mark_staged(self, *, acknowledged: bool = False, closed: bool = False) -> None:
        """Record the coordinator's answer to the staged update."""
        staged = self.state.staged
        if staged is None or (staged.acknowledged >= acknowledged and staged.closed >= closed):
            return
        known = _known(self.state, staged.header) if acknowledged else {}
        self.change(
            staged=staged.model_copy(
                update={
                    "acknowledged": staged.acknowledged or acknowledged,
                    "closed": staged.closed or closed,
                }
            ),
            **known,
        )

    def acknowledge(self, header: UploadHeader) -> None:
        """Record that the coordinator has an update whose receipt may have been lost."""
        self.change(**_known(self.state, header))

    def take_back(self, latest: UploadHeader | None) -> None:
        """Record that the coordinator lost the unpublished updates after `latest`."""
        state = self.state
        before = () if state.acknowledged is None else (state.acknowledged,)
        staged = state.staged
        if staged is not None:
            staged = staged.model_copy(update={"acknowledged": False, "closed": False})
        self.change(
            acknowledged=None if latest is None else _sent(latest),
            acknowledged_header=latest,
            unacknowledged=(*before, *state.unacknowledged),
            staged=staged,
        )

    def roll_back(self) -> None:
        """Discard the staged round. The committed private state is the current one."""
        if self.state.staged is not None or self.state.masking is not None:
            self.change(staged=None, masking=None)

    def publish(
        self,
        round_id: RoundId,
        shared: Content,
        *,
        metrics: bytes,
        statement: RevealStatement | None = None,
        counted: bool = False,
        private: Content | None = None,
        best: BestModel | None = None,
    ) -> None:
        """Move to a published round, and commit or drop the staged private state with it.

        Args:
            counted: whether the round counted the staged update.
            private: replaces the staged private state of a counted update if given.
            best: replaces the best model if given.
        """
        state = self.state
        staged = state.staged
        # A published list names it, so the coordinator has it, even if its receipt was lost.
        known = _known(state, staged.header) if counted and staged is not None else {}
        waiting = staged if staged is not None and staged.header.round > round_id else None
        kept = state.private
        if counted and staged is not None and waiting is None:
            kept = staged.private
            if private is not None:
                kept = write_blob(self.folder, "private", private)
        masking = state.masking
        if masking is not None and masking.round <= round_id:
            # Keys and others' shares serve one round.
            masking = None
        self._move(
            round_id,
            shared,
            metrics,
            statement,
            private=kept,
            staged=waiting,
            masking=masking,
            best=best or state.best,
            **known,
        )

    def adopt(
        self, round_id: RoundId, shared: Content, *, statement: RevealStatement | None = None
    ) -> None:
        """Move to a later round by a snapshot. The committed private state stays."""
        self._move(round_id, shared, b"", statement, staged=None, masking=None)

    def _check_files(self, there: list[str]) -> None:
        """Refuse a folder that lacks files of its state, before others are deleted.

        Raises:
            StorageError: a file is missing. The message names one.
        """
        super()._check_files(there)
        # Before deleting a table that a damaged list would have named.
        if self._state is not None and any((self.folder / BLOCKS).glob("*.bin")):
            for ref in self._state.private_files():
                checked_path(self.folder, ref)

    def _collect_garbage(self) -> None:
        blocks: set[str] = set()
        for ref in () if self._state is None else self._state.private_files():
            blocks |= names_in(read_manifest(self.folder / ref.name) or {})
        super()._collect_garbage()
        self._blocks.keep(blocks)


def _sent(header: UploadHeader) -> SentUpdate:
    return SentUpdate(round=header.round, digest=header.digest)


def _known(state: ClientState, header: UploadHeader) -> dict[str, Any]:
    """Return the changes if the coordinator is known to have an update."""
    found = _sent(header)
    before = state.acknowledged
    later = tuple(sent for sent in state.unacknowledged if sent.round > found.round)
    if before is not None and before.round >= found.round:
        return {}
    return {"acknowledged": found, "acknowledged_header": header, "unacknowledged": later}
