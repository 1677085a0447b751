"""What a message's field may hold: its type together with the check that a peer's word passes.

A field's kind is an `Annotated` type. Behind the type stands the check, which is given the value
and the field's name and returns the value; behind the check, where a kind has one, what makes our
own value fit for the other side before it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from fedrec.errors import ProtocolError
from fedrec.ids import ClientId, RoundId
from fedrec.wire.limits import (
    MAX_CONTRIBUTIONS,
    MAX_METRICS_BYTES,
    MAX_REASON_CHARS,
    MAX_REPORTS,
    MAX_ROWS,
    MAX_STEP_BYTES,
    NONCE_BYTES,
    RoundKind,
    check_bytes,
    check_client_id,
    check_count,
    check_exact,
    check_kind,
    check_number,
    check_paused,
    check_round,
    check_seconds,
    check_step,
    check_text,
    check_version,
)

MAX_DOCUMENT_BYTES = 1024 * 1024
MAX_PART_BYTES = 4 * 1024 * 1024


def _exactly(*lengths: int) -> Callable[[bytes, str], bytes]:
    return lambda value, field: check_exact(value, field, *lengths)


def _one_line(reason: str) -> str:
    return "".join(c if c.isprintable() else " " for c in reason[:MAX_REASON_CHARS])


def check_contributions(headers: Sequence[Any], field: str) -> Sequence[Any]:
    """Return a round's list of contributions, in which no client appears twice."""
    check_count(len(headers), field, maximum=MAX_CONTRIBUTIONS)
    if len({header.client_id for header in headers}) < len(headers):
        raise ProtocolError(f"{field} names a client twice.")
    return headers


def check_reports(reports: Sequence[Any], field: str) -> Sequence[Any]:
    """Return the reports that vouch for a copy of the model."""
    check_count(len(reports), field, maximum=MAX_REPORTS)
    return reports


def behind_it(value: bytes, field: str) -> bytes:
    """Mark bytes that follow the message in chunks: the message itself has their `Blob`."""
    return value


Version = Annotated[str, check_version]
Name = Annotated[str, check_text]
Refusal = Annotated[str, partial(check_text, max_chars=MAX_REASON_CHARS, empty=True)]
Reason = Annotated[Refusal, _one_line]
"""For people: longer than a name, and cut to what the other side accepts."""
StepName = Annotated[str, check_step]
Kind = Annotated[RoundKind, check_kind]
Client = Annotated[ClientId, check_client_id]
Round = Annotated[RoundId, check_round]
Number = Annotated[int, check_number]
RowCount = Annotated[int, partial(check_number, maximum=MAX_ROWS)]
Seconds = Annotated[float, check_seconds]
Digest = Annotated[bytes, _exactly(32)]
MaybeDigest = Annotated[bytes, _exactly(0, 32)]
Nonce = Annotated[bytes, _exactly(0, NONCE_BYTES)]
Signature = Annotated[bytes, _exactly(0, 64)]
"""Ed25519, 64 bytes; empty while unsigned. Nothing here verifies it."""
Metrics = Annotated[bytes, partial(check_bytes, max_bytes=MAX_METRICS_BYTES)]
Document = Annotated[bytes, partial(check_bytes, max_bytes=MAX_DOCUMENT_BYTES)]
DocumentPart = Annotated[bytes, partial(check_bytes, max_bytes=MAX_PART_BYTES)]
StepBody = Annotated[bytes, partial(check_bytes, max_bytes=MAX_STEP_BYTES)]
Cells = Annotated[tuple[int, ...], check_paused]
BehindIt = Annotated[bytes, behind_it]
