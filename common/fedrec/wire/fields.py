"""Kinds of message fields: a type, and the check that a received value must pass.

A field's kind is an `Annotated` type. After the type comes the check, a function of the value and
the field's name that returns the value. A kind may also have a function that adapts our own value
for the receiver before it is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_args

from fedrec.errors import ProtocolError, TooLarge, VersionMismatch
from fedrec.ids import ClientId, RoundId

PROTOCOL_VERSION = "8.0"
"""Peers with another major number are refused."""

RoundKind = Literal["count", "train", "evaluate"]

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Limit of one gRPC message in either direction. gRPC refuses longer ones before it reads them."""
MAX_TEXT_CHARS = 200
MAX_REASON_CHARS = 2_000
MAX_CONTRIBUTIONS = 10_000
MAX_REPORTS = 16
MAX_REFUSED = 8
"""Number of snapshots that a client may refuse before it gives up."""
MAX_METRICS_BYTES = 64 * 1024
MAX_PAUSED = 16
"""Limit of paused cells in one key epoch. Each pause reveals a little of the authority's key."""
MAX_STEP_BYTES = 2 * 1024 * 1024
"""More than the shares of a client with 10,000 neighbours."""
MAX_NUMBER = 2**53
NONCE_BYTES = 16
DIGEST_BYTES = 32
MAX_ROUND = 2**31 - 1
MAX_ROWS = 2**31 - 1
MAX_SECONDS = 1e9

CLIENT_ID = re.compile(r"[0-9a-f]{64}")
STEP = re.compile(r"[a-z_]{1,32}")
CODE = re.compile(r"[a-z_]{1,40}")
VERSION = re.compile(r"([0-9]{1,9})\.[0-9]{1,9}")


def check_text(
    value: str, field: str, *, max_chars: int = MAX_TEXT_CHARS, empty: bool = False
) -> str:
    """Return a printable string that is not too long.

    Raises:
        TooLarge: when it is longer than `max_chars`.
        ProtocolError: when it is empty and must not be, or has control characters.
    """
    if len(value) > max_chars:
        raise TooLarge(f"{field} has {len(value)} characters, but at most {max_chars} are allowed.")
    if not value and not empty:
        raise ProtocolError(f"{field} is empty.")
    if not value.isprintable():
        raise ProtocolError(f"{field} has unprintable characters.")
    return value


def check_bytes(value: bytes, field: str, *, max_bytes: int) -> bytes:
    """Return bytes that are not too long."""
    if len(value) > max_bytes:
        raise TooLarge(f"{field} has {len(value)} bytes, but at most {max_bytes} are allowed.")
    return value


def check_exact(value: bytes, field: str, *lengths: int) -> bytes:
    """Return bytes whose length is one of `lengths`."""
    if len(value) not in lengths:
        expected = " or ".join(str(length) for length in lengths)
        raise ProtocolError(f"{field} has {len(value)} bytes, expected {expected}.")
    return value


def check_client_id(value: str, field: str) -> ClientId:
    """Return a client id: 64 lower-case hexadecimal characters."""
    if not CLIENT_ID.fullmatch(value):
        raise ProtocolError(f"{field} is not a client id of 64 hexadecimal characters.")
    return ClientId(value)


def check_number(value: int, field: str, *, maximum: int = MAX_NUMBER) -> int:
    """Return a number between 0 and `maximum`.

    Raises:
        ProtocolError: it is outside this range. No limit of an honest peer causes this.
    """
    if not 0 <= value <= maximum:
        raise ProtocolError(f"{field} is {value}, expected 0 to {maximum}.")
    return value


def check_round(value: int, field: str) -> RoundId:
    """Return the number of a round or version."""
    return RoundId(check_number(value, field, maximum=MAX_ROUND))


def check_count(count: int, field: str, *, maximum: int) -> None:
    """Refuse a list of more than `maximum` entries."""
    if count > maximum:
        raise TooLarge(f"{field} has {count} entries, but at most {maximum} are allowed.")


def check_refused(digests: Iterable[bytes], field: str) -> frozenset[bytes]:
    """Return the digests of snapshots that a client refused."""
    found = list(digests)
    check_count(len(found), field, maximum=MAX_REFUSED)
    return frozenset(check_exact(digest, field, 32) for digest in found)


def check_paused(cells: Iterable[int], field: str) -> tuple[int, ...]:
    """Return the numbers of paused cells, in ascending order."""
    found = tuple(cells)
    check_count(len(found), field, maximum=MAX_PAUSED)
    if found != tuple(sorted(set(found))) or not all(found):
        raise ProtocolError(f"{field} is not a list of cells in ascending order.")
    return found


def check_seconds(value: float, field: str) -> float:
    """Return a finite duration that is not negative."""
    if not (math.isfinite(value) and 0 <= value <= MAX_SECONDS):
        raise ProtocolError(f"{field} is {value}, expected seconds from 0 to {MAX_SECONDS:.0f}.")
    return value


def check_kind(value: str, field: str) -> RoundKind:
    """Return the kind of a round."""
    kinds: tuple[RoundKind, ...] = get_args(RoundKind)
    for kind in kinds:
        if kind == value:
            return kind
    raise ProtocolError(f"{field} is {value[:20]!r}, expected one of {', '.join(kinds)}.")


def check_step(value: str, field: str) -> str:
    """Return the name of a step. The protection decides whether a round has it."""
    if not STEP.fullmatch(value):
        raise ProtocolError(f"{field} is {value[:20]!r}, expected the name of a step.")
    return value


def check_code(value: str, field: str) -> str:
    """Return an error's code, even of a later release, or an empty string."""
    if value and not CODE.fullmatch(value):
        raise ProtocolError(f"{field} is {value[:20]!r}, expected the code of an error.")
    return value


def check_version(value: str, field: str, *, here: str = "this fedrec") -> str:
    """Return a protocol version that has our major number.

    Args:
        here: the party with our version, for the error.

    Raises:
        ProtocolError: when it is not a version.
        VersionMismatch: when the peer has another major version.
    """
    found = VERSION.fullmatch(value)
    if not found:
        raise ProtocolError(f"{field} is {value[:20]!r}, expected a version such as 1.0.")
    if int(found[1]) != int(PROTOCOL_VERSION.partition(".")[0]):
        raise VersionMismatch(
            f"{field} is {value}, {here} speaks {PROTOCOL_VERSION}.",
            remedy="Install the same fedrec version on both sides.",
        )
    return value


MAX_DOCUMENT_BYTES = 1024 * 1024
MAX_PART_BYTES = 4 * 1024 * 1024


def _exactly(*lengths: int) -> Callable[[bytes, str], bytes]:
    return lambda value, field: check_exact(value, field, *lengths)


def _one_line(reason: str) -> str:
    return "".join(c if c.isprintable() else " " for c in reason[:MAX_REASON_CHARS])


def check_contributions(headers: Sequence[Any], field: str) -> Sequence[Any]:
    """Return a round's contributions, in which no client appears twice."""
    check_count(len(headers), field, maximum=MAX_CONTRIBUTIONS)
    if len({header.client_id for header in headers}) < len(headers):
        raise ProtocolError(f"{field} names a client twice.")
    return headers


def check_reports(reports: Sequence[Any], field: str) -> Sequence[Any]:
    """Return the reports that confirm a snapshot."""
    check_count(len(reports), field, maximum=MAX_REPORTS)
    return reports


def behind_it(value: bytes, field: str) -> bytes:
    """Mark bytes that follow the message in chunks. The message itself has their `Blob`."""
    return value


Version = Annotated[str, check_version]
Name = Annotated[str, check_text]
Refusal = Annotated[str, partial(check_text, max_chars=MAX_REASON_CHARS, empty=True)]
Reason = Annotated[Refusal, _one_line]
"""Text for people: longer than a name, and cut to the limit of the receiver."""
StepName = Annotated[str, check_step]
Kind = Annotated[RoundKind, check_kind]
Client = Annotated[ClientId, check_client_id]
Round = Annotated[RoundId, check_round]
Number = Annotated[int, check_number]
RowCount = Annotated[int, partial(check_number, maximum=MAX_ROWS)]
Seconds = Annotated[float, check_seconds]
Digest = Annotated[bytes, _exactly(DIGEST_BYTES)]
MaybeDigest = Annotated[bytes, _exactly(0, DIGEST_BYTES)]
Nonce = Annotated[bytes, _exactly(0, NONCE_BYTES)]
Signature = Annotated[bytes, _exactly(0, 64)]
"""Ed25519, 64 bytes, or empty while unsigned. Nothing here verifies it."""
WholeSignature = Annotated[bytes, _exactly(64)]
Metrics = Annotated[bytes, partial(check_bytes, max_bytes=MAX_METRICS_BYTES)]
Document = Annotated[bytes, partial(check_bytes, max_bytes=MAX_DOCUMENT_BYTES)]
DocumentPart = Annotated[bytes, partial(check_bytes, max_bytes=MAX_PART_BYTES)]
StepBody = Annotated[bytes, partial(check_bytes, max_bytes=MAX_STEP_BYTES)]
Cells = Annotated[tuple[int, ...], check_paused]
BehindIt = Annotated[bytes, behind_it]


UNSAID = bytes(32)
"""Replaces a digest that a statement does not give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRows:
    """The item rows that vectors cover, for parties that must not know the list itself.

    Attributes:
        n_rows: the number of rows, including the padding of zeros, or 0 if nothing is trained.
        digest: 32 bytes, the digest of the list of their items. It is keyed by the group key if the
            coordinator must not be able to confirm a guess. `UNSAID` if every item has a row.
    """

    n_rows: int
    digest: bytes

    @classmethod
    def whole(cls, n_items: int) -> StatedRows:
        """Return the rows of vectors that cover the whole catalogue."""
        return cls(n_rows=n_items, digest=UNSAID)
