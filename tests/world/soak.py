"""A federation that runs for long while its memory is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from world.bench import Bench, plan_of
from world.children import ClientProcess, CoordinatorProcess
from world.parties import AuthorityProcess, operators_link

WARM_UP = 0.4
"""Share of the samples in which caches may fill and allocators settle."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a process holds at one time.

    Attributes:
        bytes: memory that no file backs, swapped out or not.
        files: open descriptors.
        threads: of the process.
    """

    bytes: int
    files: int
    threads: int


def held_by(pid: int) -> Held:
    """Return what a process holds now."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines}
    return Held(
        bytes=sizes["Anonymous:"] + sizes["Swap:"],
        files=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
    )


@dataclass(frozen=True, kw_only=True)
class Growth:
    """By how much a process holds more at the end than after the warm-up.

    Attributes:
        bytes: the median slope of all pairs of samples, times the time between first and last.
        files: the least of the last third, less the most of what came before it.
        threads: in the same way.
    """

    bytes: float
    files: int
    threads: int


def growth(samples: Sequence[Held]) -> Growth:
    """Return by how much a process grew after its warm-up; single peaks say nothing."""
    kept = samples[int(len(samples) * WARM_UP) :]
    # As many as give a sound median of their slopes.
    step = max(1, len(kept) // 200)
    sizes = [one.bytes for one in kept[::step]]
    slopes = [
        (later - earlier) / (second - first)
        for first, earlier in enumerate(sizes)
        for second, later in enumerate(sizes[first + 1 :], start=first + 1)
    ]
    third = max(1, len(kept) // 3)
    before, last = kept[:-third], kept[-third:]
    return Growth(
        bytes=median(slopes) * (len(sizes) - 1),
        files=min(one.files for one in last) - max(one.files for one in before),
        threads=min(one.threads for one in last) - max(one.threads for one in before),
    )


@dataclass(frozen=True, kw_only=True)
class Parties:
    """Who takes part, by name, and how far they are."""

    pids: Mapping[str, int]
    published: Callable[[], int]


@contextmanager
def working(folder: Path, protection: str) -> Iterator[Parties]:
    """Run a coordinator, an authority where one opens sums, and clients, each as a process."""
    holder = "authority" if protection == "bfv" else "members"
    plan = plan_of(protection, key_holder=holder, total=1_000_000)
    bench = Bench.make(folder, plan)
    with ExitStack() as stack:
        coordinator = CoordinatorProcess(bench)
        stack.callback(coordinator.close)
        pids = {"coordinator": coordinator.process.pid or 0}
        for number in range(bench.n_clients):
            client = ClientProcess(bench, number, coordinator.address)
            stack.callback(client.close)
            pids[f"client {number}"] = client.process.pid or 0
        if holder == "authority":
            authority = AuthorityProcess(bench, coordinator.address)
            stack.callback(authority.close)
            pids["authority"] = authority.pid
        operator = operators_link(bench, coordinator.address)
        stack.callback(operator.close)
        yield Parties(pids=pids, published=lambda: operator.status().published_round)


def soak(
    folder: Path, protection: str, *, seconds: float, every_seconds: float
) -> tuple[dict[str, list[Held]], list[int]]:
    """Let a federation work; return what each process held, and the rounds, sample by sample."""
    with working(folder, protection) as parties:
        samples: dict[str, list[Held]] = {name: [] for name in parties.pids}
        rounds = [parties.published()]
        while rounds[-1] < 3:
            # The first rounds load, compile and connect.
            time.sleep(every_seconds)
            rounds.append(parties.published())
        rounds, until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(every_seconds)
            rounds.append(parties.published())
            for name, pid in parties.pids.items():
                samples[name].append(held_by(pid))
    return samples, rounds
