"""Where a run happened, what its bits follow from besides users and plan, and going on elsewhere.

A run folder, a checkpoint and a client's state say what trained them. Who goes on with a run gets
the same bits only by the same path and arithmetic, so others are refused until somebody accepts
them, which is written down. This is about one party's own history: parties need not agree with
each other, and a command that only reads is never refused.
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
from fedrec.plan.algorithm import training_path
from fedrec.plan.schema import Plan

ACCEPT_FLAG = "--accept-other-arithmetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Somebody went on with a run under another path or arithmetic.

    Attributes:
        at: when, in UTC.
        round: the last round that was known before; None in a folder of several trainings.
        before: digest of the arithmetic until then.
        after: digest of the arithmetic from then on.
        difference: what differs, for people.
    """

    at: str
    round: int | None
    before: str
    after: str
    difference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What trains, and how it rounds.

    Attributes:
        path: the trainer or the accelerator, with its version.
        arithmetic: the kind of processor, libraries and the device.
        accepted: changes of either that were accepted, in their order.
    """

    path: str
    arithmetic: Arithmetic
    accepted: tuple[Accepted, ...] = ()

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Provenance:
        """Return what `dataclasses.asdict` wrote down; further keys are not looked at.

        Raises:
            ValueError, KeyError, TypeError: a field is missing or of another type.
        """
        return cls(
            path=str(found["path"]),
            arithmetic=Arithmetic.from_json(found["arithmetic"]),
            accepted=tuple(Accepted(**each) for each in found["accepted"]),
        )

    def difference(self, other: Provenance) -> str:
        """Return what differs in `other`, in sentences; empty where nothing does."""
        trains = "" if self.path == other.path else f"What trains is {other.path}, not {self.path}."
        return f"{trains} {self.arithmetic.difference(other.arithmetic)}".strip()

    def is_of_another_release(self, other: Provenance) -> bool:
        """Tell whether only another release of fedrec trains the same plan as `other` does.

        On processors the plan and the release decide what trains, and nothing else does.
        """
        on_processors = self.arithmetic.device == other.arithmetic.device == "cpu"
        return on_processors and self.path != other.path

    def continued(
        self, present: Provenance, *, what: str, round_id: int | None, now: float, accepted: bool
    ) -> Provenance:
        """Return the record with which a run goes on under what is present.

        Args:
            what: the run's folder, at the beginning of a sentence.
            round_id: the last round that is known; None in a folder of several trainings.
            now: unix seconds.
            accepted: whether somebody accepted that bits differ from here on.

        Raises:
            RefusedError: something differs and nobody accepted that.
        """
        difference = self.difference(present)
        if not difference:
            return self
        if not accepted:
            raise RefusedError(
                f"{what} was trained under other arithmetic, so going on here would not give the "
                f"same bits. {difference} Nothing was changed.",
                remedy="Go on where it was trained, as in the same image on the same kind of "
                f"processor, or give {ACCEPT_FLAG}: results stay as good, only their last bits "
                "differ, and the record says so.",
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
    """Return what trains a plan in this process; imports torch.

    Args:
        device: a device of torch, or "auto".
    """
    arithmetic = arithmetic_of(device)
    # Accelerators are for processors; any other device has the trainer.
    on_processor = arithmetic.device == "cpu"
    path = training_path(plan) if on_processor else f"trainer {TRAINER_VERSION}"
    return Provenance(path=path, arithmetic=arithmetic)


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
