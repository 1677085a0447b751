"""The data owners' side of an audit: data that must not be found, and the search for it.

Private vectors, user ids and histories are searched for in the usual forms of programs: consecutive
float32 and float64 values, consecutive item numbers as 32-bit and 64-bit integers, ids as text.
Data that is compressed, encrypted or written in another form is not found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import DataError, FedrecError

if TYPE_CHECKING:
    from fedrec.model.blocked_table import Table


WINDOW_BYTES = 16
"""Two float64 values. Such a window occurs by chance once in 2^128 places."""
FEWEST_BYTES = 6
"""Windows with fewer different bytes, such as zeros or small numbers, occur by chance."""
ITEMS_IN_A_ROW = 8
"""Fewer consecutive small numbers occur in plain counts by chance."""
MOST_WINDOWS = 400_000
MOST_ROWS = 50_000
MOST_ROW_BYTES = 1024
SHORTEST_ID = 8
"""Ids with fewer characters occur by chance, so they are only compared with whole values."""
MODEL = "the shared model"
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The data owners' knowledge, which no other party may read.

    Attributes:
        vectors: windows of private vectors, 16 bytes each.
        model: windows of the shared model.
        histories: pieces of users' histories.
        user_ids: the ids of all users.
    """

    vectors: frozenset[bytes] = frozenset()
    model: frozenset[bytes] = frozenset()
    histories: frozenset[bytes] = frozenset()
    user_ids: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, folders: Sequence[Path], item_ids: Sequence[str], *, received: Collection[str] = ()
    ) -> Truth:
        """Read clients' folders: state folders, and data files next to or in them.

        Args:
            item_ids: the catalogue's item ids in its order. Histories are written as positions in
                it.
            received: private parameters that the coordinator computes. With them it computes every
                version of the shared model, too.

        Raises:
            DataError: if a folder has no client data, or unreadable data.
            StorageError: if a state is damaged.
        """
        from fedrec.model.state import PrivateState, SharedState

        vectors: set[bytes] = set()
        model: set[bytes] = set()
        histories: set[bytes] = set()
        user_ids: set[str] = set()
        for folder in folders:
            states = sorted(folder.rglob("private-*.bin"))
            files = [path for path in sorted(folder.rglob("*.csv")) if path.name != "catalogue.csv"]
            if not states and not files:
                raise DataError(
                    f"{folder} has neither private states nor interactions.",
                    remedy="Pass clients' state folders or folders with their data (CSV).",
                )
            for path in states:
                tensors = PrivateState.open(path).tensors
                own = {name: table for name, table in tensors.items() if name not in received}
                vectors.update(_vector_windows(own))
            for path in [] if received else sorted(folder.rglob("shared-*.bin")):
                model.update(_vector_windows(SharedState.from_bytes(path.read_bytes()).kept))
            for path in files:
                found = _histories(path, item_ids)
                user_ids.update(found)
                for items in found.values():
                    histories.update(_history_windows(items))
        return cls(
            vectors=_thinned(vectors),
            model=_thinned(model),
            histories=_thinned(histories),
            user_ids=frozenset(user_ids),
        )

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to search for."""
        return not (self.vectors or self.model or self.histories or self.user_ids)

    @property
    def unsearched_ids(self) -> int:
        """Return how many user ids are short numbers, which look like any other numbers."""
        return sum(_is_plain_number(user) for user in self.user_ids)


@dataclass(slots=True)
class Search:
    """Searches for a truth in traffic.

    Attributes:
        found: the number of hits, by kind and place.
    """

    truth: Truth
    found: Counter[tuple[str, str]] = field(default_factory=Counter)
    _windows: list[_Windows] = field(default_factory=list)
    _short: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        ids = {user.encode() for user in self.truth.user_ids if len(user) >= SHORTEST_ID}
        needles: dict[bytes, str] = dict.fromkeys(self.truth.vectors, "private vectors")
        needles |= dict.fromkeys(self.truth.model, MODEL)
        needles |= dict.fromkeys(self.truth.histories, "histories")
        needles |= dict.fromkeys(ids, "user ids")
        self._windows = [_Windows(chosen, size) for size, chosen in _by_size(needles)]
        self._short = frozenset(
            user
            for user in self.truth.user_ids
            if len(user) < SHORTEST_ID and not _is_plain_number(user)
        )

    def look(self, data: bytes, where: str) -> None:
        """Search bytes, and count the hits under a place's name."""
        for windows in self._windows:
            for what, hits in windows.count(data).items():
                self.found[what, where] += hits

    def look_at_text(self, value: str, where: str) -> None:
        """Compare a whole text value with the user ids that are too short to search for."""
        if value in self._short:
            self.found["user ids", where] += 1


class _Windows:
    """Finds byte strings by looking up their first 8 or 16 bytes at every position at once.

    Args:
        needles: the kind of each byte string, which has at least `size` bytes.
        size: 8 or 16, the number of bytes to look up before the rest is compared.
    """

    def __init__(self, needles: Mapping[bytes, str], size: int) -> None:
        self._size = size
        self._whole: dict[bytes, list[tuple[bytes, str]]] = {}
        for needle, what in needles.items():
            self._whole.setdefault(needle[:size], []).append((needle, what))
        heads = b"".join(self._whole)
        words = np.frombuffer(heads, dtype="<u8").reshape(len(self._whole), size // 8)
        hashes = self._hashed(words[:, 0], words[:, -1])
        # At most one entry in sixteen is used, and few needles make a table that fits a cache.
        bits = max(12, len(hashes).bit_length() + 4)
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(1 << bits, dtype=np.bool_)
        self._table[hashes >> self._shift] = True
        self._sorted = np.sort(hashes)

    def count(self, data: bytes) -> Counter[str]:
        """Return at how many positions each kind of needle occurs."""
        found: Counter[str] = Counter()
        for shift in range(8):
            n_words = (len(data) - shift) // 8
            if n_words * 8 < self._size:
                break
            words = np.frombuffer(data, dtype="<u8", count=n_words, offset=shift)
            last = words[1:] if self._size == 2 * 8 else words
            hashes = self._hashed(words[: len(last)], last)
            places = np.flatnonzero(self._table[hashes >> self._shift])
            if not len(places):
                continue
            at = np.searchsorted(self._sorted, hashes[places]) % len(self._sorted)
            for place in places[self._sorted[at] == hashes[places]]:
                found.update(self._standing_at(data, shift + 8 * int(place)))
        return found

    def _standing_at(self, data: bytes, start: int) -> set[str]:
        known = self._whole.get(data[start : start + self._size], [])
        return {what for needle, what in known if data.startswith(needle, start)}

    def _hashed(self, first: Words, last: Words) -> Words:
        mixed: Words = first * _FIRST
        if self._size > 8:
            mixed ^= last * _SECOND
        # The table uses the highest bits, because those of a product depend on all bits below them.
        mixed *= _FIRST
        return mixed


def _is_plain_number(user: str) -> bool:
    return len(user) < SHORTEST_ID and user.isascii() and user.isdigit()


def _by_size(needles: Mapping[bytes, str]) -> Iterator[tuple[int, dict[bytes, str]]]:
    """Yield needles by how many bytes of them can be looked up."""
    long = {needle: what for needle, what in needles.items() if len(needle) >= 16}
    short = {needle: what for needle, what in needles.items() if 8 <= len(needle) < 16}
    for size, chosen in ((16, long), (8, short)):
        if chosen:
            yield size, chosen


def _vector_windows(tensors: Mapping[str, Table] | Mapping[str, NDArray[Any]]) -> Iterator[bytes]:
    """Yield every row of every tensor in pieces, in both widths."""
    for values in tensors.values():
        first = values[:MOST_ROWS]
        rows = first.reshape(len(first), -1)
        for kind in ("<f4", "<f8"):
            for row in np.ascontiguousarray(rows, dtype=kind):
                data = row.tobytes()[:MOST_ROW_BYTES]
                for start in range(0, len(data) - WINDOW_BYTES + 1, WINDOW_BYTES):
                    window = data[start : start + WINDOW_BYTES]
                    if len(set(window)) >= FEWEST_BYTES:
                        yield window


def _history_windows(items: Sequence[int]) -> Iterator[bytes]:
    """Yield runs of eight items as bytes. They are sorted, as programs store them."""
    places: NDArray[Any] = np.array(sorted(set(items)))
    for start in range(0, len(places) - ITEMS_IN_A_ROW + 1, ITEMS_IN_A_ROW):
        piece = places[start : start + ITEMS_IN_A_ROW]
        if len(set(np.diff(piece).tolist())) > 1:
            yield from (piece.astype(kind).tobytes() for kind in ("<i4", "<i8"))


def _histories(path: Path, item_ids: Sequence[str]) -> dict[str, list[int]]:
    """Return the items of each user of a data file, as positions in the catalogue."""
    from fedrec.data.readers import read_interactions

    place = {item: index for index, item in enumerate(item_ids)}
    found: dict[str, list[int]] = {}
    try:
        data, _ = read_interactions(path)
    except FedrecError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    for user, item in zip(data.user_ids, data.item_ids, strict=True):
        known = found.setdefault(str(user), [])
        if item in place:
            known.append(place[item])
    return found


def _thinned(windows: set[bytes]) -> frozenset[bytes]:
    """Return only as many windows as a quick search allows."""
    every = sorted(windows)
    step = max(1, -(-len(every) // MOST_WINDOWS))
    return frozenset(every[::step])
