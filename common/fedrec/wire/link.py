"""How a client reaches the coordinator, whatever lies between them."""

from __future__ import annotations

from typing import Protocol

from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import (
    NOTHING,
    Application,
    FederationInfo,
    PublishedRound,
    Remembered,
    Report,
    RevealStatement,
    Snapshot,
    StepMessage,
    Task,
    UploadHeader,
)


class Link(Protocol):
    """The coordinator as a client sees it; every method raises the errors of `fedrec.errors`.

    Implementations: `GrpcLink` over a channel, and in tests wrappers that lose, delay, repeat
    or falsify what passes through.
    """

    def federation(self, client_id: ClientId) -> FederationInfo:
        """Return the federation's plan, roster and this client's wrapped secrets."""

    def catalogue(self, client_id: ClientId) -> bytes:
        """Return the public catalogue file."""

    def next_task(
        self,
        client_id: ClientId,
        run: str,
        version: RoundId,
        *,
        wait_seconds: float,
        remembered: Remembered = NOTHING,
    ) -> Task:
        """Wait up to `wait_seconds` for something to do; tell what the client remembers."""

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        """Send an update, resuming where an earlier try ended; True when it was a duplicate.

        Returns only when the coordinator holds the bytes durably.
        """

    def contribution(
        self, client_id: ClientId, run: str, round_id: RoundId, contributor: ClientId
    ) -> bytes:
        """Return one contribution of a round that is being revealed."""

    def round_sum(self, client_id: ClientId, run: str, round_id: RoundId) -> bytes:
        """Return the coordinator's sum of the round that is being revealed."""

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        """Send the key authority's word; `sealed` is empty where it refuses the sum."""

    def submit_report(self, report: Report) -> None:
        """Send what this client found in a published sum."""

    def published(self, client_id: ClientId, run: str, after: RoundId) -> PublishedRound | None:
        """Return the first round published after `after`, or None."""

    def snapshot(
        self, client_id: ClientId, run: str, after: RoundId, refused: tuple[bytes, ...] = ()
    ) -> Snapshot | None:
        """Return a snapshot newer than `after` that is none of the refused ones, or None.

        Args:
            refused: digests of snapshots that this client could not use, at most `MAX_REFUSED`.
        """

    def submit_snapshot(self, report: Report, blob: bytes) -> None:
        """Send a copy of the model for late joiners."""

    def apply(self, application: bytes) -> Application:
        """Hand in a signed application, or ask again what became of it."""

    def submit_masks(self, message: StepMessage) -> bool:
        """Send the message of a step; True when it was a duplicate."""

    def masks(self, client_id: ClientId, run: str, round_id: RoundId, step: str) -> bytes:
        """Return what is needed for a step of a round, as bytes for the protection."""

    def goodbye(self, client_id: ClientId, code: str) -> None:
        """Say that this client ends, so that rounds need not wait for it; its next call undoes it.

        Args:
            code: of the error that ends it; empty where it was told to stop, or is done.
        """

    def close(self) -> None:
        """Let go of the connection."""
