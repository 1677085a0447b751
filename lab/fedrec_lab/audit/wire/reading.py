"""Attempts to read a blob as the coordinator could: with the plan and without a key.

Each attempt would succeed on bytes that hide nothing. Their failure does not prove that a cipher is
secure, but it shows that one was used.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from fedrec.errors import FedrecError, ProtocolError
from fedrec.protection import Member, NoProtection, VectorSpec
from fedrec.protection.protection_plan import HEADER_BYTES, Envelope
from fedrec.training.personalising import sum_of_publication

ENTROPY_BITS = 7.8
"""Entropy in bits a byte below which bytes are not random. 4 KiB of random bytes have above 7.9."""
ENTROPY_BYTES = 4096
COMPRESSIBLE = 0.97
COMPRESSIBLE_BYTES = 64
ZERO_RUN_BYTES = 16
"""Random bytes have a run of this length once in 2^128 places."""
_COMPRESSED_BYTES = 8 * 1024
_MOST_DISTINCT = 10_000
_MARK_BYTES = 8
_REMEMBERED = 1024
_COMPARED_WORDS = 4096
_COMPARED_BLOBS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobReading:
    """The content that one blob revealed.

    Attributes:
        values: the number of decoded values, or 0 if it did not decode.
        not_zero: the number of nonzero ones among them.
        signs: why its bytes are not random, or empty if they could be.
        histogram: how often each byte value occurs behind the envelope, int64 (256,).
    """

    values: int = 0
    not_zero: int = 0
    signs: tuple[str, ...] = ()
    histogram: NDArray[np.int64]

    @property
    def is_readable(self) -> bool:
        """Return whether it decoded as the plain vector."""
        return self.values > 0


class PlainReader:
    """Decodes bytes as a vector of a plan, as protection `none` packs it.

    Args:
        specs: the vectors that the federation's rounds may have, distinguished by length.
    """

    def __init__(self, *specs: VectorSpec) -> None:
        self._forms: dict[int, tuple[Envelope, Member]] = {}
        for spec in specs:
            protection = NoProtection(spec, NoProtection.plan(spec))
            context, secret = protection.generate()
            form = (Envelope.of(protection.chosen, context), protection.member(context, secret))
            self._forms[protection.chosen.frame_bytes] = form
        self._read: dict[bytes, BlobReading] = {}

    def read(self, blob: bytes) -> BlobReading:
        """Return the reading of a blob. The result of a blob that is served again is reused."""
        mark = blake3(blob).digest()
        found = self._read.get(mark)
        if found is None:
            vector, histogram = self.vector(blob), _histogram(body_of(blob))
            found = BlobReading(
                values=0 if vector is None else len(vector),
                not_zero=0 if vector is None else int(np.count_nonzero(vector)),
                signs=tuple(_signs(body_of(blob), histogram)),
                histogram=histogram,
            )
            if len(self._read) >= _REMEMBERED:
                del self._read[next(iter(self._read))]
            self._read[mark] = found
        return found

    def vector(self, blob: bytes) -> NDArray[np.int64] | None:
        """Return the vector in a blob, which may have an envelope, or None if there is none.

        If a value is outside its segment's bounds, the bytes are not a vector. Random bytes have
        such values. Values that a server computed may follow a sum.
        """
        found = self._vector(blob)
        if found is None:
            with suppress(ProtocolError):
                found = self._vector(sum_of_publication(blob))
        return found

    def _vector(self, blob: bytes) -> NDArray[np.int64] | None:
        for start in (HEADER_BYTES, 0):
            form = self._forms.get(len(blob) - start)
            if form is None:
                continue
            envelope, member = form
            try:
                return member.reveal(envelope.close_sum(blob[start:], 1), 1)
            except FedrecError:
                continue
        return None


@dataclass(slots=True)
class BlobTally:
    """All blobs of one kind in one direction of one method.

    Attributes:
        blobs: the number of blobs.
        readable: the number of them that decoded.
        values, not_zero: the number of decoded values, and of nonzero ones.
        incomplete: streams that ended before their announced length.
        by_client: the number of each client's blobs, and how many of them decoded.
        signs: the reasons why bytes are not random, with the number of blobs for each.
        shared_words: the largest share of equal 8-byte words in the same places of two blobs.
        copies: the number of blobs that another client sent before.
    """

    blobs: int = 0
    readable: int = 0
    values: int = 0
    not_zero: int = 0
    incomplete: int = 0
    by_client: dict[str, tuple[int, int]] = field(default_factory=dict)
    signs: dict[str, int] = field(default_factory=dict)
    shared_words: float = 0.0
    copies: int = 0
    _histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, dtype=np.int64))
    _earlier: list[NDArray[np.uint64]] = field(default_factory=list)
    _owners: dict[bytes, str] = field(default_factory=dict)

    def add(
        self, blob: bytes, client: str, reader: PlainReader, *, sent: bool = False
    ) -> BlobReading:
        """Try to read a blob and count the result.

        Args:
            client: its sender, receiver or owner.
            sent: whether the client made it, so that no other client's is the same.
        """
        self.blobs += 1
        found = reader.read(blob)
        self.readable += found.is_readable
        self.values += found.values
        self.not_zero += found.not_zero
        seen, read = self.by_client.get(client, (0, 0))
        self.by_client[client] = (seen + 1, read + found.is_readable)
        for sign in found.signs:
            self.signs[sign] = self.signs.get(sign, 0) + 1
        if self._is_new(body_of(blob), client if sent else ""):
            # Repeated bytes show nothing new. Served to many, a few blobs would look uneven.
            self._histogram += found.histogram
        return found

    @property
    def entropy(self) -> float | None:
        """Return bits of entropy a byte over all different blobs, or None for fewer than 4 KiB."""
        return byte_entropy(self._histogram)

    def _is_new(self, body: bytes, client: str) -> bool:
        """Return whether a blob is new, and compare it with others in the same places."""
        mark, n_words = blake3(body).digest(), len(body) // 8
        if mark in self._owners:
            # The same bytes again: served again, sent again, or sent by another client.
            self.copies += self._owners[mark] != client
            return False
        self._owners[mark] = client
        if not n_words:
            return True
        step = max(1, n_words // _COMPARED_WORDS)
        words = np.frombuffer(body, dtype="<u8", count=n_words)[::step][:_COMPARED_WORDS].copy()
        for other in self._earlier:
            if len(other) == len(words):
                self.shared_words = max(self.shared_words, float((other == words).mean()))
        if len(self._earlier) < _COMPARED_BLOBS:
            self._earlier.append(words)
        return True


Lengths = Literal["number", "one", "several", "by client"]
"""How a field's lengths vary. Those of numbers are not checked."""


@dataclass(slots=True)
class FieldTally:
    """Counts of one field in one direction of one method, or of one column.

    Attributes:
        messages: the number of values.
        n_bytes: their lengths in total. A number counts as 8 bytes.
    """

    messages: int = 0
    n_bytes: int = 0
    _marks: set[bytes] = field(default_factory=set)
    _lengths: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _is_number: bool = True

    def add(self, value: bytes | str | float, client: str) -> None:
        """Count one value that a client sent or received."""
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
        """Return the number of different values, up to 10,000."""
        return len(self._marks)

    @property
    def clients(self) -> tuple[str, ...]:
        """Return the clients that sent or received the values, without empty names."""
        return tuple(sorted(client for client in self._lengths if client))

    @property
    def all_lengths(self) -> tuple[int, ...]:
        """Return the lengths that occurred in ascending order."""
        return tuple(sorted(set().union(*self._lengths.values())))

    @property
    def lengths(self) -> Lengths:
        """Return how the lengths vary."""
        if self._is_number:
            return "number"
        if len(self.all_lengths) == 1:
            return "one"
        own = [sizes for client, sizes in self._lengths.items() if client]
        alike = all(sizes == own[0] for sizes in own)
        return "several" if alike else "by client"

    def unusual_clients(self, apart: frozenset[int] = frozenset()) -> dict[str, tuple[int, ...]]:
        """Return the clients with an unusual length, and which one.

        Args:
            apart: lengths to ignore.
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


def byte_entropy(histogram: NDArray[np.int64]) -> float | None:
    """Return bits of entropy a byte from counts of 256 values, or None for too few bytes.

    It uses the correction of Miller and Madow (1955) for the size of the sample.
    """
    total = int(histogram.sum())
    if total < ENTROPY_BYTES:
        return None
    shares = histogram[histogram > 0] / total
    plain = float(-(shares * np.log2(shares)).sum())
    return min(8.0, plain + (len(shares) - 1) / (2 * total * math.log(2)))


def longest_zero_run(body: bytes) -> int:
    """Return the length of the longest run of zero bytes."""
    places = np.flatnonzero(np.frombuffer(body, dtype=np.uint8))
    edges = np.concatenate(([-1], places, [len(body)]))
    return int(np.diff(edges).max()) - 1


def body_of(blob: bytes) -> bytes:
    """Return a blob without the envelope that all messages of a plan have in common."""
    return blob[HEADER_BYTES:] if blob[:4] in (b"FRPM", b"FRPS") else blob


def _histogram(body: bytes) -> NDArray[np.int64]:
    return np.bincount(np.frombuffer(body, dtype=np.uint8), minlength=256)


def _signs(body: bytes, histogram: NDArray[np.int64]) -> list[str]:
    """Return why bytes are not random."""
    found = []
    entropy = byte_entropy(histogram)
    if entropy is not None and entropy < ENTROPY_BITS:
        found.append("its bytes are not uniform")
    if longest_zero_run(body) >= ZERO_RUN_BYTES:
        found.append("it has runs of zeros")
    sample = (
        body
        if len(body) <= 2 * _COMPRESSED_BYTES
        else (body[:_COMPRESSED_BYTES] + body[-_COMPRESSED_BYTES:])
    )
    if len(sample) >= COMPRESSIBLE_BYTES and len(zlib.compress(sample, 1)) < (
        COMPRESSIBLE * len(sample)
    ):
        found.append("it can be compressed")
    return found
