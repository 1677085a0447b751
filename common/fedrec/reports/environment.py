"""Where a run happened, as far as it can matter to its numbers."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fedrec
from fedrec.arithmetic import Arithmetic

__all__ = ["ENVIRONMENT_NAME", "Environment", "describe_environment"]

ENVIRONMENT_NAME = "environment.json"
_PACKAGES = ("numpy", "torch", "tenseal", "grpcio", "protobuf", "safetensors", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Versions and machine; neither host names, nor users, nor paths.

    Attributes:
        packages: (name, version) of what is installed among the libraries that matter.
        cpu_count: logical processors that this process may use.
        arithmetic: how training rounds here, its device included; None where others train.
    """

    fedrec: str
    python: str
    packages: tuple[tuple[str, str], ...]
    system: str
    machine: str
    cpu: str
    cpu_count: int
    arithmetic: Arithmetic | None = None

    def to_json(self) -> str:
        """Return the content of `environment.json`."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def describe_environment(arithmetic: Arithmetic | None = None) -> Environment:
    """Look at this machine; imports none of the packages.

    Args:
        arithmetic: that of the training, where this machine trains.
    """
    return Environment(
        fedrec=fedrec.__version__,
        python=platform.python_version(),
        packages=tuple((name, found) for name in _PACKAGES if (found := _installed(name))),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=_cpu_model(),
        cpu_count=_usable_cpus(),
        arithmetic=arithmetic,
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
