"""What a federation shares, and what stays with the users, as two types that never mix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedrec.errors import StorageError
from fedrec.ids import canonical
from fedrec.model.tensor_file import file_parts, mapped_tensors

__all__ = ["PrivateState", "SharedState"]


_EMPTY_FOLDER = "Restore the file from a backup, or start with an empty state folder."


def _check(raw: bytes, kind: str) -> dict[str, NDArray[np.generic]]:
    try:
        tensors: dict[str, NDArray[np.generic]] = load(raw)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        # A state may come from another member: types that numpy does not know are no defect here.
        raise StorageError(
            f"This is not a stored {kind} state: {error}.",
            remedy=_EMPTY_FOLDER,
        ) from None
    return tensors


@dataclass(frozen=True, slots=True)
class SharedState:
    """The published model: the same bits at every party.

    Attributes:
        tensors: float64 arrays by parameter name.
        holders: number of users who hold each item, int64 (n_items,), or None before the first
            (counting) round has been published.
    """

    tensors: Mapping[str, NDArray[np.float64]]
    holders: NDArray[np.int64] | None = None

    def with_tensors(self, **tensors: NDArray[np.float64]) -> SharedState:
        """Return a copy in which some tensors are replaced."""
        # Arithmetic of arrays without axes gives scalars, which are no arrays.
        arrays = {name: np.asarray(value) for name, value in tensors.items()}
        return SharedState(MappingProxyType({**self.tensors, **arrays}), self.holders)

    def with_holders(self, holders: NDArray[np.int64] | None) -> SharedState:
        """Return a copy that knows the item counts."""
        return SharedState(self.tensors, holders)

    def to_bytes(self) -> bytes:
        """Return the state in safetensors form."""
        arrays: dict[str, NDArray[np.generic]] = {
            f"shared.{name}": value for name, value in self.tensors.items()
        }
        if self.holders is not None:
            arrays["holders"] = self.holders
        return bytes(save(arrays))

    @classmethod
    def from_bytes(cls, raw: bytes) -> SharedState:
        """Read `to_bytes`.

        Raises:
            StorageError: when the bytes are no shared state.
        """
        arrays = _check(raw, "shared")
        tensors = {
            name.removeprefix("shared."): np.asarray(value, dtype=np.float64)
            for name, value in arrays.items()
            if name.startswith("shared.")
        }
        if len(tensors) != len(arrays) - ("holders" in arrays) or not tensors:
            raise StorageError(f"This is not a stored shared state: it has {sorted(arrays)}.")
        holders = arrays.get("holders")
        return cls(
            MappingProxyType(tensors),
            None if holders is None else np.asarray(holders, dtype=np.int64),
        )

    def canonical_bytes(self) -> bytes:
        """Return an injective encoding, equal at all parties that hold the same bits."""
        arrays: dict[str, NDArray[np.generic]] = dict(self.tensors)
        if self.holders is not None:
            arrays["holders"] = self.holders
        return canonical(
            "fedrec shared state v1",
            *(
                part
                for name in sorted(arrays)
                for part in (
                    name,
                    str(arrays[name].dtype),
                    str(arrays[name].shape),
                    np.ascontiguousarray(arrays[name]).tobytes(),
                )
            ),
        )


@dataclass(frozen=True, slots=True)
class PrivateState:
    """Users' own parameters: they are stored on the client and have no form that travels.

    Attributes:
        tensors: float32 arrays by parameter name; the first axis is the user. None at all
            where the algorithm keeps nothing of users but their history.
    """

    tensors: Mapping[str, NDArray[np.float32]]

    def to_bytes(self) -> bytes:
        """Return the state in safetensors form, for the client's own disk."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        """Yield `to_bytes` in parts, for tables that are larger than memory."""
        return file_parts({f"private.{name}": value for name, value in self.tensors.items()})

    @classmethod
    def open(cls, path: Path) -> PrivateState:
        """Return what a file of `to_bytes` holds, mapped from it: nothing is read as yet.

        Raises:
            StorageError: when the file is no private state.
        """
        try:
            return cls._of(mapped_tensors(path))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise StorageError(
                f"{path} is not a stored private state: {error}.", remedy=_EMPTY_FOLDER
            ) from None

    @classmethod
    def from_bytes(cls, raw: bytes) -> PrivateState:
        """Read `to_bytes`.

        Raises:
            StorageError: when the bytes are no private state.
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
