"""What every benchmark prints: the machine, versions, and interleaved runs with their spread."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> str:
    """Return one line on the processor, the cores and the versions that matter."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            model = next(line.split(":", 1)[1].strip() for line in info if "model name" in line)
    except (OSError, StopIteration):
        pass
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "numpy", "tenseal", "grpcio")
    )
    return f"{model}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}"


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option of a benchmark that trains."""
    parser.add_argument(
        "--device", default="cpu", help="where fedrec trains: auto, cpu (by default), cuda, cuda:N"
    )


def describe_device(device: str) -> str:
    """Return one line on where fedrec trains, and refuse what it refuses."""
    import torch

    from fedrec.training.device import choose_device

    chosen = choose_device(device)
    name = "" if chosen.type == "cpu" else f", {torch.cuda.get_device_name(chosen)}"
    return f"fedrec trains on {chosen}{name}"


def interleaved(
    sides: dict[str, Callable[[], object]], *, runs: int = 7, warm_up: int = 1
) -> dict[str, list[float]]:
    """Time all sides in turn, A B A B ..., and return each side's seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for run in range(runs + warm_up):
        for name, action in sides.items():
            begin = time.perf_counter()
            action()
            if run >= warm_up:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def processor_seconds(pids: list[int]) -> float:
    """Return what processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process had resident so far."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def summary(values: list[float], unit: str = "s") -> str:
    """Return median and range."""
    return (
        f"median {statistics.median(values):.4g} {unit} "
        f"(min {min(values):.4g}, max {max(values):.4g}, n = {len(values)})"
    )


def print_ratio(slow: str, fast: str, seconds: dict[str, list[float]]) -> None:
    """Print both sides and the ratio of slow to fast, pair by pair."""
    ratios = [a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)]
    for name in (slow, fast):
        print(f"  {name}: {summary(seconds[name])}")
    print(f"  ratio {slow} / {fast}: {summary(ratios, 'x')}")
