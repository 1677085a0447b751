"""Verdicts from counts, and the report on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from fedrec.plan.algorithm import algorithm_of
from fedrec_lab.audit.wire.declared import BLOBS, COLUMNS, FIELDS, KINDS
from fedrec_lab.audit.wire.known import Known, RosterSource
from fedrec_lab.audit.wire.reading import ENTROPY_BITS, BlobTally, FieldTally
from fedrec_lab.audit.wire.storage import Storage
from fedrec_lab.audit.wire.traffic import Traffic

UNDECLARED = "undeclared"
_FEWEST_EQUAL = 0.01
"""Largest share of equal words in two blobs. Two random blobs of thousands of words share none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result for one field, stream, column or kind of file.

    Attributes:
        where: traffic or storage.
        name: the field and its method, the column, or the files.
        kind: one of `KINDS`, or `UNDECLARED`.
        messages, n_bytes, distinct: the number of values, their bytes, the number of distinct ones.
        lengths: number, one, several, or by client.
        clients: the number of clients that sent or received it.
        verdict: the result of the checks.
        promise: the threat model's promise.
        problems: why the promise is broken, or empty.
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
    """Yield the finding for every field and every stream, ordered by name."""
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
    """Yield the finding for every column and every kind of file."""
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
        problems.append(f"{name} must not exist: {tally.n_bytes} bytes")
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
        problems.append(f"{name} must not exist")
    if kind is not None and hidden:
        problems += [f"{name}: {why}" for why in _not_hidden(blobs)]
    # With indices in the clear, a sum has an entry for every index that any client sent. A server
    # that makes a model for each user adds what it computed to the sums of training rounds.
    computes = algorithm_of(known.plan, 1).derived.personalises
    grows = kind == "sum" and (known.protection.chosen.entries > 0 or computes)
    if kind is not None and KINDS[kind].one_length and not grows:
        # A count round's vector has a different length than the vectors of all other rounds.
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
        promise=KINDS[kind].promise if kind else "nothing else may exist there",
        problems=tuple(problems),
    )


def _uneven(name: str, tally: FieldTally, apart: frozenset[int] = frozenset()) -> list[str]:
    """Return the clients whose values have an unusual length, if all should have the same.

    Args:
        apart: further lengths that may occur.
    """
    sizes = [size for size in tally.all_lengths if size and size not in apart]
    if len(sizes) < 2:
        return []
    unusual = "; ".join(
        f"{client[:16] or 'an unnamed client'} has {', '.join(map(str, own))} bytes"
        for client, own in tally.unusual_clients(apart).items()
        if any(own)
    )
    return [f"{name} has several lengths, {sizes}: {unusual}"]


def _unplanned(name: str, sizes: FieldTally, known: Known) -> list[str]:
    other = [size for size in sizes.all_lengths if size not in known.planned]
    planned = known.protection.chosen.message_bytes
    return [
        f"{name}: an update has {size} bytes, but the plan's have {planned}, or those of fewer rows"
        for size in other
    ]


def _not_hidden(blobs: BlobTally) -> Iterator[str]:
    """Yield the signs that blobs are not random, if they should look random."""
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
            f"{blobs.not_zero:,} of them nonzero"
        )
    if hidden and not blobs.signs:
        return f"not readable: no vector, no zeros, no equal words, {bits}"
    signs = "; ".join(sorted(blobs.signs)) or "no sign of structure"
    return f"not a vector of the plan, {signs}, {bits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """The traffic of one client.

    Attributes:
        client_id: its fingerprint, or empty for callers without a certificate.
        calls: the number of its calls.
        sent, received: bytes of its messages.
        updates: the number of updates that it sent.
        readable_updates: the number of readable ones among them.
    """

    client_id: str
    calls: int
    sent: int
    received: int
    updates: int
    readable_updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """The traffic of one key epoch.

    Attributes:
        roster: the source of its roster, or "not given" if the audit does not have it.
        members: the number of members in the roster, or 0 if there is no roster.
        rotated: whether a later epoch began, with which its members destroyed its secrets.
        messages: the number of messages that name it.
        outsiders: the number of them whose signer is not in its roster.
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
    """The results about a coordinator's traffic and folder, and whether all promises held.

    Attributes:
        recordings: the number of files that were read, or 0 if only the folder was checked.
        messages, n_bytes: the number and size of the recorded messages.
        context_bytes: length of the protection's context.
        context_problem: why it may contain a key, or empty.
        updates, readable_updates, readable_values: the number of updates that travelled, how many
            were readable without a key, and their values.
        clear_indices: the number of values of an update whose indices are readable under the plan.
        kept_updates: the number of single clients' updates in the folder.
        published, published_bytes: published sums in the folder, and whether they were readable.
        clients, epochs: the traffic by client, and by the key epoch that it names.
        searched: what was searched for, and how much of it.
        found: what was found, where, and how often.
        problems: every promise that was broken.
        notes: what the audit could not check.
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
        """Return whether every promise held."""
        return not self.problems

    def sentences(self) -> list[str]:
        """Return the summary as sentences."""
        key = "no key" if not self.context_problem else "PERHAPS A KEY"
        lines = [f"Key material: a context of {self.context_bytes} bytes, which has {key}."]
        if self.recordings:
            lines.append(
                f"Traffic: {self.messages:,} messages, {self.n_bytes / 2**20:.1f} MiB. Updates of "
                f"single clients: {self.updates}, {self._readable()}."
            )
        if self.clear_indices:
            lines.append(
                f"Indices in the clear: {self.clear_indices} of every update after the count, "
                'because update.indices is "clear". They name the items that its user touched.'
            )
        if len(self.epochs) > 1:
            numbers = ", ".join(str(row.epoch) for row in self.epochs)
            lines.append(
                f"Key epochs {numbers}: each message was compared with the one that it names. The "
                "audit needs and has no secret of any epoch. Those of earlier ones were destroyed."
            )
        content = "readable" if self.published_readable else "not readable without a client's key"
        lines.append(
            f"Stored: {self.published} published sums, {self.published_bytes / 2**20:.1f} MiB, "
            f"{content}. Single clients' updates: {self.kept_updates}. Participants and times."
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
