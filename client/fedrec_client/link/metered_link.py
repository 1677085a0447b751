"""A link that counts what passes through it."""

from __future__ import annotations

from dataclasses import dataclass

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
    Reveal,
    RevealStatement,
    Snapshot,
    Task,
    UploadHeader,
    UploadStatus,
)

__all__ = ["Meter", "MeteredLink"]


@dataclass(slots=True)
class Meter:
    """Bytes sent and received: payloads, and the headers and statements that are signed."""

    sent: int = 0
    received: int = 0


def _signed(message: UploadHeader | RevealStatement | Report | MaskMessage) -> int:
    return len(message.statement()) + len(message.signature)


class MeteredLink:
    """Counts bytes around another link; framing and TLS are not included."""

    def __init__(self, link: Link, meter: Meter) -> None:
        self._link = link
        self._meter = meter

    def federation(self, client_id: ClientId) -> FederationInfo:
        """Return the federation's plan, roster and this client's wrapped secrets."""
        info = self._link.federation(client_id)
        blobs = (info.plan_json, info.roster_json, info.server_context, info.wrapped_secrets)
        self._meter.received += sum(map(len, blobs))
        return info

    def catalogue(self, client_id: ClientId) -> bytes:
        """Return the public catalogue file."""
        blob = self._link.catalogue(client_id)
        self._meter.received += len(blob)
        return blob

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
        task = self._link.next_task(
            client_id, run, version, wait_seconds=wait_seconds, remembered=remembered
        )
        if isinstance(task.task, Reveal):
            self._meter.received += sum(map(_signed, task.task.contributions))
        return task

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        """Send an update; one that fails midway counts in full."""
        self._meter.sent += _signed(header) + len(payload)
        return self._link.submit_update(header, payload)

    def upload_status(self, header: UploadHeader) -> UploadStatus:
        """Return how much of this upload the coordinator holds."""
        return self._link.upload_status(header)

    def contribution(
        self, client_id: ClientId, run: str, round_id: RoundId, contributor: ClientId
    ) -> bytes:
        """Return one contribution of a round that is being revealed."""
        blob = self._link.contribution(client_id, run, round_id, contributor)
        self._meter.received += len(blob)
        return blob

    def round_sum(self, client_id: ClientId, run: str, round_id: RoundId) -> bytes:
        """Return the coordinator's sum of the round that is being revealed."""
        blob = self._link.round_sum(client_id, run, round_id)
        self._meter.received += len(blob)
        return blob

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        """Send a signed reveal."""
        self._meter.sent += _signed(statement) + len(sealed)
        self._link.submit_reveal(statement, sealed)

    def published(self, client_id: ClientId, run: str, after: RoundId) -> PublishedRound | None:
        """Return the first round published after `after`, or None."""
        found = self._link.published(client_id, run, after)
        if found is not None:
            said = 0 if found.statement is None else _signed(found.statement)
            self._meter.received += len(found.blob) + sum(map(_signed, found.contributions)) + said
        return found

    def snapshot(
        self, client_id: ClientId, run: str, after: RoundId, refused: tuple[bytes, ...] = ()
    ) -> Snapshot | None:
        """Return a snapshot newer than `after` that is none of the refused ones, or None."""
        found = self._link.snapshot(client_id, run, after, refused)
        if found is not None:
            said = 0 if found.statement is None else _signed(found.statement)
            self._meter.received += len(found.blob) + sum(map(_signed, found.reports)) + said
        return found

    def submit_report(self, report: Report) -> None:
        """Send what this client found in a published sum."""
        self._meter.sent += _signed(report)
        self._link.submit_report(report)

    def submit_snapshot(self, report: Report, blob: bytes) -> None:
        """Send a copy of the model for late joiners."""
        self._meter.sent += _signed(report) + len(blob)
        self._link.submit_snapshot(report, blob)

    def apply(self, application: bytes) -> Application:
        """Ask to become a member."""
        self._meter.sent += len(application)
        return self._link.apply(application)

    def submit_masks(self, message: MaskMessage) -> bool:
        """Send a step of a round under masks."""
        self._meter.sent += _signed(message)
        return self._link.submit_masks(message)

    def masks(self, client_id: ClientId, run: str, round_id: RoundId, step: MaskStep) -> bytes:
        """Return what is needed for a step of a round under masks."""
        found = self._link.masks(client_id, run, round_id, step)
        self._meter.received += len(found)
        return found

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()
