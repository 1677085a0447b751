"""The arithmetic of this machine: the processor, libraries and settings that decide its rounding.

Two processes with the same `Arithmetic` compute the same bits from the same user and plan.
Otherwise, contributions differ in their last bits. Both are good, and parties of a federation may
differ.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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
    """Everything besides user and plan that determines a contribution's bits.

    Attributes:
        device: where training runs: "cpu", or "cuda" with the device's name.
        machine: the instruction set, e.g. x86_64.
        processor: the kind of processor as LLVM names it, e.g. znver3, or empty if unknown.
        torch_capability: vector instructions that torch's own kernels use, e.g. AVX512.
        torch_blas: torch's linear algebra, with its version if known.
        numpy_blas: numpy's linear algebra, with its version and the kernels that it chose.
        numba_cpu: the processor that numba compiles for.
        c_library: name and version. Compiled code takes exp and log from it.
        libraries: (name, version) of the libraries that compute.
        settings: (name, value) of environment variables that change any of it.
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
        """Return a unique encoding: JSON with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    def digest(self) -> str:
        """Return a short digest, 16 hexadecimal digits."""
        return hashlib.sha256(self.canonical()).hexdigest()[:_DIGEST_LETTERS]

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Arithmetic:
        """Read the output of `canonical` or of `dataclasses.asdict`.

        Raises:
            ValueError: a field is missing, unknown or has the wrong type.
        """
        names = {field.name for field in fields(cls)}
        if set(found) != names:
            wrong = ", ".join(sorted(set(found) ^ names))
            raise ValueError(f"a record of arithmetic has unexpected fields: {wrong}")
        texts = {name: found[name] for name in names - {"libraries", "settings"}}
        if not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("a record of arithmetic has a field that is not text")
        return cls(
            libraries=_pairs(found["libraries"]), settings=_pairs(found["settings"]), **texts
        )

    def difference(self, other: Arithmetic) -> str:
        """Return a sentence that names the differences in `other`, or empty if there are none."""
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
    """Return this process's arithmetic. Imports torch and numba if they are installed.

    Args:
        device: a device of torch, e.g. "cpu" or "cuda:0". "auto" is the one that training would
            choose.
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
    """Return a library's version, read once, because it cannot change within a process."""
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
    text = torch.__config__.show()
    libraries = [line.strip("- \n") for line in text.splitlines() if "Math Kernel Library" in line]
    return torch.backends.cpu.get_cpu_capability(), "".join(libraries) or "not MKL", where


def _processor() -> tuple[str, str]:
    """Return LLVM's names of the processor and of the one that numba compiles for."""
    try:
        from llvmlite import binding
        from numba.core import config
    except ImportError:
        return "", ""
    own = str(binding.get_host_cpu_name())
    # numba defines its settings at import, and its types do not list them.
    return own, str(getattr(config, "CPU_NAME", None) or own)


def _numpy_blas() -> str:
    """Return numpy's BLAS and, for OpenBLAS, the kernels that it chose at load time."""
    import numpy

    built: Any = numpy.show_config(mode="dicts")
    blas = built["Build Dependencies"]["blas"]
    name = f"{blas['name']} {blas['version']}"
    for path in Path(numpy.__file__).parents[1].glob("numpy.libs/*openblas*"):
        ask = getattr(ctypes.CDLL(str(path)), "scipy_openblas_get_corename64_", None)
        if ask is not None:
            ask.restype = ctypes.c_char_p
            name += f" {ask().decode()}"
    return name
