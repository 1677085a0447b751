"""Counting what a client sends and receives; framing and TLS are not included."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.wire.messages import (
    FederationInfo,
    PublishedRound,
    Report,
    Reveal,
    RevealStatement,
    Snapshot,
    StepMessage,
    Task,
    UploadHeader,
)

__all__ = ["Meter", "payload_bytes"]


@dataclass(slots=True)
class Meter:
    """Bytes sent and received: payloads, and the headers and statements that are signed."""

    sent: int = 0
    received: int = 0


def payload_bytes(*values: object) -> int:
    """Return the bytes that are payload, or signed, of a link's arguments or answers."""
    return sum(map(_bytes_of, values))


def _bytes_of(value: object) -> int:
    match value:
        case bytes():
            return len(value)
        case UploadHeader() | RevealStatement() | Report() | StepMessage():
            return len(value.statement()) + len(value.signature)
        case FederationInfo():
            blobs = value.plan_json, value.roster_json, value.server_context, value.wrapped_secrets
            return sum(map(len, blobs))
        case PublishedRound():
            return payload_bytes(value.blob, value.statement, *value.contributions)
        case Snapshot():
            return payload_bytes(value.blob, value.statement, *value.reports)
        case Task(task=Reveal(contributions=contributions)):
            return payload_bytes(*contributions)
        case _:
            return 0
