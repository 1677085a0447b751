"""Small fixed calculations whose bits characterise this machine.

Two machines with equal probes may still differ elsewhere. Two with different probes certainly train
with different bits. The input is the same everywhere (`fedrec.random_streams`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from fedrec.random_streams import normal
from fedrec.tensor_products import one_thread

# Calculations of this size use one thread, whatever the number of threads.
_ROWS, _INNER, _COLUMNS = 8, 32, 32
_LENGTH = 1003
_DIGEST_LETTERS = 16
_APART = 1_000_003
"""The distance between the keys of two tables, because counters are added to a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One calculation with its result.

    Attributes:
        name: the library and its calculation.
        digest: digest of the result's bytes, 16 hexadecimal digits.
    """

    name: str
    digest: str


def fingerprint(probes: Sequence[Probe]) -> str:
    """Return one digest for the results of all probes, 16 hexadecimal digits."""
    lines = "\n".join(f"{probe.name} {probe.digest}" for probe in probes)
    return hashlib.sha256(lines.encode()).hexdigest()[:_DIGEST_LETTERS]


def look() -> tuple[Probe, ...]:
    """Run all calculations. Compiling the loop takes about a second."""
    with one_thread():
        return tuple(
            Probe(
                name=name,
                digest=hashlib.sha256(np.ascontiguousarray(calculate()).tobytes()).hexdigest()[
                    :_DIGEST_LETTERS
                ],
            )
            for name, calculate in _CALCULATIONS.items()
        )


def _table(number: int, *shape: int) -> NDArray[np.float64]:
    return normal(number * _APART, shape)


def _values() -> torch.Tensor:
    return torch.from_numpy(_table(3, _LENGTH).astype(np.float32))


def _torch_product(n_rows: int) -> NDArray[np.float32]:
    left = torch.from_numpy(_table(1, _ROWS, _INNER).astype(np.float32))[:n_rows]
    right = torch.from_numpy(_table(2, _INNER, _COLUMNS).astype(np.float32))
    return (left @ right).numpy()


def _torch_vector() -> NDArray[np.float32]:
    left = torch.from_numpy(_table(1, _ROWS, _INNER).astype(np.float32))
    return torch.mv(left, _values()[:_INNER]).numpy()


def _torch_batches(n_batches: int) -> NDArray[np.float32]:
    left = torch.from_numpy(_table(4, _ROWS, _ROWS, _INNER).astype(np.float32))[:n_batches]
    right = torch.from_numpy(_table(5, _ROWS, _INNER, _ROWS).astype(np.float32))[:n_batches]
    return torch.bmm(left, right).numpy()


def _torch_function(function: Callable[[torch.Tensor], torch.Tensor]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = function(_values()).numpy()
    return found


def _torch_factor() -> NDArray[np.float32]:
    table = torch.from_numpy(_table(6, _INNER, _INNER).astype(np.float32))
    factor = torch.linalg.cholesky(table @ table.T + _INNER * torch.eye(_INNER))
    found: NDArray[np.float32] = factor.numpy()
    return found


def _numpy_product(kind: type[np.generic]) -> NDArray[Any]:
    left, right = _table(1, _INNER, _INNER).astype(kind), _table(2, _INNER, _COLUMNS).astype(kind)
    return np.asarray(np.matmul(left, right))


def _numpy_sum() -> NDArray[np.float32]:
    return np.asarray(np.sum(_values().numpy()))


def _numpy_exp() -> NDArray[np.float32]:
    return np.asarray(np.exp(_values().numpy()))


def _loop(values, weights):  # type: ignore[no-untyped-def]  # numba derives the types
    """Return a sum of products, and a sum of losses, float32 in a fixed order."""
    total, loss = np.float32(0.0), np.float32(0.0)
    for place in range(len(values)):
        total += values[place] * weights[place]
        loss += np.float32(math.log1p(math.exp(-abs(values[place]))))
    return np.array([total, loss], dtype=np.float32)


def _compiled() -> NDArray[np.float32]:
    # Without a cache, so that this process compiles it itself.
    compiled = njit(nogil=True)(_loop)
    found: NDArray[np.float32] = compiled(_values().numpy(), _values().numpy()[::-1].copy())
    return found


_CALCULATIONS: dict[str, Callable[[], NDArray[Any]]] = {
    "torch: matrix by vector": _torch_vector,
    "torch: one row by matrix": partial(_torch_product, 1),
    "torch: matrix by matrix": partial(_torch_product, _ROWS),
    "torch: batch of one": partial(_torch_batches, 1),
    "torch: batch of two": partial(_torch_batches, 2),
    "torch: batch of eight": partial(_torch_batches, _ROWS),
    "torch: exp": partial(_torch_function, torch.exp),
    "torch: log1p": partial(_torch_function, lambda values: torch.log1p(values.abs())),
    "torch: softplus": partial(_torch_function, torch.nn.functional.softplus),
    "torch: sum": partial(_torch_function, torch.sum),
    "torch: Cholesky": _torch_factor,
    "numpy: matrix by matrix, float32": partial(_numpy_product, np.float32),
    "numpy: matrix by matrix, float64": partial(_numpy_product, np.float64),
    "numpy: exp": _numpy_exp,
    "numpy: sum": _numpy_sum,
    "numba: a compiled loop": _compiled,
}
