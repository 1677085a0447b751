"""Write and read safetensors files that are larger than memory.

The library holds a file's whole content in memory, several times. Here tables are written to disk
block by block, in the library's own form, and are mapped from the file when read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from fedrec.model.blocked_table import BLOCK_BYTES, Table
from fedrec.model.tables import give_back

_NAMES = {"int64": "I64", "float64": "F64", "float32": "F32", "uint8": "U8"}
"""The library's order of arrays. Those of the same type are ordered by name."""
_TYPES = {name: np.dtype(kind) for kind, name in _NAMES.items()}


def file_parts(
    arrays: Mapping[str, NDArray[Any] | Table], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """Yield the content of a safetensors file in parts: its header, then the arrays."""
    types = list(_NAMES)
    order = sorted(arrays, key=lambda name: (types.index(str(arrays[name].dtype)), name))
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        array = arrays[name]
        header[name] = {
            "dtype": _NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        array = arrays[name]
        if not array.shape and isinstance(array, np.ndarray):
            array = array.reshape(1)
        at_once = max(1, BLOCK_BYTES * max(1, len(array)) // max(1, array.nbytes))
        for begin in range(0, len(array), at_once):
            yield array[begin : begin + at_once].tobytes()
            if isinstance(array, np.memmap):
                give_back(array)


def mapped_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file, read-only and mapped.

    Raises:
        SafetensorError: the file is not a safetensors file.
        OSError: the file cannot be read.
    """
    # The library checks that the header is complete and fits the file.
    with safe_open(path, framework="numpy"):
        pass
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return {
            name: np.memmap(
                file,
                dtype=_TYPES[entry["dtype"]],
                mode="r",
                offset=8 + length + entry["data_offsets"][0],
                shape=tuple(entry["shape"]),
            )
            for name, entry in header.items()
        }
