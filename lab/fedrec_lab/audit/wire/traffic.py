"""What passes on the wire, message by message, counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal

from blake3 import blake3

from fedrec.errors import MalformedUpdate
from fedrec.identity.epoch_secrets import secrets_parts
from fedrec.wire.recording import Frame, FrameReader
from fedrec_lab.audit.wire.declared import BLOBS, FIELDS, KINDS, undeclared_event_keys
from fedrec_lab.audit.wire.epochs import EpochTally
from fedrec_lab.audit.wire.known import Known
from fedrec_lab.audit.wire.messages import Leaf, Value, leaves, parse
from fedrec_lab.audit.wire.reading import BlobReading, BlobTally
from fedrec_lab.audit.wire.truth import Search

Lengths = Literal["number", "one", "several", "by client"]
"""What the lengths of a field's values are like; those of numbers are not looked at."""

_MOST_DISTINCT = 10_000
_MARK_BYTES = 8


@dataclass(slots=True)
class FieldTally:
    """Counts of one field in one direction of one method, or of one column.

    Attributes:
        messages: values that were seen.
        n_bytes: their lengths together; a number counts as 8.
    """

    messages: int = 0
    n_bytes: int = 0
    _marks: set[bytes] = field(default_factory=set)
    _lengths: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _is_number: bool = True

    def add(self, value: Value, client: str) -> None:
        """Count one value that came from or went to a client."""
        self.messages += 1
        if isinstance(value, (int, float)):
            self.n_bytes += 8
            self._mark(str(value).encode())
            return
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        self.n_bytes += len(raw)
        self._is_number = False
        self._mark(raw)
        if len(self._lengths) < _MOST_DISTINCT:
            self._lengths[client].add(len(raw))

    def add_blob(self, n_bytes: int, mark: bytes, client: str) -> None:
        """Count a stream of chunks as one value."""
        self.messages += 1
        self.n_bytes += n_bytes
        self._is_number = False
        self._mark(mark)
        self._lengths[client].add(n_bytes)

    @property
    def distinct(self) -> int:
        """How many different values were seen, at most 10,000 are told apart."""
        return len(self._marks)

    @property
    def clients(self) -> tuple[str, ...]:
        """Whom the values came from or went to; empty names are left out."""
        return tuple(sorted(client for client in self._lengths if client))

    @property
    def all_lengths(self) -> tuple[int, ...]:
        """Return the lengths that occurred, ascending."""
        return tuple(sorted(set().union(*self._lengths.values())))

    @property
    def lengths(self) -> Lengths:
        """Return what the lengths are like."""
        if self._is_number:
            return "number"
        if len(self.all_lengths) == 1:
            return "one"
        own = [sizes for client, sizes in self._lengths.items() if client]
        alike = all(sizes == own[0] for sizes in own)
        return "several" if alike else "by client"

    def unusual_clients(self, apart: frozenset[int] = frozenset()) -> dict[str, tuple[int, ...]]:
        """Return who has lengths that are not the commonest one, and which.

        Args:
            apart: lengths that are not looked at.
        """
        counts: dict[int, int] = defaultdict(int)
        for sizes in self._lengths.values():
            for size in sizes - apart:
                counts[size] += 1
        if len(counts) < 2:
            return {}
        usual = max(counts, key=lambda size: (counts[size], size))
        return {
            client: tuple(sorted(sizes - {usual} - apart))
            for client, sizes in sorted(self._lengths.items())
            if sizes - {usual} - apart
        }

    def _mark(self, raw: bytes) -> None:
        if len(self._marks) < _MOST_DISTINCT:
            self._marks.add(blake3(raw).digest()[:_MARK_BYTES])


_CALLERS = frozenset(
    name for name, kind in FIELDS.items() if kind == "identity" and name.endswith(".client_id")
)
_MOST_OPEN = 10_000
"""Nothing says when a call ends; of more than this the oldest have ended."""
_WORTH_A_MARK = 4096
_MOST_SEARCHED = 1_000_000
_CUT = "a stream that was cut"
_MOST_EPOCHS = 1000
"""Strangers may name as many as they like; those beyond are not told apart."""


@dataclass(frozen=True, slots=True, order=True)
class FieldKey:
    """Where a field was seen.

    Attributes:
        epoch: the key epoch of its message, where every epoch has its own value; else 0.
    """

    method: str
    direction: str
    name: str
    epoch: int = 0


@dataclass(frozen=True, slots=True, order=True)
class BlobKey:
    """Where blobs were seen."""

    method: str
    direction: str


@dataclass(slots=True, eq=False)
class _Call:
    """A call in progress: who called, in which key epoch, and the stream that it carries."""

    client: str = ""
    epoch: int = 0
    announced: int | None = None
    first: int = 0
    stream: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Traffic:
    """What was seen in recordings.

    Attributes:
        known: the coordinator's side.
        search: the data owners' side; None where they gave nothing.
        fields, blobs: the counts.
        problems: sentences about broken promises that are not about one field.
        unreadable: messages that are none of the protocol, by method.
        calls: how many calls were seen, by client; those without a name under the empty one.
        sent, received: bytes of each client's messages.
        wrapped: what is sealed to single members, by field.
        epochs: what names a key epoch, by epoch.
        truncated, limited: recordings that end within a message, or at their size limit.
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
        """Take in one recording."""
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
        """Count a message for the key epochs that it names; the first is the call's from now on."""
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
        """Hold what a client enrols with against the key epoch that it names."""
        epochs, epoch = self.known.epochs, int(message.epoch)
        roster = epochs.roster_problem(epoch, message.roster_json) if message.roster_json else ""
        if roster:
            self.problems[f"Federation.roster_json in {method} {roster}."] += 1
        context = epochs.context_problem(epoch, message.server_context)
        if context:
            self.problems[f"Federation.server_context in {method} {context}."] += 1

    def _judge_bundle(self, blob: bytes) -> None:
        """Hold a bundle that the authority handed in against what a bundle may be."""
        problem = self.known.epochs.learn(blob)
        if problem:
            self.problems[f"The bundle of InstallEpoch is none of this federation: {problem}"] += 1

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
        """Put the chunks of a stream together."""
        name = message.DESCRIPTOR.name
        if name == "UploadPart" and message.HasField("header"):
            # An upload that was interrupted goes on in another call.
            header = message.header
            planned = self.known.planned_for(str(header.kind), int(header.n_rows))
            if header.length not in planned:
                most = self.known.protection.chosen.message_bytes
                self.problems[
                    f"An update of {header.length} bytes was announced by "
                    f"{header.client_id[:16]}; the plan's have {max(planned, default=most)}."
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
            # A client goes on from what is durable, which may be less than what arrived.
            del call.stream[offset - call.first :]
            call.stream += data
        if len(call.stream) == call.announced:
            self._keep_blob(BlobKey(method, frame.kind), call)
            self._uploads = {k: v for k, v in self._uploads.items() if v is not call}

    def _end(self, number: int) -> None:
        """Take what is left of a call whose stream was cut."""
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
        """Try to read a blob, and count it; return what it gave away, unless it is public."""
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
        """Tell whether a message is a chunk that came before: key holders fetch what was sent."""
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
    """Return the length that a message announces for the chunks after it."""
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
    """Return what is sealed: all members are handed one part of it, which says so only once."""
    try:
        return secrets_parts(value)
    except MalformedUpdate:
        return (value,)
