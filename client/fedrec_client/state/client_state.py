"""The client's part of its state folder, in addition to that of every follower."""

from __future__ import annotations

from typing import Self

from fedrec.environment import Provenance
from fedrec.evaluation.metrics import Rates
from fedrec.follower.stored_state import FileRef, Record, StoredState
from fedrec.ids import RoundId
from fedrec.wire.messages import RoundKind, UploadHeader


class StagedRound(Record):
    """The round in progress: the update to send, and the state that follows if it counts.

    Attributes:
        header: the signed header that belongs to `update`.
        update: the protected vector. It is kept, because ciphertexts are randomised.
        private: the private state after this round's training.
        acknowledged: whether the coordinator acknowledged that the update is durable.
        closed: whether the coordinator reported that it came too late. It is not sent again.
    """

    header: UploadHeader
    update: FileRef
    private: FileRef
    acknowledged: bool = False
    closed: bool = False


class SentUpdate(Record):
    """An update that this client sent, or was about to send.

    Attributes:
        digest: BLAKE3 of its bytes.
    """

    round: RoundId
    digest: bytes


class SteppedRound(Record):
    """A round of several steps: the last completed one, and the data for the next ones.

    Attributes:
        base_state: digest of the model that was trained.
        step: the last one whose message was made.
        participant: `ClientSide.to_bytes` after it.
        message: the message for it, or None for the vector, which is the staged update.
        vector: the vector before protection, little-endian int64. None afterwards.
        private: the private state after this round's training.
        spent: the privacy ledger including this round. It becomes the state's own with the
            protected vector. None afterwards, and without noise.
        refused: whether this client refused to continue.
    """

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    base_state: bytes
    step: str
    participant: FileRef
    message: FileRef | None
    vector: FileRef | None
    private: FileRef
    spent: FileRef | None = None
    refused: bool = False


class BestModel(Record):
    """The model with the best validation so far.

    Attributes:
        round: the version of the model, not the round that measured it.
        validation: its rates over all clients' users, which chose it.
        test: its rates on the test items, which choose nothing. None if not measured.
    """

    round: RoundId
    validation: Rates
    test: Rates | None
    shared: FileRef
    private: FileRef


class ClientState(StoredState):
    """The state of a client in one run.

    Attributes:
        provenance: the training path and arithmetic on this machine, or None if it has not trained.
        private: the committed private state, or None while it is the initial one.
        answered_round: the last round for which an update was made.
        acknowledged: the last update that the coordinator acknowledged, or None.
        unacknowledged: the updates of later rounds, oldest first, whose arrival is unknown.
        acknowledged_header: the header of that update, for a coordinator that was recovered.
        masking: the present round under masks, or the last one until it is given up.
        spent: the privacy budget spent for each user in all runs, as in
            `fedrec_client.state.privacy_ledger`. None if noise was never used.
        counted: the data of users at their last count in any run, as in
            `fedrec_client.state.counted_data`. None without a count.
    """

    provenance: Provenance | None = None
    private: FileRef | None = None
    staged: StagedRound | None = None
    best: BestModel | None = None
    answered_round: RoundId = RoundId(0)
    acknowledged: SentUpdate | None = None
    unacknowledged: tuple[SentUpdate, ...] = ()
    acknowledged_header: UploadHeader | None = None
    masking: SteppedRound | None = None
    spent: FileRef | None = None
    counted: FileRef | None = None

    def private_files(self) -> list[FileRef]:
        """Return the files of private states, which may refer to others."""
        refs = [self.private]
        refs += [record.private for record in (self.staged, self.masking, self.best) if record]
        return [ref for ref in refs if ref is not None]

    def in_epoch(self, epoch: int) -> Self:
        """Return the state of the same run at the beginning of a later key epoch."""
        # Tags under the old epoch's key are meaningless to the new epoch's members. The coordinator
        # abandoned the staged round with its epoch.
        staged = self.staged and self.staged.model_copy(update={"closed": True})
        return super().in_epoch(epoch).model_copy(update={"staged": staged, "masking": None})

    def left_for(self, first: Self) -> Self:
        """Return the first state of another run. Privacy that was spent stays counted."""
        kept = {"spent": self.spent, "counted": self.counted}
        return super().left_for(first).model_copy(update=kept)
