"""What a client's state folder says about its run, besides what every follower keeps."""

from __future__ import annotations

from typing import Self

from fedrec.environment import Provenance
from fedrec.evaluation.metrics import Rates
from fedrec.follower.stored_state import FileRef, Record, StoredState
from fedrec.ids import RoundId
from fedrec.wire.messages import RoundKind, UploadHeader


class StagedRound(Record):
    """The round in progress: what was, or is about to be, sent, and what follows if it counts.

    Attributes:
        header: the signed header that belongs to `update`.
        update: the protected vector; ciphertexts are randomised, so it is kept, not remade.
        private: the private state after this round's training.
        acknowledged: whether the coordinator said that it holds the update durably.
        closed: whether the coordinator said that it came too late; it is not sent again.
    """

    header: UploadHeader
    update: FileRef
    private: FileRef
    acknowledged: bool = False
    closed: bool = False


class SentUpdate(Record):
    """An update that this client sent, or was about to.

    Attributes:
        digest: BLAKE3 of its bytes.
    """

    round: RoundId
    digest: bytes


class SteppedRound(Record):
    """A round of several steps: the last one that was taken, and what the next ones need.

    Attributes:
        base_state: digest of the model that was trained.
        step: the last one whose message was made.
        participant: `ClientSide.to_bytes` after it.
        message: what is sent for it; None for the vector, which is the staged update.
        vector: the vector before it is protected, little-endian int64; None afterwards.
        private: the private state after this round's training.
        spent: the ledger of spent privacy with this round in it, which becomes the state's own with
            the protected vector; None afterwards, and where sums carry no noise.
        refused: whether this client refused to go on.
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
    """The model that measured best on validation so far.

    Attributes:
        round: the version of the model, not the round that measured it.
        validation: its rates over all clients' users, by which it was chosen.
        test: on the test items, which choose nothing; None where they were not measured.
    """

    round: RoundId
    validation: Rates
    test: Rates | None
    shared: FileRef
    private: FileRef


class ClientState(StoredState):
    """Everything about one run of a client.

    Attributes:
        provenance: what trains the run's users here; None where nobody trains.
        private: the committed private state; None while it is the initial one.
        answered_round: the last round for which an update was ever made.
        acknowledged: the last update that the coordinator said it holds; None for none.
        unacknowledged: those of later rounds, oldest first, of which nobody knows.
        acknowledged_header: that update's, for a coordinator that was recovered.
        masking: the round under masks in progress, or the last one until it is given up.
        spent: what sums that go beyond this client have cost each user, of all runs; see
            `fedrec_client.state.privacy_ledger`. None where no noise was ever asked for.
        counted: what users had when they were counted last, in whatever run; see
            `fedrec_client.state.counted_data`. None where nobody was.
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
        """Return the files of private states, which may name others."""
        refs = [self.private]
        refs += [record.private for record in (self.staged, self.masking, self.best) if record]
        return [ref for ref in refs if ref is not None]

    def in_epoch(self, epoch: int) -> Self:
        """Return the state of the same run as a later key epoch begins."""
        # Tags under the old epoch's key mean nothing to the new one's members.
        # What was staged is of a round that the coordinator abandoned with its epoch.
        staged = self.staged and self.staged.model_copy(update={"closed": True})
        return super().in_epoch(epoch).model_copy(update={"staged": staged, "masking": None})

    def left_for(self, first: Self) -> Self:
        """Return the first state of another run: what was said about users stays said."""
        kept = {"spent": self.spent, "counted": self.counted}
        return super().left_for(first).model_copy(update=kept)
