"""What the coordinator asks of a store, whatever it is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import Report, RevealStatement, RoundKind, UploadHeader
from fedrec_server.rounds.changes import Change
from fedrec_server.rounds.state import Rules, State
from fedrec_server.store.durable_files import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What a state folder is bound to; a run goes on only with the same."""

    federation: str
    plan_fingerprint: str
    catalogue_fingerprint: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the journal that operators watch; `sequence` is given by the store."""

    unix_seconds: float
    kind: str
    round: RoundId
    fields_json: str
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecord:
    """A published round as it is stored.

    Attributes:
        statement: the key authority's, where it opened the sum.
        known: the epoch in which the key authority, or two clients, named the model after it, and
            its digest under that epoch's key; None where nobody did.
        reports: of clients who named that model.
        name: the file of the published sum; empty where it is kept no more.
    """

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    epoch: int
    contributions: tuple[UploadHeader, ...]
    statement: RevealStatement | None
    known: tuple[int, bytes] | None
    reports: tuple[Report, ...]
    name: str
    blob: Blob

    def is_for(self, version: RoundId) -> bool:
        """Tell whether a client at a version can take this round as the next one."""
        return bool(self.name) and self.base_round <= version


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """The stored copy of the model after a published round.

    Attributes:
        reports: who vouches for it where nobody named the model in this epoch before.
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
    """Somebody who asked to become a member, at most one for each invitation.

    Attributes:
        invitation: SHA-256 of the invitation's public key.
        application: the canonical JSON of what was signed.
    """

    invitation: bytes
    client_id: ClientId
    application: bytes


class Store(ABC):
    """Rows and files of one run; every method is called from one thread at a time.

    Methods raise `StorageError` where nothing changed and a later try may succeed, and
    `DurabilityLost` where the process has to end.
    """

    spool: Spool
    run: str

    @abstractmethod
    def load(self, rules: Rules, roster: frozenset[ClientId]) -> State:
        """Return the state after the last committed change."""

    @abstractmethod
    def commit(self, changes: Sequence[Change], entries: Sequence[Entry]) -> None:
        """Write the changes of one step in one transaction; durable when this returns."""

    @abstractmethod
    def settle(self) -> None:
        """Leave less to what may befall the last commits, which are durable without it.

        May run in any thread beside all other methods but `close`.

        Raises:
            DurabilityLost: the store can no longer be believed.
        """

    @abstractmethod
    def counted(self, round_id: RoundId, client_id: ClientId) -> UploadHeader | None:
        """Return the counted update of a client in a round that was not abandoned."""

    @abstractmethod
    def counted_by_client(self) -> dict[ClientId, tuple[RoundId, int]]:
        """Return the last published round that counted each client, and its bytes in all."""

    @abstractmethod
    def latest(self) -> dict[ClientId, tuple[RoundId, bytes]]:
        """Return the round and the digest of every client's last acknowledged update."""

    @abstractmethod
    def latest_header(self, client_id: ClientId) -> UploadHeader | None:
        """Return the header of a client's last acknowledged update, be it of an abandoned round."""

    @abstractmethod
    def keep_latest(self, header: UploadHeader) -> None:
        """Keep what a member showed of its last update, unless a later one is here."""

    @abstractmethod
    def former_revealers(self) -> tuple[PublicIdentity, ...]:
        """Return the key authority's revealers before the present one."""

    @abstractmethod
    def note_former(self, revealer: PublicIdentity) -> None:
        """Remember for good that a revealer was replaced."""

    @abstractmethod
    def next_published(self, after: RoundId) -> PublishedRecord | None:
        """Return the first round published after `after`."""

    @abstractmethod
    def published(self, round_id: RoundId) -> PublishedRecord | None:
        """Return a published round."""

    @abstractmethod
    def bytes_after(self, after: RoundId) -> int:
        """Return how many bytes of aggregates a client at `after` has to fetch."""

    @abstractmethod
    def forget_sums(self, n_kept: int) -> list[str]:
        """Keep the sums of so many published rounds, and return the files of the others."""

    @abstractmethod
    def keep_snapshot(self, record: SnapshotRecord) -> SnapshotRecord | None:
        """Make this the snapshot and return the one that it replaces."""

    @abstractmethod
    def snapshot(self) -> SnapshotRecord | None:
        """Return the snapshot, if there is one."""

    @abstractmethod
    def keep_epoch(self, record: EpochRecord, entries: Sequence[Entry]) -> EpochRecord | None:
        """Make this the newest epoch and return the one that it replaces."""

    @abstractmethod
    def installed_epoch(self) -> EpochRecord | None:
        """Return the newest epoch that was kept, if there is one."""

    @abstractmethod
    def keep_applicant(self, applicant: Applicant) -> None:
        """Keep what somebody handed in with an invitation, in place of what it did before."""

    @abstractmethod
    def applicants(self) -> list[Applicant]:
        """Return all applicants, in the order of their ids."""

    @abstractmethod
    def entries(self, after: int, limit: int) -> list[Entry]:
        """Return journal entries in order."""

    @abstractmethod
    def last_entry(self) -> int:
        """Return the sequence number of the last journal entry, 0 before the first."""

    @abstractmethod
    def sweep(self) -> int:
        """Delete files that no row names, if none that is kept is damaged; return how many."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the folder."""
