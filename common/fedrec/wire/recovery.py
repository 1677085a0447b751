"""The key authority's file from which a coordinator rebuilds a lost folder.

The operator carries it. The coordinator can only read what it knew before: the sum and the model
are sealed under the group key of their epoch, as on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedrec.identity.document import Document, JsonValue, encode_bytes, write_document
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.public import PublicIdentity
from fedrec.identity.roster import Roster
from fedrec.wire.convert import STATEMENT, Codec
from fedrec.wire.fields import check_contributions
from fedrec.wire.messages import RevealStatement, UploadHeader
from fedrec.wire.v1 import model_pb2

KIND = "fedrec recovery"
MAX_BYTES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class _Headers:
    """The headers of a round's updates, without their payloads."""

    contributions: Annotated[tuple[UploadHeader, ...], check_contributions]


_HEADERS = Codec(_Headers, model_pb2.Published, "recovery")


def pack_headers(headers: tuple[UploadHeader, ...]) -> bytes:
    """Return upload headers as bytes."""
    return _HEADERS.to_bytes(_Headers(contributions=headers))


def unpack_headers(raw: bytes) -> tuple[UploadHeader, ...]:
    """Read bytes from `pack_headers`. No signature is verified.

    Raises:
        ProtocolError: the bytes are not such headers.
    """
    return _HEADERS.from_bytes(raw).contributions


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPoint:
    """The state of a run, as the key authority knows it.

    Attributes:
        run: the run's name.
        keys: the newest key epoch.
        statement: the statement on the last opened round, or None.
        head: the last statement of all, which may be a refusal.
        contributions: the headers of the updates in that round's sum, or empty if they are unknown.
        sealed: the round's sealed sum, or empty if it is unknown.
        model: the sealed model after it, or empty if members must send a snapshot.
        former: rosters that name an earlier revealer, newest first.
    """

    run: str
    keys: KeyEpoch
    statement: RevealStatement | None = None
    head: RevealStatement | None = None
    contributions: tuple[UploadHeader, ...] = ()
    sealed: bytes = b""
    model: bytes = b""
    former: tuple[Roster, ...] = ()

    @property
    def revealers(self) -> tuple[PublicIdentity, ...]:
        """Return the parties that signed statements, the current one first."""
        rosters = (self.keys.roster, *self.former)
        return tuple(roster.revealer for roster in rosters if roster.revealer is not None)

    def to_bytes(self) -> bytes:
        """Return the canonical JSON."""
        fields: dict[str, JsonValue] = {
            "run": self.run,
            "keys": self.keys.to_json().decode("ascii"),
            "statement": _written(self.statement),
            "head": _written(self.head),
            "contributions": encode_bytes(pack_headers(self.contributions)),
            "sealed": encode_bytes(self.sealed),
            "model": encode_bytes(self.model),
            "former": [{"roster": roster.to_json().decode("ascii")} for roster in self.former],
        }
        return write_document(KIND, fields)

    @classmethod
    def from_bytes(cls, raw: bytes, name: str) -> RecoveryPoint:
        """Read bytes from `to_bytes`. The statements' signatures are not verified.

        Args:
            name: the file's name, for errors.

        Raises:
            FedrecError: the bytes are damaged, or not a recovery point.
        """
        document = Document.parse(raw, KIND, name)
        keys = KeyEpoch.from_json(document.json_text("keys").encode())
        former = document.objects("former")
        found = cls(
            run=document.text("run"),
            keys=keys,
            statement=_read(document.raw("statement")),
            head=_read(document.raw("head")),
            contributions=unpack_headers(document.raw("contributions")),
            sealed=document.raw("sealed"),
            model=document.raw("model"),
            former=tuple(Roster.from_json(one.json_text("roster").encode()) for one in former),
        )
        document.finish()
        for roster in found.former:
            roster.verify(keys.roster.authority_key)
        return found


def _written(statement: RevealStatement | None) -> str:
    return "" if statement is None else encode_bytes(STATEMENT.to_bytes(statement))


def _read(raw: bytes) -> RevealStatement | None:
    return STATEMENT.from_bytes(raw) if raw else None
