"""From counts to verdicts: what each thing was, what was promised of it, and whether it held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedrec_lab.audit.wire.declared import BLOBS, COLUMNS, FIELDS, KINDS
from fedrec_lab.audit.wire.known import Known
from fedrec_lab.audit.wire.reading import ENTROPY_BITS, BlobTally
from fedrec_lab.audit.wire.storage import Storage
from fedrec_lab.audit.wire.tally import FieldTally
from fedrec_lab.audit.wire.traffic import Traffic

__all__ = ["UNDECLARED", "Finding", "storage_findings", "traffic_findings"]

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
