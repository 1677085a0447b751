"""The interface of a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import Report, RevealStatement, RoundKind, UploadHeader
from fedrec_server.rounds.changes import Change
from fedrec_server.rounds.state import KnownModel, Rules, State
from fedrec_server.store.durable_files import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """The run that owns a state folder. The coordinator only resumes it with the same values."""

    federation: str
    plan_fingerprint: str
    catalogue_fingerprint: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the journal that operators watch. The store assigns `sequence`."""

    unix_seconds: float
    kind: str
    round: RoundId
    fields_json: str
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecord:
    """A published round in the store.

    Attributes:
        statement: the key authority's statement, if it opened the sum.
        known: the resulting model, or None if it was not named.
        reports: the reports of clients that named this model.
        name: the file of the published sum, or empty if it was deleted.
    """

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    epoch: int
    contributions: tuple[UploadHeader, ...]
    statement: RevealStatement | None
    known: KnownModel | None
    reports: tuple[Report, ...]
    name: str
    blob: Blob

    def is_for(self, version: RoundId) -> bool:
        """Return whether a client at a version can apply this round next."""
        return bool(self.name) and self.base_round <= version


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """The stored copy of the model after a published round.

    Attributes:
        reports: the clients that vouch for it, if the model was not named earlier in this epoch.
    """

    round: RoundId
    epoch: int
    blob: Blob
    reports: tuple[Report, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """The stored public bundle of a key epoch."""

    epoch: int
    blob: Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """An applicant for membership, at most one for each invitation.

    Attributes:
        invitation: SHA-256 of the invitation's public key.
        application: the canonical JSON of the signed application.
    """

    invitation: bytes
    client_id: ClientId
    application: bytes


class Store(ABC):
    """Rows and files of one run. All methods are called from one thread at a time.

    Methods raise `StorageError` if nothing changed and a retry may succeed, and `DurabilityLost` if
    the process must end.
    """

    spool: Spool
    run: str

    @abstractmethod
    def load(self, rules: Rules, roster: frozenset[ClientId]) -> State:
        """Return the state after the last committed change."""

    @abstractmethod
    def commit(self, changes: Sequence[Change], entries: Sequence[Entry]) -> None:
        """Write the changes of one step in one durable transaction."""

    @abstractmethod
    def settle(self) -> None:
        """Reduce the risk to recent commits, which are durable without it.

        This may run in any thread, in parallel with all other methods except `close`.

        Raises:
            DurabilityLost: the store is no longer reliable.
        """

    @abstractmethod
    def counted(self, round_id: RoundId, client_id: ClientId) -> UploadHeader | None:
        """Return the counted update of a client in a round that was not abandoned."""

    @abstractmethod
    def counted_by_client(self) -> dict[ClientId, tuple[RoundId, int]]:
        """Return the last published round that counted each client, and its total bytes."""

    @abstractmethod
    def latest(self) -> dict[ClientId, tuple[RoundId, bytes]]:
        """Return the round and digest of every client's last acknowledged update."""

    @abstractmethod
    def latest_header(self, client_id: ClientId) -> UploadHeader | None:
        """Return the header of a client's last acknowledged update, even of an abandoned round."""

    @abstractmethod
    def keep_latest(self, header: UploadHeader) -> None:
        """Store a member's proof of its last update, unless a later one is stored."""

    @abstractmethod
    def former_revealers(self) -> tuple[PublicIdentity, ...]:
        """Return the key authority's earlier revealers."""

    @abstractmethod
    def note_former(self, revealer: PublicIdentity) -> None:
        """Record permanently that a revealer was replaced."""

    @abstractmethod
    def next_published(self, after: RoundId) -> PublishedRecord | None:
        """Return the first round published after `after`."""

    @abstractmethod
    def published(self, round_id: RoundId) -> PublishedRecord | None:
        """Return a published round."""

    @abstractmethod
    def bytes_after(self, after: RoundId) -> int:
        """Return how many bytes of aggregates a client at `after` must fetch."""

    @abstractmethod
    def forget_sums(self, n_kept: int) -> list[str]:
        """Keep only the sums of the newest rounds, and return the files of the others."""

    @abstractmethod
    def keep_snapshot(self, record: SnapshotRecord) -> SnapshotRecord | None:
        """Replace the snapshot and return the previous one."""

    @abstractmethod
    def snapshot(self) -> SnapshotRecord | None:
        """Return the snapshot, if there is one."""

    @abstractmethod
    def keep_epoch(self, record: EpochRecord, entries: Sequence[Entry]) -> EpochRecord | None:
        """Replace the newest epoch and return the previous one."""

    @abstractmethod
    def installed_epoch(self) -> EpochRecord | None:
        """Return the newest stored epoch, if there is one."""

    @abstractmethod
    def keep_applicant(self, applicant: Applicant) -> None:
        """Store an application, replacing the previous one with this invitation."""

    @abstractmethod
    def applicants(self) -> list[Applicant]:
        """Return all applicants, in the order of their ids."""

    @abstractmethod
    def entries(self, after: int, limit: int) -> list[Entry]:
        """Return journal entries in order."""

    @abstractmethod
    def last_entry(self) -> int:
        """Return the sequence number of the last journal entry, or 0."""

    @abstractmethod
    def sweep(self) -> int:
        """Delete files that no row names, unless a kept file is damaged. Return their number."""

    @abstractmethod
    def close(self) -> None:
        """Close the store and release the folder."""
