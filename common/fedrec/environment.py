"""The environment of a run: versions, the causes of its bits, and resuming a run elsewhere.

A run folder, a checkpoint and a client's state record how they were trained. Resuming gives the
same bits only with the same training path and arithmetic, so others are refused until the user
accepts them, which is recorded. This concerns one party's own history. Parties may differ, and a
command that only reads is never refused.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import fedrec
from fedrec.algorithms.trained import TRAINER_VERSION
from fedrec.arithmetic import Arithmetic, arithmetic_of
from fedrec.errors import RefusedError
from fedrec.formats import RUN_FORMAT
from fedrec.plan.algorithm import accelerator_of, training_path
from fedrec.plan.schema import Plan

ACCEPT_FLAG = "--accept-other-arithmetic"
_ARGUMENT = "accept_other_arithmetic=True"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A record that a run was resumed with another path or arithmetic.

    Attributes:
        at: when, in UTC.
        round: the last round before it, or None in a folder of several trainings.
        before: digest of the arithmetic until then.
        after: digest of the arithmetic since then.
        difference: the differences, as text.
    """

    at: str
    round: int | None
    before: str
    after: str
    difference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The training path and arithmetic of a run.

    Attributes:
        path: the trainer or the accelerator, with its version.
        arithmetic: the kind of processor, libraries and the device.
        accepted: accepted changes of either, in order.
    """

    path: str
    arithmetic: Arithmetic
    accepted: tuple[Accepted, ...] = ()

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Provenance:
        """Read the output of `dataclasses.asdict`. Additional keys are ignored.

        Raises:
            ValueError, KeyError, TypeError: a field is missing or has the wrong type.
        """
        return cls(
            path=str(found["path"]),
            arithmetic=Arithmetic.from_json(found["arithmetic"]),
            accepted=tuple(Accepted(**each) for each in found["accepted"]),
        )

    def difference(self, other: Provenance) -> str:
        """Return the differences in `other` as sentences, or empty if there are none."""
        trains = (
            ""
            if self.path == other.path
            else (f"The training path is {other.path}, not {self.path}.")
        )
        return f"{trains} {self.arithmetic.difference(other.arithmetic)}".strip()

    def is_of_another_release(self, other: Provenance) -> bool:
        """Return whether `other` trains the same plan with another release of fedrec.

        On CPUs, the training path follows from the plan and the release alone.
        """
        on_processors = self.arithmetic.device == other.arithmetic.device == "cpu"
        return on_processors and self.path != other.path

    def continued(
        self, present: Provenance, *, what: str, round_id: int | None, now: float, accepted: bool
    ) -> Provenance:
        """Return the record with which a run continues in the present environment.

        Args:
            what: the run's folder, as the beginning of a sentence.
            round_id: the last known round, or None in a folder of several trainings.
            now: unix seconds.
            accepted: whether the user accepts different bits from now on.

        Raises:
            RefusedError: there is a difference that the user did not accept.
        """
        difference = self.difference(present)
        if not difference:
            return self
        if not accepted:
            raise RefusedError(
                f"{what} was trained under other arithmetic, so resuming here would not give the "
                f"same bits. {difference} Nothing was changed.",
                remedy="Resume where it was trained, for example in the same image on the same "
                f"kind of processor. Or give {ACCEPT_FLAG} ({_ARGUMENT} in Python): results stay "
                "as good, but their last bits differ, and the record shows that.",
            )
        change = Accepted(
            at=datetime.fromtimestamp(now, tz=UTC).isoformat(timespec="seconds"),
            round=round_id,
            before=self.arithmetic.digest(),
            after=present.arithmetic.digest(),
            difference=difference,
        )
        return Provenance(
            path=present.path,
            arithmetic=present.arithmetic,
            accepted=(*self.accepted, change),
        )


def provenance_of(plan: Plan, device: str) -> Provenance:
    """Return how this process would train a plan. Imports torch.

    Args:
        device: a device of torch, or "auto".
    """
    arithmetic = arithmetic_of(device)
    path = training_path(plan)
    if arithmetic.device != "cpu" and accelerator_of(plan) is not None:
        # Accelerators are for processors.
        path = f"trainer {TRAINER_VERSION}"
    return Provenance(path=path, arithmetic=arithmetic)


_PACKAGES = ("numpy", "torch", "tenseal", "grpcio", "protobuf", "safetensors", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Versions and hardware, without host names, users or paths.

    Attributes:
        packages: (name, version) of the relevant installed libraries.
        cpu_count: logical processors that this process may use.
        format: the format number of the folder.
        provenance: the training path and arithmetic, or None if other machines train.
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
        """Return the content of `environment.json`, with the provenance at its top level."""
        record = asdict(self)
        trains = record.pop("provenance") or {"path": None, "arithmetic": None, "accepted": []}
        return json.dumps(record | trains, indent=2, ensure_ascii=False) + "\n"


def describe_environment(
    provenance: Provenance | None = None, *, format_number: int = RUN_FORMAT
) -> Environment:
    """Describe this machine without importing any of the packages.

    Args:
        provenance: the provenance of the training, if this machine trains.
        format_number: the format of the folder to describe.
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
