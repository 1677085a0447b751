"""What a client's state folder says about its run: records that change in one transaction."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict, ValidationError

from fedrec.data import UserSplit
from fedrec.errors import StorageError
from fedrec.evaluation.metrics import Rates
from fedrec.follower.database import Records
from fedrec.follower.files import FileRef
from fedrec.ids import RoundId, digest
from fedrec.provenance import Provenance
from fedrec.wire.messages import RevealStatement, RoundKind, UploadHeader


def users_digest(users: UserSplit) -> str:
    """Return what ties stored private vectors to the users they belong to."""
    return digest("fedrec client users v1", *users.user_ids).hex()


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex"
    )


class RunPin(_Record):
    """What must never change under a state folder.

    Attributes:
        run: the run's id, drawn by the coordinator.
        plan_json: the plan's canonical JSON.
        users: hexadecimal digest of the users whose private state is kept, in their order.
    """

    federation: str
    run: str
    plan_json: str
    catalogue_fingerprint: str
    users: str


class StagedRound(_Record):
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


class SentUpdate(_Record):
    """An update that this client sent, or was about to.

    Attributes:
        digest: BLAKE3 of its bytes.
    """

    round: RoundId
    digest: bytes


class SteppedRound(_Record):
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

    def files(self) -> tuple[FileRef | None, ...]:
        """Return all files that this record needs."""
        return self.participant, self.message, self.vector, self.private, self.spent


class BestModel(_Record):
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


class OpenedCell(_Record):
    """The sum of one cell's contributions to a round, for which the key was used.

    Attributes:
        sum_digest: BLAKE3 of that sum.
        core: whether the cell's guests are left out of it.
    """

    cell: int
    sum_digest: bytes
    core: bool = False


class RevealedRound(_Record):
    """A round whose sum this client opened, or was about to, and never opens as another one.

    Attributes:
        manifest_digest: of which contributions.
        sum_digest: BLAKE3 of the sum for which the key was used; empty where they do not add up.
        refused: whether the answer was a refusal, which it then stays.
        cells: whose sums were opened, or were about to be: to count their holders, or because the
            whole was unfit.
        kept: digest of the contributions without those of cells that were found unfit; empty where
            none was.
    """

    round: RoundId
    manifest_digest: bytes
    sum_digest: bytes
    refused: bool = False
    cells: tuple[OpenedCell, ...] = ()
    kept: bytes = b""


class PausedCell(_Record):
    """A cell one of whose members made a sum unfit.

    Attributes:
        round: in which that was found; 0 where it was in an earlier run, or by another folder.
        newest: the last key epoch that had been made by then. Its roster cannot name the cell;
            that of a later one does, unless the authority took the cell in again.
    """

    cell: int
    round: RoundId
    newest: int = 0


class OpenedRound(_Record):
    """The last round whose sum this key authority opened: what a lost coordinator begins with.

    Attributes:
        statement: what was said of it.
        contributions: the headers of what was summed, as JSON.
        sealed: the sealed sum.
        model: the sealed copy of the model after it.
    """

    statement: RevealStatement
    contributions: FileRef
    sealed: FileRef
    model: FileRef

    def files(self) -> tuple[FileRef, ...]:
        """Return all files that this record needs."""
        return self.contributions, self.sealed, self.model


class StoredState(_Record):
    """Everything about one run; the client commits one after the other.

    Attributes:
        provenance: what trains the run's users here; None where nobody trains, as in the key
            authority's own folder.
        version: the last published round whose aggregate `shared` contains.
        shared: the shared model; None at version 0, where it follows from the plan.
        private: the committed private state; None while it is the initial one.
        answered_round: the last round for which an update was ever made.
        is_of_epoch: whether round `version` was read in the present epoch: later ones can be, too.
        metrics: what round `version` measured, little-endian int64; empty at version 0 and after a
            copy of the model.
        acknowledged: the last update that the coordinator said it holds; None for none.
        unacknowledged: those of later rounds, oldest first, of which nobody knows.
        acknowledged_header: that update's, for a coordinator that was recovered.
        statement: the key authority's last word on a published round that is known here: evidence
            that the round was published.
        head: the last statement that this key authority made, or knows of.
        opened: of the last round that it opened; None in a client.
        revealed: rounds above `version` that this client opened.
        refused_sums: sums in this epoch whose refusal told about the key.
        paused: cells that this client paused in this epoch, by number.
        cell_counts: holders of each item by the cells that this key authority counted in the run;
            see `fedrec_authority.opening.cell_counts`.
        masking: the round under masks in progress, or the last one until it is given up.
        spent: what sums that go beyond this client have cost each user, of all runs; see
            `fedrec_client.state.privacy_ledger`. None where no noise was ever asked for.
        counted: what users had when they were counted last, in whatever run; see
            `fedrec_client.state.counted_data`. None where nobody was.
        left_runs: runs that this folder took part in before, and does not return to.
    """

    pin: RunPin
    epoch: int
    provenance: Provenance | None = None
    version: RoundId = RoundId(0)
    shared: FileRef | None = None
    private: FileRef | None = None
    staged: StagedRound | None = None
    best: BestModel | None = None
    answered_round: RoundId = RoundId(0)
    is_of_epoch: bool = False
    metrics: bytes = b""
    acknowledged: SentUpdate | None = None
    unacknowledged: tuple[SentUpdate, ...] = ()
    acknowledged_header: UploadHeader | None = None
    statement: RevealStatement | None = None
    head: RevealStatement | None = None
    opened: OpenedRound | None = None
    revealed: tuple[RevealedRound, ...] = ()
    refused_sums: int = 0
    paused: tuple[PausedCell, ...] = ()
    cell_counts: FileRef | None = None
    spent: FileRef | None = None
    counted: FileRef | None = None
    left_runs: tuple[str, ...] = ()
    masking: SteppedRound | None = None

    def revealed_as(self, round_id: RoundId) -> RevealedRound | None:
        """Return as what this party opened a round above the present version, or None."""
        return next((entry for entry in self.revealed if entry.round == round_id), None)

    def files(self) -> set[str]:
        """Return the names of all files that this state needs."""
        refs = [self.shared, self.private, self.spent, self.counted, self.cell_counts]
        if self.staged is not None:
            refs += [self.staged.update, self.staged.private]
        if self.masking is not None:
            refs += self.masking.files()
        if self.opened is not None:
            refs += self.opened.files()
        if self.best is not None:
            refs += [self.best.shared, self.best.private]
        return {ref.name for ref in refs if ref is not None}

    def private_files(self) -> list[FileRef]:
        """Return the files of private states, which may name others."""
        refs = [self.private]
        refs += [record.private for record in (self.staged, self.masking, self.best) if record]
        return [ref for ref in refs if ref is not None]

    def records(self) -> dict[str, bytes]:
        """Return the fields by name, each as JSON."""
        fields = self.model_dump(mode="json")
        return {name: json.dumps(value).encode() for name, value in fields.items()}

    @classmethod
    def from_records(cls, records: Records, name: str) -> StoredState:
        """Read what `records` returned.

        Args:
            name: where they were, for errors.

        Raises:
            StorageError: they are something else.
        """
        members = [json.dumps(field).encode() + b":" + value for field, value in records.items()]
        try:
            return cls.model_validate_json(b"{" + b",".join(members) + b"}")
        except ValidationError as error:
            first = error.errors()[0]
            raise StorageError(
                f"{name} cannot be understood: {first['loc']}: {first['msg']}.",
                remedy="Restore the state folder from a backup, or start again with an empty one.",
            ) from None
