"""The shared state of a federation and the private state of users, as two types that never mix."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from fedrec.errors import StorageError
from fedrec.ids import canonical
from fedrec.model.block_folder import BlockFolder
from fedrec.model.blocked_table import BlockedTable, Table
from fedrec.model.tables import BLOCKS, TableRoom, array_of, is_in_files, manifest_of, read_manifest
from fedrec.model.tensor_file import file_parts, mapped_tensors

_COUNTS = ("holders", "recounted", "trained")
_EMPTY_FOLDER = "Restore the file from a backup, or start with an empty state folder."


def _shapes(tensors: Mapping[str, Any]) -> str:
    found = (f"{name} {tuple(values.shape)}" for name, values in tensors.items())
    return ", ".join(found) or "no tensors"


def _check(raw: bytes, kind: str) -> dict[str, NDArray[np.generic]]:
    try:
        tensors: dict[str, NDArray[np.generic]] = load(raw)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        # A state may come from another member: numpy may not know its types, which is not a defect
        # here.
        raise StorageError(
            f"This is not a stored {kind} state: {error}.",
            remedy=_EMPTY_FOLDER,
        ) from None
    return tensors


@dataclass(frozen=True, eq=False)
class Rest:
    """The rows of item tables that the rounds of a run do not change.

    Attributes:
        index: rows of the other items, which are trained, ascending int64 (n_active,).
        tables: whole tables by name, (n_items, ...), whose rows of `index` are out of date. None if
            only the trained rows are known.
    """

    index: NDArray[np.int64]
    tables: Mapping[str, NDArray[np.float64]] | None


@dataclass(frozen=True, eq=False)
class SharedState:
    """The published model: the same bits at every party.

    Once the trained items are known, their rows are kept apart from the others. A version of a
    large catalogue is then as small as its trained part.

    Attributes:
        kept: float64 arrays by parameter name. If `rest.index` is set, item tables have only its
            rows.
        holders: number of users that hold each item, int64 (n_items,), or None before the count
            round has been published. It determines the trained rows permanently.
        rest: the other rows. None if all are kept.
        recounted: the same by the last count round, if there was more than one.
        trained: number of published training rounds.
    """

    kept: Mapping[str, NDArray[np.float64]]
    holders: NDArray[np.int64] | None = None
    rest: Rest | None = None
    recounted: NDArray[np.int64] | None = None
    trained: int = 0

    def __repr__(self) -> str:
        return f"SharedState({self.trained} training rounds, {_shapes(self.kept)})"

    @property
    def number(self) -> int:
        """The number from which a round with this base version draws samples, shuffles and bases.

        It follows from the version alone: the key holder cannot choose it, and an abandoned round
        does not change it. The first is 2. Without abandoned rounds it is then the round's own
        number, since round 1 counts. Results thus keep the bits of earlier versions, which used the
        round's number.
        """
        return 2 + self.trained

    @property
    def last_counted(self) -> NDArray[np.int64] | None:
        """Users of each item by the last count, int64 (n_items,)."""
        return self.holders if self.recounted is None else self.recounted

    @cached_property
    def tensors(self) -> Mapping[str, NDArray[np.float64]]:
        """All arrays, item tables with a row for each item of the catalogue.

        Raises:
            StorageError: only the trained rows are known.
        """
        if self.rest is None:
            return self.kept
        if self.rest.tables is None:
            raise StorageError("The rows of items that are not trained are not stored here.")
        whole = dict(self.kept)
        for name, before in self.rest.tables.items():
            whole[name] = before.copy()
            whole[name][self.rest.index] = self.kept[name]
        return MappingProxyType(whole)

    def rows(self, name: str, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return rows of an item table."""
        if self.rest is not None and np.array_equal(self.rest.index, index):
            return self.kept[name]
        return self.tensors[name][index]

    def with_tensors(self, **tensors: NDArray[np.float64]) -> SharedState:
        """Return a copy with some tensors replaced."""
        # Arithmetic of arrays without axes results in scalars, which are not arrays.
        arrays = {name: np.asarray(value) for name, value in tensors.items()}
        return replace(self, kept=MappingProxyType({**self.tensors, **arrays}), rest=None)

    def with_holders(self, holders: NDArray[np.int64]) -> SharedState:
        """Return a copy with the item counts."""
        return replace(self, kept=self.tensors, holders=holders, rest=None, recounted=None)

    def counted(self, counts: NDArray[np.int64]) -> SharedState:
        """Return the version after a count round. After the first one, rows stay the same."""
        if self.holders is None:
            return self.with_holders(counts)
        return replace(self, recounted=counts)

    def apart(self, index: NDArray[np.int64], names: Sequence[str]) -> SharedState:
        """Return the same version with the rows of these item tables kept apart from the rest."""
        if self.rest is not None and np.array_equal(self.rest.index, index):
            return self
        tables = {name: self.tensors[name] for name in names}
        rows = {name: table[index] for name, table in tables.items()}
        rest = Rest(index, MappingProxyType(tables))
        return replace(self, kept=MappingProxyType({**self.tensors, **rows}), rest=rest)

    def part(self) -> SharedState:
        """Return the kept part as a model of the trained items alone."""
        if self.rest is None:
            return self
        index = self.rest.index
        holders, again = (
            None if counts is None else counts[index] for counts in (self.holders, self.recounted)
        )
        return replace(self, holders=holders, recounted=again, rest=None)

    def with_part(self, part: SharedState) -> SharedState:
        """Return a version with the new state of `part()`."""
        return replace(self, kept=part.kept)

    def over(self, first: SharedState) -> SharedState:
        """Return a version with the other rows of a run's first version.

        Raises:
            StorageError: the tables of these rows are unknown.
        """
        if self.rest is None:
            return self
        if self.rest.tables is None:
            raise StorageError("The rows of items that are not trained are not stored here.")
        tables = {name: first.tensors[name] for name in self.rest.tables}
        return replace(self, rest=Rest(self.rest.index, MappingProxyType(tables)))

    def to_bytes(self, initial: SharedState | None = None) -> bytes:
        """Return the state in safetensors form. See `parts`."""
        return b"".join(self.parts(initial))

    def parts(self, initial: SharedState | None = None) -> Iterator[bytes]:
        """Yield the state in safetensors form, in parts.

        Args:
            initial: the first version, which a reader passes to `from_bytes`. Its rows are omitted.
        """
        arrays: dict[str, NDArray[np.generic]] = self._counts()
        tables: Mapping[str, NDArray[np.float64]] = {}
        if self.rest is not None:
            arrays["index"] = self.rest.index
            tables = self.rest.tables or {}
        known = {} if initial is None else initial.tensors
        arrays |= {
            f"{'rows' if name in tables else 'shared'}.{name}": value
            for name, value in self.kept.items()
        }
        arrays |= {
            f"rest.{name}": table for name, table in tables.items() if known.get(name) is not table
        }
        return file_parts(arrays)

    def _counts(self) -> dict[str, NDArray[np.generic]]:
        """Return the integer arrays by name."""
        found: dict[str, NDArray[np.generic]] = {"trained": np.asarray(self.trained, np.int64)}
        counted = {"holders": self.holders, "recounted": self.recounted}
        return found | {name: values for name, values in counted.items() if values is not None}

    @classmethod
    def from_bytes(
        cls, raw: bytes, initial: Callable[[], SharedState] | None = None
    ) -> SharedState:
        """Read the result of `to_bytes`.

        Args:
            initial: returns the first version of the run, which has the omitted rows. Without it,
                only the trained rows of such a state are known.

        Raises:
            StorageError: the bytes are not a shared state.
        """
        arrays = _check(raw, "shared")
        found: dict[str, dict[str, NDArray[np.float64]]] = {"shared": {}, "rows": {}, "rest": {}}
        for name in sorted(arrays.keys() - {*_COUNTS, "index"}):
            kind, _, rest = name.partition(".")
            if kind not in found:
                raise StorageError(f"This is not a stored shared state: it has {sorted(arrays)}.")
            found[kind][rest] = _as_stored(arrays[name], name, "f")
        kept = MappingProxyType(found["shared"] | found["rows"])
        counts = _counts_of(arrays)
        if not kept or ("index" in arrays) < bool(found["rows"] or found["rest"]):
            raise StorageError(f"This is not a stored shared state: it has {sorted(arrays)}.")
        if initial is not None and found["rest"]:
            raise StorageError("This is not a stored shared state: it has the initial rows.")
        if "index" not in arrays:
            return cls(kept, **counts)
        index, tables = _as_stored(arrays["index"], "index", "i"), found["rest"]
        if initial is not None and len(tables) < len(found["rows"]):
            first = initial().tensors
            tables = {name: first[name] for name in found["rows"] if name in first} | tables
        elif len(tables) < len(found["rows"]):
            return cls(kept, rest=Rest(index, None), **counts)
        state = cls(kept, rest=Rest(index, MappingProxyType(tables)), **counts)
        problem = _problem_of_rows(state, found["rows"])
        if problem:
            raise StorageError(f"This is not a stored shared state: {problem}.")
        return state

    def canonical_bytes(self) -> bytes:
        """Return an injective encoding, equal at all parties that hold the same bits.

        If a version's trained rows are kept apart, it contains these alone. The others are the
        run's first version's, whose own encoding has all of its rows.
        """
        arrays = self._counts() | {f"shared.{name}": values for name, values in self.kept.items()}
        if self.rest is not None:
            arrays["index"] = self.rest.index
        return canonical(
            "fedrec shared state v3",
            *(
                part
                for name in sorted(arrays)
                for part in (
                    name,
                    str(arrays[name].dtype),
                    str(arrays[name].shape),
                    hashlib.sha256(np.ascontiguousarray(arrays[name]).data).digest(),
                )
            ),
        )


def _counts_of(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Any]:
    """Return the integer arrays in the form of `SharedState`.

    Raises:
        StorageError: the arrays are missing or are not counts.
    """
    found: dict[str, Any] = {
        name: _as_stored(arrays[name], name, "i") for name in _COUNTS if name in arrays
    }
    trained, holders = found.pop("trained", None), found.get("holders")
    if trained is None or trained.shape != () or trained < 0:
        raise StorageError("This is not a stored shared state: it has no number of rounds.")
    if "recounted" in found and (holders is None or found["recounted"].shape != holders.shape):
        raise StorageError("This is not a stored shared state: its two item counts do not match.")
    return found | {"trained": int(trained)}


def _as_stored(values: NDArray[np.generic], name: str, kind: Literal["f", "i"]) -> NDArray[Any]:
    """Return an array as float64 or int64, if it is of that kind.

    Raises:
        StorageError: the array is of a different kind, so numbers would change.
    """
    if values.dtype.kind != kind:
        raise StorageError(
            f"This is not a stored shared state: {name} has numbers of type {values.dtype}."
        )
    return values.astype(np.float64 if kind == "f" else np.int64, copy=False)


def _problem_of_rows(state: SharedState, names: Iterable[str]) -> str:
    """Return why the trained rows don't match their tables, or an empty string if they do."""
    assert state.rest is not None
    index, tables = state.rest.index, state.rest.tables or {}
    if set(tables) != set(names):
        return f"it has trained rows of {sorted(names)}, but other rows of {sorted(tables)}"
    if index.ndim != 1 or (index[1:] <= index[:-1]).any() or (index < 0).any():
        return "its rows are not in the order of the catalogue"
    for name, table in tables.items():
        kept = state.kept[name]
        if table.ndim < 1 or kept.shape != (len(index), *table.shape[1:]):
            return f"it has {name} of the shape {kept.shape}, expected {len(index)} rows"
        if (index >= len(table)).any():
            return f"it has rows after the {len(table)} of {name}"
    return ""


@dataclass(frozen=True, slots=True)
class PrivateState:
    """Users' private parameters. They are stored on the client and have no form that travels.

    Attributes:
        tensors: float32 tables by parameter name. The first axis is the user. Empty if the
            algorithm keeps only the history of users. Arrays, or all of them `BlockedTable`s if
            they outgrow memory.
    """

    tensors: Mapping[str, Table]

    def __repr__(self) -> str:
        return f"PrivateState({_shapes(self.tensors)})"

    @classmethod
    def of(cls, tensors: Mapping[str, Table]) -> PrivateState:
        """Return the state of these tables."""
        return cls(MappingProxyType(dict(tensors)))

    @property
    def in_files(self) -> bool:
        """Whether the tables are in files, whose rows are read as needed."""
        return any(map(is_in_files, self.tensors.values()))

    def widths(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of one user's row by name."""
        return {name: values.shape[1:] for name, values in self.tensors.items()}

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return all tables in memory, without copying those that are there already."""
        return {name: array_of(values) for name, values in self.tensors.items()}

    def rows(self, rows: NDArray[np.int64]) -> PrivateState:
        """Return the state of some users, in memory."""
        return PrivateState.of({name: values[rows] for name, values in self.tensors.items()})

    def in_room(self, room: TableRoom) -> PrivateState:
        """Return the state in a room: in memory while it fits, else in the room's files.

        Raises:
            StorageError: the disk has no room for files that it needs, or its own are damaged.
        """
        n_users = len(next(iter(self.tensors.values()), ()))
        if room.is_enough_for(n_users, self.widths()):
            return PrivateState.of(self.arrays())
        if all(map(room.has, self.tensors.values())):
            return self
        new = room.new(n_users, self.widths())
        return PrivateState.of(
            {name: table.finish(self.tensors[name]) for name, table in new.items()}
        )

    def to_bytes(self) -> bytes:
        """Return the stored form of the state, for the client's own disk. See `parts`."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        """Yield the stored form of the state in parts.

        Arrays are stored as a safetensors file. For tables in files, only the names of these are
        stored, and the files are in the same folder. See `fedrec.model.tables`.
        """
        blocked = {
            name: table for name, table in self.tensors.items() if isinstance(table, BlockedTable)
        }
        if blocked:
            assert len(blocked) == len(self.tensors)
            return iter([manifest_of(blocked)])
        return file_parts({f"private.{name}": value for name, value in self.tensors.items()})

    @classmethod
    def open(cls, path: Path, blocks: BlockFolder | None = None) -> PrivateState:
        """Return the state in a file of `to_bytes`, without reading its tables.

        Args:
            blocks: folder of the tables' files. The default is the one in the same folder.

        Raises:
            StorageError: the file is not a private state.
        """
        tables = read_manifest(path)
        if tables is not None:
            folder = blocks or BlockFolder.at(path.parent / BLOCKS)
            return cls.of({name: folder.table(**stored) for name, stored in tables.items()})
        try:
            return cls._of(mapped_tensors(path))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise StorageError(
                f"{path} is not a stored private state: {error}.", remedy=_EMPTY_FOLDER
            ) from None

    @classmethod
    def from_bytes(cls, raw: bytes) -> PrivateState:
        """Read the result of `to_bytes`.

        Raises:
            StorageError: the bytes are not a private state.
        """
        return cls._of(_check(raw, "private"))

    @classmethod
    def _of(cls, arrays: Mapping[str, NDArray[Any]]) -> PrivateState:
        if not all(name.startswith("private.") for name in arrays):
            raise StorageError(f"This is not a stored private state: it has {sorted(arrays)}.")
        return cls(
            MappingProxyType(
                {
                    name.removeprefix("private."): value.astype(np.float32, copy=False)
                    for name, value in arrays.items()
                }
            )
        )
