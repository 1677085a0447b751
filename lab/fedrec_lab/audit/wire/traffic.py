"""The traffic on the wire, taken apart message by message and counted."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from blake3 import blake3
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

import fedrec.wire.v1
from fedrec.errors import MalformedUpdate
from fedrec.identity.epoch_secrets import secrets_parts
from fedrec.wire.recording import Frame, FrameReader
from fedrec_lab.audit.wire.declared import BLOBS, FIELDS, KINDS, undeclared_event_keys
from fedrec_lab.audit.wire.known import EpochTally, Known
from fedrec_lab.audit.wire.reading import BlobReading, BlobTally, FieldTally
from fedrec_lab.audit.wire.truth import Search

__all__ = [
    "Leaf",
    "Value",
    "leaves",
    "parse",
]

Value = bytes | str | int | float
"""The value of a single field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value of a message.

    Attributes:
        name: `Message.field`, or `Message.<field 99>` if the descriptor does not know it.
        top: the field of the outermost message that contains it, or empty for that message's own.
    """

    name: str
    value: Value
    top: str = ""


def parse(method: str, *, is_request: bool, raw: bytes) -> Any | None:
    """Return the message of a call, or None if the method is unknown or the bytes are damaged.

    Args:
        method: gRPC's name of the method, such as `/package.Service/Method`.
    """
    kinds = _methods().get(method)
    if kinds is None:
        return None
    try:
        return kinds[0 if is_request else 1].FromString(raw)
    except DecodeError:
        return None


def leaves(message: Any, top: str = "") -> Iterator[Leaf]:
    """Yield every value in a message at any depth, and every field that it should not have."""
    name = message.DESCRIPTOR.name
    for own, value in message.ListFields():
        for one in value if own.is_repeated else (value,):
            if own.message_type is None:
                yield Leaf(name=f"{name}.{own.name}", value=one, top=top)
            else:
                yield from leaves(one, top or own.name)
    for unknown in UnknownFieldSet(message):
        data = unknown.data
        known: Value = data if isinstance(data, (bytes, int)) else str(data)
        yield Leaf(name=f"{name}.<field {unknown.field_number}>", value=known, top=top)


@cache
def _methods() -> dict[str, tuple[Any, Any]]:
    """Return the classes of requests and responses, by method."""
    return {
        f"/{service.full_name}/{method.name}": (
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for file in _files()
        for service in file.services_by_name.values()
        for method in service.methods
    }


def _files() -> list[Any]:
    """Return the descriptors of all files of the protocol."""
    path = fedrec.wire.v1.__path__
    names = [entry.name for entry in pkgutil.iter_modules(path) if entry.name.endswith("_pb2")]
    return [importlib.import_module(f"fedrec.wire.v1.{name}").DESCRIPTOR for name in names]


_CALLERS = frozenset(
    name for name, kind in FIELDS.items() if kind == "identity" and name.endswith(".client_id")
)
_MOST_OPEN = 10_000
"""The maximum number of calls in progress.

Recordings do not mark the end of a call, so older calls count as ended.
"""
_WORTH_A_MARK = 4096
_MOST_SEARCHED = 1_000_000
_CUT = "a stream that was cut"
_MOST_EPOCHS = 1000
"""The maximum number of client names. Strangers may invent any number, and further ones are not
distinguished.
"""


@dataclass(frozen=True, slots=True, order=True)
class FieldKey:
    """The place where a field was seen.

    Attributes:
        epoch: the key epoch of its message if every epoch has its own value, or 0.
    """

    method: str
    direction: str
    name: str
    epoch: int = 0


@dataclass(frozen=True, slots=True, order=True)
class BlobKey:
    """The place where blobs were seen."""

    method: str
    direction: str


@dataclass(slots=True, eq=False)
class _Call:
    """A call in progress: its caller, its key epoch, and the stream that it carries."""

    client: str = ""
    epoch: int = 0
    announced: int | None = None
    first: int = 0
    stream: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Traffic:
    """The content of recordings.

    Attributes:
        known: the coordinator's side.
        search: the data owners' side, or None if there is no such data.
        fields, blobs: the counts.
        problems: sentences about broken promises that are not about one field.
        unreadable: messages that are not part of the protocol, by method.
        calls: the number of calls by client. Callers without a name have the empty one.
        sent, received: the bytes of each client's messages.
        wrapped: bytes sealed to single members, by field.
        epochs: the traffic that names a key epoch, by epoch.
        truncated, limited: the number of recordings that end within a message, or at their size
            limit.
    """

    known: Known
    search: Search | None = None
    fields: dict[FieldKey, FieldTally] = field(default_factory=dict)
    blobs: dict[BlobKey, BlobTally] = field(default_factory=dict)
    sizes: dict[BlobKey, FieldTally] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    wrapped: dict[FieldKey, BlobTally] = field(default_factory=dict)
    epochs: dict[int, EpochTally] = field(default_factory=dict)
    messages: int = 0
    n_bytes: int = 0
    truncated: int = 0
    limited: int = 0
    _open: dict[int, dict[str, _Call]] = field(default_factory=dict)
    _searched: set[bytes] = field(default_factory=set)
    _uploads: dict[tuple[str, int, bytes], _Call] = field(default_factory=dict)

    def read(self, recording: FrameReader) -> None:
        """Read one recording."""
        self._open, self._uploads = {}, {}
        for frame in recording:
            self._take(frame)
        for number in list(self._open):
            self._end(number)
        for call in self._uploads.values():
            self._keep_blob(BlobKey("SubmitUpdate", "request"), call)
        self.truncated += recording.truncated
        self.limited += recording.limited

    def _take(self, frame: Frame) -> None:
        self.messages += 1
        self.n_bytes += len(frame.message)
        method = frame.method.rpartition("/")[2]
        message = parse(frame.method, is_request=frame.kind == "request", raw=frame.message)
        sides = self._open.setdefault(frame.call, {})
        if len(self._open) > _MOST_OPEN:
            self._end(next(iter(self._open)))
        call = sides.setdefault(frame.kind, _Call())
        if message is None:
            self.unreadable[method] += 1
            self._look(frame.message, f"{method} {frame.kind}")
            return
        if frame.kind == "response":
            call.client = sides.get("request", call).client
        found = list(leaves(message))
        if frame.kind == "request" and not call.client:
            names = [leaf.value for leaf in found if leaf.name in _CALLERS]
            call.client = str(names[0]) if names else ""
            self.calls[call.client] += 1
        (self.sent if frame.kind == "request" else self.received)[call.client] += len(frame.message)
        self._note_epochs(frame, found, call)
        if message.DESCRIPTOR.name == "Federation":
            self._judge_federation(message, method)
        for leaf in found:
            kind = KINDS.get(FIELDS.get(leaf.name, ""))
            epoch = call.epoch if kind is not None and kind.of_epoch else 0
            self._count(FieldKey(method, frame.kind, leaf.name, epoch), leaf, call)
        if not self._was_searched(found):
            self._look(frame.message, f"{method} {frame.kind}")
        self._follow(method, frame, message, call)

    def _note_epochs(self, frame: Frame, found: list[Leaf], call: _Call) -> None:
        """Count a message for the key epochs that it names.

        The first one is the call's from now on.
        """
        named = [int(leaf.value) for leaf in found if leaf.name.endswith(".epoch")]
        for epoch in dict.fromkeys(named):
            self._epoch(epoch).messages += 1
        if not named:
            return
        call.epoch = named[0]
        is_member = self.known.epochs.lists(call.epoch, call.client)
        if frame.kind == "request" and call.client and not is_member:
            self._epoch(call.epoch).outsiders += 1

    def _epoch(self, number: int) -> EpochTally:
        if number not in self.epochs and len(self.epochs) >= _MOST_EPOCHS:
            return EpochTally()
        return self.epochs.setdefault(number, EpochTally())

    def _judge_federation(self, message: Any, method: str) -> None:
        """Compare a client's federation data with the key epoch that it names."""
        epochs, epoch = self.known.epochs, int(message.epoch)
        roster = epochs.roster_problem(epoch, message.roster_json) if message.roster_json else ""
        if roster:
            self.problems[f"Federation.roster_json in {method} {roster}."] += 1
        context = epochs.context_problem(epoch, message.server_context)
        if context:
            self.problems[f"Federation.server_context in {method} {context}."] += 1

    def _judge_bundle(self, blob: bytes) -> None:
        """Check a bundle from the authority."""
        problem = self.known.epochs.learn(blob)
        if problem:
            self.problems[f"InstallEpoch has a bundle for a different federation: {problem}"] += 1

    def _count(self, key: FieldKey, leaf: Leaf, call: _Call) -> None:
        if leaf.name == "Chunk.data":
            return
        self.fields.setdefault(key, FieldTally()).add(leaf.value, call.client)
        if isinstance(leaf.value, str) and self.search is not None:
            self.search.look_at_text(leaf.value, f"{key.method} {key.direction}: {leaf.name}")
        if FIELDS.get(leaf.name) == "wrapped key" and isinstance(leaf.value, bytes) and leaf.value:
            tally = self.wrapped.setdefault(key, BlobTally())
            for part in _sealed_parts(leaf.value):
                tally.add(part, call.client, self.known.reader)
        if leaf.name == "Federation.server_context" and isinstance(leaf.value, bytes):
            problem = self.known.context_problem(leaf.value)
            if problem:
                self.problems[f"{leaf.name} in {key.method}: {problem}"] += 1
        if leaf.name == "Federation.plan_json" and leaf.value not in self.known.public:
            self.problems[f"{leaf.name} is not the coordinator's public file, byte for byte."] += 1
        if leaf.name == "Event.fields_json":
            foreign = undeclared_event_keys(str(leaf.value))
            if foreign:
                self.problems[f"{leaf.name} has keys that are not declared: {foreign}."] += 1

    def _follow(self, method: str, frame: Frame, message: Any, call: _Call) -> None:
        """Assemble the chunks of a stream."""
        name = message.DESCRIPTOR.name
        if name == "UploadPart" and message.HasField("header"):
            # An interrupted upload resumes in another call.
            header = message.header
            planned = self.known.planned_for(str(header.kind), int(header.n_rows))
            if header.length not in planned:
                most = self.known.protection.chosen.message_bytes
                self.problems[
                    f"{header.client_id[:16]} announced an update of {header.length} bytes, but "
                    f"the plan's have {max(planned, default=most)}."
                ] += 1
            key = (str(header.client_id), int(header.round), bytes(header.digest))
            earlier = self._uploads.setdefault(key, call)
            if earlier is not call:
                self._open[frame.call][frame.kind] = earlier
            earlier.announced = int(header.length)
            return
        announced = _announced(message)
        if announced is not None:
            call.announced = announced
        if "chunk" not in message.DESCRIPTOR.fields_by_name or not message.HasField("chunk"):
            return
        offset, data = int(message.chunk.offset), bytes(message.chunk.data)
        if not call.stream:
            call.first = offset
        if call.first <= offset <= call.first + len(call.stream):
            # A client resumes from the durable bytes, which may be fewer than the received ones.
            del call.stream[offset - call.first :]
            call.stream += data
        if len(call.stream) == call.announced:
            self._keep_blob(BlobKey(method, frame.kind), call)
            self._uploads = {k: v for k, v in self._uploads.items() if v is not call}

    def _end(self, number: int) -> None:
        """Take the rest of a call whose stream was cut."""
        for kind, call in self._open.pop(number).items():
            if call.stream and call not in self._uploads.values():
                self._keep_blob(BlobKey(_CUT, kind), call)

    def _keep_blob(self, key: BlobKey, call: _Call) -> None:
        if not call.stream:
            return
        blob = bytes(call.stream)
        call.stream.clear()
        whole = len(blob) == call.announced
        if whole and BLOBS.get(key.method) == "epoch bundle":
            self._judge_bundle(blob)
        found = self.add_blob(key, blob, call.client, whole=whole)
        if found is not None and BLOBS.get(key.method) == "update" and key.direction == "request":
            epoch = self._epoch(call.epoch)
            epoch.updates += 1
            epoch.readable_updates += found.is_readable
            epoch.readable_values += found.values

    def add_blob(
        self, key: BlobKey, blob: bytes, client: str, *, whole: bool = True
    ) -> BlobReading | None:
        """Try to read a blob, and count it. Return what it revealed, unless it is public."""
        found = None
        tally = self.blobs.setdefault(key, BlobTally())
        tally.incomplete += not whole
        if BLOBS.get(key.method) == "public":
            if blob not in self.known.public:
                self.problems[f"The catalogue of {key.method} is not the coordinator's file."] += 1
            tally.blobs += 1
        else:
            sent = BLOBS.get(key.method) == "update" and key.direction == "request"
            found = tally.add(blob, client, self.known.reader, sent=sent)
        if whole:
            sizes = self.sizes.setdefault(key, FieldTally())
            sizes.add_blob(len(blob), blake3(blob).digest(), client)
        return found

    def _was_searched(self, found: list[Leaf]) -> bool:
        """Return whether a message is a repeated chunk: key holders fetch what was sent."""
        chunk = next((leaf.value for leaf in found if leaf.name == "Chunk.data"), b"")
        if self.search is None or not isinstance(chunk, bytes) or len(chunk) < _WORTH_A_MARK:
            return False
        mark = blake3(chunk).digest()[:16]
        known = mark in self._searched
        if len(self._searched) < _MOST_SEARCHED:
            self._searched.add(mark)
        return known

    def _look(self, data: bytes, where: str) -> None:
        if self.search is not None:
            self.search.look(data, where)


def _announced(message: Any) -> int | None:
    """Return the length that a message announces for the following chunks."""
    for field_, value in message.ListFields():
        if field_.message_type is None or field_.is_repeated:
            continue
        if field_.message_type.name == "BlobHeader":
            return int(value.length)
        nested = _announced(value)
        if nested is not None:
            return nested
    return None


def _sealed_parts(value: bytes) -> tuple[bytes, ...]:
    """Return the sealed parts. One part is the same for all members and counts only once."""
    try:
        return secrets_parts(value)
    except MalformedUpdate:
        return (value,)
