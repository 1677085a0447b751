"""What decides how this machine rounds, and small calculations that show it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from fedrec.random_streams import normal
from fedrec.tensor_products import one_thread

_LIBRARIES = ("torch", "numpy", "numba", "llvmlite")
_SETTINGS = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "NUMBA_CPU_FEATURES",
    "NUMBA_CPU_NAME",
    "NUMBA_OPT",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
_DIGEST_LETTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Everything besides user and plan that a contribution's bits follow from.

    Attributes:
        device: where training runs: "cpu", or "cuda" with the device's name.
        machine: the instruction set, e.g. x86_64.
        processor: the kind of processor as LLVM names it, e.g. znver3; empty where unknown.
        torch_capability: vector instructions that torch's own kernels use, e.g. AVX512.
        torch_blas: torch's linear algebra, with its version where it is told.
        numpy_blas: numpy's linear algebra, with its version and the kernels that it chose.
        numba_cpu: the processor that numba compiles for.
        c_library: name and version; compiled code takes exp and log from it.
        libraries: (name, version) of what computes.
        settings: (name, value) of variables of the environment that change any of it.
    """

    device: str
    machine: str
    processor: str
    torch_capability: str
    torch_blas: str
    numpy_blas: str
    numba_cpu: str
    c_library: str
    libraries: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...] = ()

    def canonical(self) -> bytes:
        """Return one encoding of all of it: JSON with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    def digest(self) -> str:
        """Return a short name for it, 16 hexadecimal letters."""
        return hashlib.sha256(self.canonical()).hexdigest()[:_DIGEST_LETTERS]

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Arithmetic:
        """Return what `canonical` or `dataclasses.asdict` wrote down.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        names = {field.name for field in fields(cls)}
        if set(found) != names:
            wrong = ", ".join(sorted(set(found) ^ names))
            raise ValueError(f"a record of arithmetic has other fields: {wrong}")
        texts = {name: found[name] for name in names - {"libraries", "settings"}}
        if not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("a record of arithmetic has a field that is no text")
        return cls(
            libraries=_pairs(found["libraries"]), settings=_pairs(found["settings"]), **texts
        )

    def difference(self, other: Arithmetic) -> str:
        """Return one sentence that names what differs in `other`; empty where nothing does."""
        parts = []
        for field in fields(self):
            own, others = getattr(self, field.name), getattr(other, field.name)
            if own == others:
                continue
            if isinstance(own, str):
                parts.append(f"{field.name} is {others or 'unknown'}, not {own or 'unknown'}")
                continue
            mine, theirs = dict(own), dict(others)
            parts += [
                f"{name} is {theirs.get(name, 'absent')}, not {mine.get(name, 'absent')}"
                for name in sorted({*mine, *theirs})
                if mine.get(name) != theirs.get(name)
            ]
        return "" if not parts else "The arithmetic differs: " + "; ".join(parts) + "."


def _pairs(found: Any) -> tuple[tuple[str, str], ...]:
    pairs = tuple((str(name), str(value)) for name, value in found)
    return tuple(sorted(pairs))


def arithmetic_of(device: str = "cpu") -> Arithmetic:
    """Return this process's arithmetic; imports torch and numba where they are installed.

    Args:
        device: a device of torch, e.g. "cpu" or "cuda:0"; "auto" is what training would choose.
    """
    capability, blas, where = _torch(device)
    processor, target = _processor()
    return Arithmetic(
        device=where,
        machine=platform.machine(),
        processor=processor,
        torch_capability=capability,
        torch_blas=blas,
        numpy_blas=_numpy_blas(),
        numba_cpu=target,
        c_library=" ".join(part for part in platform.libc_ver() if part),
        libraries=tuple(sorted((name, _version(name)) for name in _LIBRARIES if _version(name))),
        settings=tuple((name, os.environ[name]) for name in _SETTINGS if os.environ.get(name)),
    )


@cache
def _version(name: str) -> str:
    """Return a library's version, read once: no process changes what it runs on."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _torch(device: str) -> tuple[str, str, str]:
    """Return torch's capability and linear algebra, and the device by its name."""
    try:
        import torch

        from fedrec.training.device import choose_device
    except ImportError:
        return "", "", device
    chosen, where = choose_device(device), "cpu"
    if chosen.type == "cuda":
        where = f"cuda, {torch.cuda.get_device_name(chosen)}"
    told = torch.__config__.show()
    libraries = [line.strip("- \n") for line in told.splitlines() if "Math Kernel Library" in line]
    return torch.backends.cpu.get_cpu_capability(), "".join(libraries) or "not MKL", where


def _processor() -> tuple[str, str]:
    """Return the processor, and the one that numba compiles for, as LLVM names them."""
    try:
        from llvmlite import binding
        from numba.core import config
    except ImportError:
        return "", ""
    own = str(binding.get_host_cpu_name())
    # numba makes its settings when it is imported; its types do not list them.
    return own, str(getattr(config, "CPU_NAME", None) or own)


def _numpy_blas() -> str:
    """Return numpy's BLAS, and of OpenBLAS the kernels: it chooses them when it is loaded."""
    import numpy

    built: Any = numpy.show_config(mode="dicts")
    blas = built["Build Dependencies"]["blas"]
    told = f"{blas['name']} {blas['version']}"
    for path in Path(numpy.__file__).parents[1].glob("numpy.libs/*openblas*"):
        ask = getattr(ctypes.CDLL(str(path)), "scipy_openblas_get_corename64_", None)
        if ask is not None:
            ask.restype = ctypes.c_char_p
            told += f" {ask().decode()}"
    return told


# One thread computes what is this small, whatever the number of threads is.
_ROWS, _INNER, _COLUMNS = 8, 32, 32
_LENGTH = 1003
_APART = 1_000_003
"""Between the keys of two tables: counters add to a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One calculation.

    Attributes:
        name: the library and what it computed.
        digest: of the result's bytes, 16 hexadecimal letters.
    """

    name: str
    digest: str


def fingerprint(probes: Sequence[Probe]) -> str:
    """Return one short text for the results of all probes, 16 hexadecimal letters."""
    told = "\n".join(f"{probe.name} {probe.digest}" for probe in probes)
    return hashlib.sha256(told.encode()).hexdigest()[:_DIGEST_LETTERS]


def look() -> tuple[Probe, ...]:
    """Compute everything once; compiling the loop takes about a second."""
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
    # Without a cache: what this process would compile, not what another one left behind.
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
