"""A link that outlives a coordinator's restart: it asks again until it is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedrec.errors import CorruptUpload, FedrecError, InternalError, StorageError, Unreachable
from fedrec.ids import ClientId, RoundId
from fedrec.wire.link import Link
from fedrec.wire.messages import (
    NOTHING,
    Application,
    FederationInfo,
    MaskMessage,
    MaskStep,
    PublishedRound,
    Remembered,
    Report,
    RevealStatement,
    Snapshot,
    Task,
    UploadHeader,
    UploadStatus,
)
from fedrec_client.link.backoff import Backoff
from fedrec_client.link.stopping import StopSwitch

__all__ = ["PatientLink"]

_T = TypeVar("_T")

PASSING = (Unreachable, StorageError, InternalError)
"""Troubles of the coordinator that end without us: it is down, its disk is full, it failed."""
CORRUPT_TRIES = 5


class PatientLink:
    """Repeats every call on another link until the coordinator answers.

    Every call of the protocol is idempotent, so repeating one is always safe.

    Args:
        link: the link to be patient with.
        stop: interrupts waiting.
        backoff: how long to pause.
        on_trouble: told what failed, once until something else does.
        on_answer: told how many attempts in a row had failed, once one succeeds.
        maximum_attempts: give up after so many in a row; 0 never does.
    """

    def __init__(
        self,
        link: Link,
        stop: StopSwitch,
        backoff: Backoff,
        on_trouble: Callable[[FedrecError], None],
        *,
        on_answer: Callable[[int], None] = lambda failed: None,
        maximum_attempts: int = 0,
    ) -> None:
        self._link = link
        self._stop = stop
        self._backoff = backoff
        self._on_trouble = on_trouble
        self._on_answer = on_answer
        self._maximum_attempts = maximum_attempts

    def _insist(self, call: Callable[[], _T]) -> _T:
        attempt, told = 0, ""
        while True:
            try:
                found = self._stop.aside(call)
                if attempt:
                    self._on_answer(attempt)
                return found
            except PASSING as error:
                if attempt + 1 == self._maximum_attempts:
                    raise
                problem: FedrecError = error
            except CorruptUpload as error:
                if attempt + 1 >= CORRUPT_TRIES:
                    raise
                problem = error
            if problem.message != told:
                self._on_trouble(problem)
                told = problem.message
            self._backoff.pause(attempt)
            attempt += 1

    def federation(self, client_id: ClientId) -> FederationInfo:
        """Return the federation's plan, roster and this client's wrapped secrets."""
        return self._insist(lambda: self._link.federation(client_id))

    def catalogue(self, client_id: ClientId) -> bytes:
        """Return the public catalogue file."""
        return self._insist(lambda: self._link.catalogue(client_id))

    def next_task(
        self,
        client_id: ClientId,
        run: str,
        version: RoundId,
        *,
        wait_seconds: float,
        remembered: Remembered = NOTHING,
    ) -> Task:
        """Wait up to `wait_seconds` for something to do."""
        return self._insist(
            lambda: self._link.next_task(
                client_id, run, version, wait_seconds=wait_seconds, remembered=remembered
            )
        )

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        """Send an update, the same bytes until the coordinator holds them."""
        return self._insist(lambda: self._link.submit_update(header, payload))

    def upload_status(self, header: UploadHeader) -> UploadStatus:
        """Return how much of this upload the coordinator holds."""
        return self._insist(lambda: self._link.upload_status(header))

    def contribution(
        self, client_id: ClientId, run: str, round_id: RoundId, contributor: ClientId
    ) -> bytes:
        """Return one contribution of a round that is being revealed."""
        return self._insist(lambda: self._link.contribution(client_id, run, round_id, contributor))

    def round_sum(self, client_id: ClientId, run: str, round_id: RoundId) -> bytes:
        """Return the coordinator's sum of the round that is being revealed."""
        return self._insist(lambda: self._link.round_sum(client_id, run, round_id))

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        """Send a signed reveal."""
        self._insist(lambda: self._link.submit_reveal(statement, sealed))

    def published(self, client_id: ClientId, run: str, after: RoundId) -> PublishedRound | None:
        """Return the first round published after `after`, or None."""
        return self._insist(lambda: self._link.published(client_id, run, after))

    def snapshot(
        self, client_id: ClientId, run: str, after: RoundId, refused: tuple[bytes, ...] = ()
    ) -> Snapshot | None:
        """Return a snapshot newer than `after` that is none of the refused ones, or None."""
        return self._insist(lambda: self._link.snapshot(client_id, run, after, refused))

    def submit_report(self, report: Report) -> None:
        """Send what this client found in a published sum."""
        self._insist(lambda: self._link.submit_report(report))

    def submit_snapshot(self, report: Report, blob: bytes) -> None:
        """Send a copy of the model for late joiners."""
        self._insist(lambda: self._link.submit_snapshot(report, blob))

    def apply(self, application: bytes) -> Application:
        """Ask to become a member."""
        return self._insist(lambda: self._link.apply(application))

    def submit_masks(self, message: MaskMessage) -> bool:
        """Send a step of a round under masks."""
        return self._insist(lambda: self._link.submit_masks(message))

    def masks(self, client_id: ClientId, run: str, round_id: RoundId, step: MaskStep) -> bytes:
        """Return what is needed for a step of a round under masks."""
        return self._insist(lambda: self._link.masks(client_id, run, round_id, step))

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()
