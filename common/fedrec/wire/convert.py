"""Convert messages to protocol buffers and back, and check every received field.

A message's dataclass defines the values that each field may have (`fedrec.wire.fields`). The
protocol buffer has fields of the same names. A `Codec` combines the two. Bytes that travel in
chunks behind a message are announced in it, and passed to `from_proto` once they are assembled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, Message

from fedrec.errors import ProtocolError
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import behind_it
from fedrec.wire.messages import (
    Application,
    FederationInfo,
    Finished,
    Latest,
    MakeSnapshot,
    PublishedRound,
    Remembered,
    Report,
    Reveal,
    RevealStatement,
    Snapshot,
    StepMessage,
    StepTask,
    Task,
    Train,
    UploadHeader,
    UploadStatus,
    Wait,
)
from fedrec.wire.v1 import coordinator_pb2, masks_pb2, model_pb2, update_pb2

Plain = TypeVar("Plain")
Proto = TypeVar("Proto", bound=Message)


@dataclass(frozen=True, slots=True)
class _Field:
    """The conversion of one field.

    Attributes:
        read: returns the checked value, given the protocol buffer and the field's full name.
        write: returns the protocol buffer's field name and value.
    """

    read: Callable[[Any, str], Any]
    write: Callable[[Any], tuple[str, Any]]


class Codec(Generic[Plain, Proto]):
    """Writes one kind of message as a protocol buffer, and reads it.

    Args:
        plain: the dataclass. A field has a kind of `fedrec.wire.fields`, is a bool, or consists of
            messages with a codec: one, at most one, several, or one of several kinds.
        proto: the protocol buffer, with a field for each of the dataclass, by name.
        name: the message's name in errors.
    """

    def __init__(self, plain: type[Plain], proto: type[Proto], name: str) -> None:
        self._plain = plain
        self.proto = proto
        self._name = name
        _CODECS[plain] = self
        hints = get_type_hints(plain, include_extras=True)
        self._fields = {
            field.name: _field(field.name, hints[field.name], proto)
            for field in fields(plain)  # type: ignore[arg-type]  # a dataclass
            if field.init
        }

    def to_proto(self, value: Plain) -> Proto:
        """Write a message. Bytes that travel behind it are only announced."""
        found = (field.write(getattr(value, name)) for name, field in self._fields.items())
        message: Proto = self.proto(**dict(found))
        return message

    def from_proto(self, message: Proto, name: str = "", **behind: bytes) -> Plain:
        """Read a message. No signature is verified.

        Args:
            name: its name in errors, by default the codec's name.
            behind: the assembled bytes that travelled behind it, by field.

        Raises:
            ProtocolError: a field has an invalid value. The error names the field.
            VersionMismatch: the peer has a different major version.
        """
        name = name or self._name
        found = {
            key: behind[key] if key in behind else field.read(message, f"{name}.{key}")
            for key, field in self._fields.items()
        }
        return self._plain(**found)

    def to_bytes(self, value: Plain) -> bytes:
        """Write a message as bytes, which are the same for equal messages."""
        return bytes(self.to_proto(value).SerializeToString(deterministic=True))

    def from_bytes(self, raw: bytes) -> Plain:
        """Read bytes from `to_bytes`. See `from_proto`."""
        try:
            message = self.proto.FromString(raw)
        except DecodeError:
            raise ProtocolError(f"The bytes are not a message {self._name!r}.") from None
        return self.from_proto(message)


_CODECS: dict[type[Any], Codec[Any, Any]] = {}


def _field(name: str, hint: Any, proto: type[Message]) -> _Field:
    base, *rules = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    check, fit = (*rules, _unchanged, _unchanged)[:2] if rules else (_as_it_is, _unchanged)
    if check is behind_it:
        return _Field(read=_missing, write=lambda value: (name, BLOB.to_proto(Blob.of(value))))
    kinds = [kind for kind in get_args(base) or (base,) if kind in _CODECS]
    if not kinds:
        if not rules and base is not bool:
            raise TypeError(f"{proto.DESCRIPTOR.name}.{name} has no check.")
        return _Field(
            read=lambda message, label: check(getattr(message, name), label),
            write=lambda value: (name, fit(value)),
        )
    if len(kinds) > 1:
        return _one_of(name, kinds, proto)
    codec = _CODECS[kinds[0]]
    if get_origin(base) is tuple:
        return _Field(
            read=lambda message, label: tuple(
                codec.from_proto(one, label) for one in check(getattr(message, name), label)
            ),
            write=lambda value: (name, [codec.to_proto(one) for one in value]),
        )
    optional = get_origin(base) in (Union, UnionType)
    return _Field(
        read=lambda message, label: (
            None
            if optional and not message.HasField(name)
            else codec.from_proto(getattr(message, name), label)
        ),
        write=lambda value: (name, None if value is None else codec.to_proto(value)),
    )


def _one_of(name: str, kinds: list[type[Any]], proto: type[Message]) -> _Field:
    """Return a field with one of several messages, which is a `oneof` of the same name."""
    by_proto = {_CODECS[kind].proto.DESCRIPTOR.name: kind for kind in kinds}
    members: Mapping[str, type[Any]] = {
        member.name: by_proto[member.message_type.name]
        for member in proto.DESCRIPTOR.oneofs_by_name[name].fields
    }
    names = {kind: member for member, kind in members.items()}

    def read(message: Any, label: str) -> Any:
        member = message.WhichOneof(name)
        if member is None:
            raise ProtocolError(f"{label} is of a kind that this version does not know.")
        return _CODECS[members[member]].from_proto(getattr(message, member), f"{label}.{member}")

    return _Field(
        read=read, write=lambda value: (names[type(value)], _CODECS[type(value)].to_proto(value))
    )


def _unchanged(value: Any) -> Any:
    return value


def _as_it_is(value: Any, field: str) -> Any:
    return value


def _missing(message: Any, field: str) -> Any:
    raise TypeError(f"{field} travels behind its message, so pass the assembled bytes.")


BLOB = Codec(Blob, update_pb2.BlobHeader, "blob")
UPLOAD_HEADER = Codec(UploadHeader, update_pb2.UploadHeader, "header")
STATEMENT = Codec(RevealStatement, model_pb2.RevealStatement, "statement")
REPORT = Codec(Report, model_pb2.Report, "report")
FEDERATION = Codec(FederationInfo, coordinator_pb2.Federation, "federation")
UPLOAD_STATUS = Codec(UploadStatus, coordinator_pb2.UploadStatus, "upload_status")
PUBLISHED = Codec(PublishedRound, model_pb2.Published, "published")
SNAPSHOT = Codec(Snapshot, model_pb2.Snapshot, "snapshot")
APPLICATION = Codec(Application, coordinator_pb2.Application, "application")
STEP_MESSAGE = Codec(StepMessage, masks_pb2.MaskMessage, "masks")
Codec(Wait, coordinator_pb2.Wait, "wait")
Codec(Train, coordinator_pb2.Train, "train")
Codec(StepTask, masks_pb2.MaskTask, "masks")
Codec(Reveal, coordinator_pb2.Reveal, "reveal")
Codec(MakeSnapshot, coordinator_pb2.MakeSnapshot, "make_snapshot")
Codec(Finished, coordinator_pb2.Finished, "finished")
Codec(Latest, coordinator_pb2.Latest, "latest")
TASK = Codec(Task, coordinator_pb2.Task, "task")
REMEMBERED = Codec(Remembered, coordinator_pb2.NextTaskRequest, "request")
