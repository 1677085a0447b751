"""Where a run happened, as far as it can matter to its numbers."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fedrec
from fedrec.formats import RUN_FORMAT
from fedrec.provenance import Provenance

_PACKAGES = ("numpy", "torch", "tenseal", "grpcio", "protobuf", "safetensors", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Versions and machine; neither host names, nor users, nor paths.

    Attributes:
        packages: (name, version) of what is installed among the libraries that matter.
        cpu_count: logical processors that this process may use.
        format: the number of the folder's format.
        provenance: what trains here and how that rounds; None where others train.
    """

    format: int
    fedrec: str
    python: str
    packages: tuple[tuple[str, str], ...]
    system: str
    machine: str
    cpu: str
    cpu_count: int
    provenance: Provenance | None = None

    def to_json(self) -> str:
        """Return the content of `environment.json`; what trains stands beside the rest."""
        record = asdict(self)
        trains = record.pop("provenance") or {"path": None, "arithmetic": None, "accepted": []}
        return json.dumps(record | trains, indent=2, ensure_ascii=False) + "\n"


def describe_environment(
    provenance: Provenance | None = None, *, format_number: int = RUN_FORMAT
) -> Environment:
    """Look at this machine; imports none of the packages.

    Args:
        provenance: of the training, where this machine trains.
        format_number: of the folder that the description is for.
    """
    return Environment(
        format=format_number,
        fedrec=fedrec.__version__,
        python=platform.python_version(),
        packages=tuple((name, found) for name in _PACKAGES if (found := _installed(name))),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=_cpu_model(),
        cpu_count=_usable_cpus(),
        provenance=provenance,
    )


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2] for line in text.splitlines() if line.startswith("model name")]
    return names[0].strip() if names else platform.processor()
