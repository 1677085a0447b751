"""The link between a client and the coordinator, over any transport."""

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
    """The coordinator as a client sees it. Every method raises the errors of `fedrec.errors`.

    Implementations: `GrpcLink` over a channel, and in tests wrappers that lose, delay, repeat or
    falsify messages.
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
        """Wait up to `wait_seconds` for a task. Send what the client remembers."""

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        """Send an update, resuming an earlier attempt. Return whether it was a duplicate.

        Returns only when the coordinator has the bytes durably.
        """

    def contribution(
        self, client_id: ClientId, run: str, round_id: RoundId, contributor: ClientId
    ) -> bytes:
        """Return one contribution of a round that is being revealed."""

    def round_sum(self, client_id: ClientId, run: str, round_id: RoundId) -> bytes:
        """Return the coordinator's sum of the round that is being revealed."""

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        """Send the key authority's statement. `sealed` is empty if it refuses the sum."""

    def submit_report(self, report: Report) -> None:
        """Send this client's report on a published sum."""

    def published(self, client_id: ClientId, run: str, after: RoundId) -> PublishedRound | None:
        """Return the first round published after `after`, or None if there is no such round."""

    def own_model(self, client_id: ClientId, run: str, round_id: RoundId, parameter: str) -> bytes:
        """Return the values of a parameter that the server computed for this client in a round.

        They are empty if the client keeps its own.
        """

    def snapshot(
        self, client_id: ClientId, run: str, after: RoundId, refused: tuple[bytes, ...] = ()
    ) -> Snapshot | None:
        """Return a snapshot newer than `after`, not a refused one, or None if there is none.

        Args:
            refused: digests of snapshots that this client could not use, at most `MAX_REFUSED`.
        """

    def submit_snapshot(self, report: Report, blob: bytes) -> None:
        """Send a snapshot for late joiners."""

    def apply(self, application: bytes) -> Application:
        """Send a signed application, or ask again for its result."""

    def submit_masks(self, message: StepMessage) -> bool:
        """Send the message of a step. Return whether it was a duplicate."""

    def masks(self, client_id: ClientId, run: str, round_id: RoundId, step: str) -> bytes:
        """Return the material that the protection needs for a step of a round, as bytes."""

    def goodbye(self, client_id: ClientId, code: str) -> None:
        """Report that this client ends, so that rounds need not wait for it.

        Its next call undoes this.

        Args:
            code: the code of the error that ends it, or empty if it was stopped or is done.
        """

    def close(self) -> None:
        """Close the connection."""
