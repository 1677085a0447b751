"""What is counted of a field while messages pass, in memory that does not grow with them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from blake3 import blake3

from fedrec_lab.audit.wire.messages import Value

__all__ = ["FieldTally", "Lengths"]

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
