"""What `fedrec doctor` tells of this machine's bits, so that two operators can compare theirs."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fedrec.cli.terminal import new_console

if TYPE_CHECKING:
    from fedrec.arithmetic import Arithmetic, Probe

__all__ = ["Bits", "bits_as_json", "bits_of_this_machine", "print_bits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """What decides the bits of training here, and what came out of the probes.

    Attributes:
        fingerprint: of all probes together.
    """

    arithmetic: Arithmetic
    probes: tuple[Probe, ...]
    fingerprint: str


@cache
def bits_of_this_machine() -> Bits | None:
    """Compute the probes once; None where what trains is not installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("numba") is None:
        return None
    from fedrec.arithmetic import arithmetic_of, fingerprint, look

    probes = look()
    return Bits(arithmetic=arithmetic_of(), probes=probes, fingerprint=fingerprint(probes))


def bits_as_json() -> dict[str, Any] | None:
    """Return all of it for programs, or None."""
    found = bits_of_this_machine()
    if found is None:
        return None
    return {
        "fingerprint": found.fingerprint,
        "probes": {probe.name: probe.digest for probe in found.probes},
        "arithmetic": asdict(found.arithmetic) | {"digest": found.arithmetic.digest()},
    }


def print_bits() -> None:
    """Print all of it for people, the probes one a line so that two machines can be compared."""
    found = bits_of_this_machine()
    if found is None:
        return
    console = new_console()
    console.print(f"\nFingerprint of the probes: {found.fingerprint}")
    for probe in found.probes:
        console.print(f"  {probe.digest}  {probe.name}")
    console.print(f"\nArithmetic: {found.arithmetic.digest()}")
    for name, value in asdict(found.arithmetic).items():
        text = value if isinstance(value, str) else ", ".join(" ".join(pair) for pair in value)
        console.print(f"  {name}: {text or 'none'}")
