"""`fedrec doctor`: check this machine, suggest remedies, and fingerprint its arithmetic."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedrec.cli.terminal import Result, human_bytes
from fedrec.extras import REQUIREMENT, install_command, smallest_extra

if TYPE_CHECKING:
    from fedrec.arithmetic import Arithmetic
    from fedrec.probes import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """The factors that decide the bits of training here, and the results of the probes.

    Attributes:
        fingerprint: the fingerprint of all probes together.
    """

    arithmetic: Arithmetic
    probes: tuple[Probe, ...]
    fingerprint: str


@cache
def bits_of_this_machine() -> Bits | None:
    """Compute the probes once, or return None if the packages for training aren't installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("numba") is None:
        return None
    from fedrec.arithmetic import arithmetic_of
    from fedrec.probes import fingerprint, look

    probes = look()
    return Bits(arithmetic=arithmetic_of(), probes=probes, fingerprint=fingerprint(probes))


def bits_as_json() -> dict[str, Any] | None:
    """Return the bits as JSON, or None if the packages for training are missing."""
    found = bits_of_this_machine()
    if found is None:
        return None
    return {
        "fingerprint": found.fingerprint,
        "probes": {probe.name: probe.digest for probe in found.probes},
        "arithmetic": asdict(found.arithmetic) | {"digest": found.arithmetic.digest()},
    }


def bits_in_words() -> Iterator[str]:
    """Yield the bits as text, with one probe a line to make two machines easy to compare."""
    found = bits_of_this_machine()
    if found is None:
        return
    yield f"\nFingerprint of the probes: {found.fingerprint}"
    for probe in found.probes:
        yield f"  {probe.digest}  {probe.name}"
    yield f"\nArithmetic: {found.arithmetic.digest()}"
    for name, value in asdict(found.arithmetic).items():
        text = value if isinstance(value, str) else ", ".join(" ".join(pair) for pair in value)
        yield f"  {name}: {text or 'none'}"


EPILOG = "Examples:\n  fedrec doctor\n  fedrec doctor --device cuda:1\n  fedrec doctor --json"

Verdict = Literal["ok", "warn", "fail"]

OLDEST_PYTHON = (3, 11)
FEWEST_FREE_BYTES = 2 << 30
_COLOURS: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "fail": "red"}
_RUNTIME_EXTRAS = ("client", "server", "lab")
_ENCRYPTIONS = (("tenseal", "bfv", "default"), ("gmpy2", "paillier", "packed-2048"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """The result of one check.

    Attributes:
        remedy: what to do about the finding, or empty if it is ok.
    """

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


Device = Annotated[str, typer.Option(help="Device of a test step: auto, cpu, cuda or cuda:N.")]


def doctor(device: Device = "auto") -> Result:
    """Check Python, packages, processor, encryption, disk, cache and the loopback network.

    The command trains one step on the device.

    It exits with code 1 if something that every party needs doesn't work. A missing extra is only a
    warning: a coordinator needs no torch, and a client needs no database.

    On machines that can train, the report ends with a fingerprint of small calculations. Two
    machines with the same fingerprint and the same arithmetic train to the same bits.
    """
    findings = examine(device)
    failed = any(finding.verdict == "fail" for finding in findings)
    shown = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
    return Result(
        content=shown | {"bits": bits_as_json()}, text=_text(findings), exit_code=int(failed)
    )


def examine(device: str = "auto") -> list[DoctorCheck]:
    """Run all checks. A check that raises an error counts as failed."""

    def training() -> Iterator[DoctorCheck]:
        return _training(device)

    findings: list[DoctorCheck] = []
    for check in (*_CHECKS, training):
        try:
            findings.extend(check())
        except Exception as error:
            name = check.__name__.strip("_").replace("_", " ")
            findings.append(
                DoctorCheck(
                    name=name,
                    verdict="fail",
                    found=f"{type(error).__name__}: {error}",
                    remedy="Install fedrec again in a new environment.",
                )
            )
    return findings


def _text(findings: list[DoctorCheck]) -> Iterator[str]:
    for finding in findings:
        colour = None if os.environ.get("NO_COLOR") else _COLOURS[finding.verdict]
        verdict = typer.style(f"{finding.verdict:<5}", fg=colour, reset=colour is not None)
        yield f"{verdict}{finding.name}: {finding.found}"
        if finding.remedy:
            yield f"     {finding.remedy}"
    yield from bits_in_words()


def _python() -> Iterator[DoctorCheck]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        yield DoctorCheck(
            name="Python",
            verdict="fail",
            found=version,
            remedy="Install Python 3.11 or newer, up to 3.14.",
        )
    else:
        yield DoctorCheck(name="Python", verdict="ok", found=version)


def _packages() -> Iterator[DoctorCheck]:
    """Compare the installed packages with the requirements of the distribution."""
    known = {"fedrec"}
    texts = importlib.metadata.requires("fedrec") or []
    wanted = [found for text in texts if (found := REQUIREMENT.match(text))]
    for extra in ("", *_RUNTIME_EXTRAS):
        for one in wanted:
            if (one["extra"] or "") == extra and one["name"] not in known:
                known.add(one["name"])
                small = extra and smallest_extra(one["name"])
                yield _package(one["name"], one["sign"], one["version"], small)


def _package(name: str, sign: str, needed: str, extra: str) -> DoctorCheck:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return DoctorCheck(
            name=name,
            verdict="warn" if extra else "fail",
            found="not installed" + (f". Install the extra {extra!r}" if extra else ""),
            remedy=install_command(extra),
        )
    found, least = _numbers(version), _numbers(needed)
    if found[: len(least)] == least or (sign == ">=" and found > least):
        return DoctorCheck(name=name, verdict="ok", found=version)
    return DoctorCheck(
        name=name,
        verdict="warn",
        found=f"{version}, but fedrec is tested with {sign}{needed}",
        remedy=f"pip install '{name}{sign}{needed}'",
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numeric parts of a version: (2, 13, 0) for 2.13.0+cpu."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def _processor() -> Iterator[DoctorCheck]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield DoctorCheck(name="processor", verdict="ok", found=f"{usable} cores usable")


def _torch_device() -> Iterator[DoctorCheck]:
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    found = "cpu"
    if torch.cuda.is_available():
        found = f"cuda, {torch.cuda.get_device_name(0)}"
    yield DoctorCheck(name="torch device", verdict="ok", found=found)


def _arithmetic() -> Iterator[DoctorCheck]:
    """Compute the probes, which are printed below the findings."""
    found = bits_of_this_machine()
    if found is not None:
        summary = f"fingerprint {found.fingerprint}, arithmetic {found.arithmetic.digest()}"
        yield DoctorCheck(name="arithmetic", verdict="ok", found=summary)


def _training(device: str) -> Iterator[DoctorCheck]:
    """Train one step twice, because the first one also starts the device and its libraries."""
    if importlib.util.find_spec("torch") is None:
        return
    from fedrec.errors import SettingsError
    from fedrec.training.learner import OneStep

    try:
        step = OneStep(device)
    except SettingsError as error:
        yield DoctorCheck(name="training", verdict="fail", found=error.message, remedy=error.remedy)
        return
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        step.train()
        seconds.append(time.perf_counter() - begin)
    yield DoctorCheck(
        name="training",
        verdict="ok",
        found=f"a step on {step.device_name} takes {seconds[1]:.3f} s, the first {seconds[0]:.3f}",
    )


def _encryption() -> Iterator[DoctorCheck]:
    """Encrypt two vectors, add them and decrypt the sum, with every library for encryption."""
    for library, protection, preset in _ENCRYPTIONS:
        if importlib.util.find_spec(library) is not None:
            works = _adds_exactly(protection, preset)
            yield DoctorCheck(
                name=f"encryption, {protection}",
                verdict="ok" if works else "fail",
                found="adds exactly" if works else "a sum was wrong",
                remedy="" if works else f"pip install --force-reinstall {library}",
            )


def _adds_exactly(name: str, preset: str) -> bool:
    import numpy as np

    from fedrec.protection import PROTECTIONS, SegmentSpec, VectorSpec
    from fedrec.protection.protection import in_one_step

    spec = VectorSpec(
        segments=(SegmentSpec(name="probe", length=3, max_abs_sum=100),), max_summands=3
    )
    kind = PROTECTIONS[name]
    protection = in_one_step(kind(spec, kind.plan(spec, preset=preset)))
    context, secret = protection.generate()
    with secret:
        member = protection.member(context, secret)
    total = protection.accumulator(context)
    vector = np.array([1, -2, 3], dtype=np.int64)
    for _ in range(2):
        total.add(member.protect(vector))
    works = bool((member.reveal(total.finish(), 2) == 2 * vector).all())
    member.close()
    return works


def _disk() -> Iterator[DoctorCheck]:
    free = shutil.disk_usage(Path.cwd()).free
    enough = free >= FEWEST_FREE_BYTES
    yield DoctorCheck(
        name="free disk space here",
        verdict="ok" if enough else "warn",
        found=human_bytes(free),
        remedy="" if enough else "Free some disk space. Coordinators keep a round's uploads there.",
    )


def _cache() -> Iterator[DoctorCheck]:
    from fedrec.data import cache_folder
    from fedrec.errors import SettingsError

    try:
        folder = cache_folder()
    except SettingsError as error:
        yield DoctorCheck(name="cache", verdict="warn", found=error.message, remedy=error.remedy)
        return
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    yield DoctorCheck(
        name="cache",
        verdict="ok" if writable else "warn",
        found=f"{folder}, {'writable' if writable else 'not writable'}",
        remedy="" if writable else "Name a writable folder in FEDREC_CACHE.",
    )


def _loopback() -> Iterator[DoctorCheck]:
    """Open a port on 127.0.0.1 and connect to it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()[:2]
            with socket.create_connection(address, timeout=5):
                pass
    except OSError as error:
        yield DoctorCheck(
            name="loopback",
            verdict="fail",
            found=f"no port could be opened on 127.0.0.1: {error.strerror or error}",
            remedy="Allow local connections. The demo and federations on one machine need them.",
        )
    else:
        yield DoctorCheck(name="loopback", verdict="ok", found="ports on 127.0.0.1 can be opened")


_CHECKS: tuple[Callable[[], Iterator[DoctorCheck]], ...] = (
    _python,
    _packages,
    _processor,
    _torch_device,
    _arithmetic,
    _encryption,
    _disk,
    _cache,
    _loopback,
)
