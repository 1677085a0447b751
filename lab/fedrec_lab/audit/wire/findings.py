"""From counts to verdicts, and the report on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from fedrec_lab.audit.wire.declared import BLOBS, COLUMNS, FIELDS, KINDS
from fedrec_lab.audit.wire.known import Known, RosterSource
from fedrec_lab.audit.wire.reading import ENTROPY_BITS, BlobTally, FieldTally
from fedrec_lab.audit.wire.storage import Storage
from fedrec_lab.audit.wire.traffic import Traffic

UNDECLARED = "undeclared"
_FEWEST_EQUAL = 0.01
"""Two random blobs of thousands of words share none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was seen of one field, stream, column or kind of file.

    Attributes:
        where: traffic or storage.
        name: the field and its method, the column, or the files.
        kind: one of `KINDS`, or `UNDECLARED`.
        messages, n_bytes, distinct: how many values, their bytes, how many differ.
        lengths: number, one, several, or by client.
        clients: how many clients it came from or went to.
        verdict: what was found out about it.
        promise: what the threat model says.
        problems: why the promise is broken; empty where it held.
    """

    where: str
    name: str
    kind: str
    messages: int
    n_bytes: int
    distinct: int
    lengths: str
    clients: int
    verdict: str
    promise: str
    problems: tuple[str, ...] = ()


def traffic_findings(traffic: Traffic) -> Iterator[Finding]:
    """Yield what was found of every field and every stream, in the order of their names."""
    for key, tally in sorted(traffic.fields.items(), key=lambda entry: entry[0]):
        name = f"{key.method} {key.direction}: {key.name}"
        if key.epoch and len(traffic.epochs) > 1:
            name += f" (epoch {key.epoch})"
        wrapped = traffic.wrapped.get(key)
        yield _of_field("traffic", name, FIELDS.get(key.name), tally, wrapped)
    for place, blobs in sorted(traffic.blobs.items(), key=lambda entry: entry[0]):
        kind = BLOBS.get(place.method)
        sizes = traffic.sizes.get(place, FieldTally())
        name = f"{place.method} {place.direction}: its stream"
        yield _of_blobs("traffic", name, kind, blobs, sizes, traffic.known)


def storage_findings(storage: Storage) -> Iterator[Finding]:
    """Yield what was found of every column and every kind of file."""
    for name, tally in sorted(storage.columns.items()):
        yield _of_field("storage", f"table {name}", COLUMNS.get(name), tally)
    for name, sizes in sorted(storage.files.items()):
        kind = None if name in storage.undeclared else name
        label = f"file {name}" if kind is None else f"files: {kind}"
        blobs = storage.blobs.get(name)
        if blobs is None:
            yield _of_field("storage", label, kind, sizes)
        else:
            yield _of_blobs("storage", label, kind, blobs, sizes, storage.known)


def _of_field(
    where: str,
    name: str,
    kind: str | None,
    tally: FieldTally,
    wrapped: BlobTally | None = None,
) -> Finding:
    problems = []
    if kind is None:
        problems.append(f"{name} is nothing that may be there: {tally.n_bytes} bytes")
    elif KINDS[kind].one_length:
        problems += _uneven(name, tally)
    verdict = f"{tally.distinct} different" if tally.distinct > 1 else "always the same"
    if wrapped is not None:
        problems += [f"{name}: {why}" for why in _not_hidden(wrapped)]
        verdict = _blob_verdict(wrapped, hidden=True)
    return _finding(where, name, kind, tally, tally.messages, tally.n_bytes, verdict, problems)


def _of_blobs(
    where: str, name: str, kind: str | None, blobs: BlobTally, sizes: FieldTally, known: Known
) -> Finding:
    problems = []
    hidden = kind is None or known.hides(KINDS[kind].sealed)
    if kind is None and blobs.blobs != blobs.incomplete:
        problems.append(f"{name} is nothing that may be there")
    if kind is not None and hidden:
        problems += [f"{name}: {why}" for why in _not_hidden(blobs)]
    # A sum has an entry for every index that anybody sent, where indices are in the clear.
    grows = kind == "sum" and known.protection.chosen.entries > 0
    if kind is not None and KINDS[kind].one_length and not grows:
        # A count round's vector has another length than those of all other rounds.
        apart = known.counting if kind in ("update", "sum") else frozenset()
        problems += _uneven(name, sizes, apart)
        if kind == "update":
            problems += _unplanned(name, sizes, known)
    verdict = "the coordinator's own file" if kind == "public" else _blob_verdict(blobs, hidden)
    return _finding(where, name, kind, sizes, blobs.blobs, sizes.n_bytes, verdict, problems)


def _finding(
    where: str,
    name: str,
    kind: str | None,
    tally: FieldTally,
    messages: int,
    n_bytes: int,
    verdict: str,
    problems: list[str],
) -> Finding:
    return Finding(
        where=where,
        name=name,
        kind=kind or UNDECLARED,
        messages=messages,
        n_bytes=n_bytes,
        distinct=tally.distinct,
        lengths=tally.lengths,
        clients=len(tally.clients),
        verdict=verdict,
        promise=KINDS[kind].promise if kind else "nothing else may be there",
        problems=tuple(problems),
    )


def _uneven(name: str, tally: FieldTally, apart: frozenset[int] = frozenset()) -> list[str]:
    """Return which clients' values have another length than most, where all should have one.

    Args:
        apart: lengths that may occur besides it.
    """
    sizes = [size for size in tally.all_lengths if size and size not in apart]
    if len(sizes) < 2:
        return []
    unusual = "; ".join(
        f"{client[:16] or 'nobody in particular'} has {', '.join(map(str, own))} bytes"
        for client, own in tally.unusual_clients(apart).items()
        if any(own)
    )
    return [f"{name} has several lengths, {sizes}: {unusual}"]


def _unplanned(name: str, sizes: FieldTally, known: Known) -> list[str]:
    other = [size for size in sizes.all_lengths if size not in known.planned]
    planned = known.protection.chosen.message_bytes
    return [
        f"{name}: an update has {size} bytes, the plan's have {planned} or fewer rows'"
        for size in other
    ]


def _not_hidden(blobs: BlobTally) -> Iterator[str]:
    """Yield why blobs that should look random do not."""
    if blobs.readable:
        yield (
            f"{blobs.readable} of {blobs.blobs} were readable without any key, "
            f"{blobs.values:,} values"
        )
    for sign, count in sorted(blobs.signs.items()):
        yield f"{sign} in {count} of {blobs.blobs}"
    entropy = blobs.entropy
    if entropy is not None and entropy < ENTROPY_BITS:
        yield f"a byte has {entropy:.2f} bits on average"
    if blobs.shared_words >= _FEWEST_EQUAL:
        yield f"two of them share {blobs.shared_words:.0%} of their words in the same places"
    if blobs.copies:
        yield f"{blobs.copies} are what another client sent, byte for byte"


def _blob_verdict(blobs: BlobTally, hidden: bool) -> str:
    entropy = blobs.entropy
    bits = "too short to tell" if entropy is None else f"{entropy:.3f} bits a byte"
    if blobs.readable:
        return (
            f"READABLE: {blobs.readable} of {blobs.blobs}, {blobs.values:,} values, "
            f"{blobs.not_zero:,} of them not zero"
        )
    if hidden and not blobs.signs:
        return f"not readable: no vector, no zeros, no equal words, {bits}"
    signs = "; ".join(sorted(blobs.signs)) or "no sign of structure"
    return f"no vector of the plan; {signs}; {bits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """What was seen of one client.

    Attributes:
        client_id: its fingerprint; empty for callers that gave none.
        calls: how many calls it made.
        sent, received: bytes of its messages.
        updates: updates that it sent.
        readable_updates: how many of them were readable.
    """

    client_id: str
    calls: int
    sent: int
    received: int
    updates: int
    readable_updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """What was seen of one key epoch.

    Attributes:
        roster: where its roster is from; "not given" where the audit does not have it.
        members: how many the roster lists, 0 without it.
        rotated: whether a later epoch began, with which its members destroyed its secrets.
        messages: how many messages name it.
        outsiders: how many of them are signed by somebody whom its roster does not list.
        updates, readable_updates, readable_values: updates for its rounds.
    """

    epoch: int
    roster: RosterSource
    members: int
    rotated: bool
    messages: int
    outsiders: int
    updates: int
    readable_updates: int
    readable_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WireReport:
    """What passed a coordinator and what lies with it, and whether promises held.

    Attributes:
        recordings: files that were read; 0 where only the folder was looked at.
        messages, n_bytes: of the recorded calls.
        context_bytes: length of the protection's context.
        context_problem: why it may hold a key; empty where it holds none.
        updates, readable_updates, readable_values: updates that travelled, how many of them were
            readable without any key, and how many values they had.
        clear_indices: values of an update whose indices anybody reads, because the plan says so.
        kept_updates: updates of single clients in the folder.
        published, published_bytes: published sums in the folder, and whether they were readable.
        clients, epochs: the traffic by client, and by the key epoch that it names.
        searched: what was looked for, and how much of it.
        found: what of it was found, where, and how often.
        problems: every promise that was broken.
        notes: what the audit could not look at.
    """

    protection: str
    recordings: int
    messages: int
    n_bytes: int
    context_bytes: int
    context_problem: str
    updates: int
    readable_updates: int
    readable_values: int
    clear_indices: int
    kept_updates: int
    published: int
    published_bytes: int
    published_readable: int
    searched: dict[str, int]
    found: dict[str, int]
    findings: tuple[Finding, ...]
    clients: tuple[ClientRow, ...]
    epochs: tuple[EpochRow, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether every promise held."""
        return not self.problems

    def sentences(self) -> list[str]:
        """Return the summary for people to read."""
        key = "no key" if not self.context_problem else "PERHAPS A KEY"
        lines = [f"Key material: a context of {self.context_bytes} bytes, which holds {key}."]
        if self.recordings:
            lines.append(
                f"Passed: {self.messages:,} messages, {self.n_bytes / 2**20:.1f} MiB. Updates of "
                f"single clients: {self.updates}, {self._readable()}."
            )
        if self.clear_indices:
            lines.append(
                f"Indices in the clear: {self.clear_indices} of every update after the count, "
                'because update.indices is "clear". They name what the client\'s user touched.'
            )
        if len(self.epochs) > 1:
            numbers = ", ".join(str(row.epoch) for row in self.epochs)
            lines.append(
                f"Key epochs {numbers}: each message was held against the one that it names. No "
                "secret of any of them is needed or here; those that rotated away were destroyed."
            )
        content = "readable" if self.published_readable else "not readable without a client's key"
        lines.append(
            f"Stored: {self.published} published sums, {self.published_bytes / 2**20:.1f} MiB, "
            f"{content}; updates of single clients: {self.kept_updates}; who took part and when."
        )
        for what, count in sorted(self.searched.items()):
            hits = sum(hits for name, hits in self.found.items() if name.startswith(what))
            lines.append(f"Searched for {what} ({count:,} pieces): found {hits} times.")
        lines += self.notes
        if self.holds:
            lines.append(f"Every promise about {self.protection} held.")
        else:
            lines.append(f"BROKEN PROMISES: {len(self.problems)}.")
            lines += [f"- {problem}" for problem in self.problems]
        return lines

    def to_json(self) -> dict[str, object]:
        """Return everything under stable keys."""
        return {**asdict(self), "holds": self.holds}

    def summary(self) -> dict[str, object]:
        """Return `to_json` without the row of each field."""
        return {key: value for key, value in self.to_json().items() if key != "findings"}

    def _readable(self) -> str:
        if not self.updates:
            return "none travelled"
        if not self.readable_updates:
            return "none readable"
        every = "every one" if self.readable_updates == self.updates else f"{self.readable_updates}"
        return f"{every} readable, {self.readable_values:,} values"
