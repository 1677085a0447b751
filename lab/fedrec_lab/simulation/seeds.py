"""The same federation under several seeds, side by side in processes of their own.

Each seed's run is that of `simulate` alone, to the bit: seeds share nothing but the machine. Every
process gets its share of the cores, records its own run folder and keeps its own checkpoint, so
that a stopped seed goes on like any stopped run.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.config.schema import FederationSettings, Settings
from fedrec.data.catalogue import Catalogue
from fedrec.data.splits import UserSplit
from fedrec.errors import FedrecError, InternalError, SettingsError
from fedrec.planning.cell_rows import Cells
from fedrec_lab.reports.result_row import ResultRow
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation.recording import record_simulation
from fedrec_lab.simulation.runner import never, simulate

__all__ = ["SeedResult", "available_cores", "settings_of_seeds", "simulate_seeds"]

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_END = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What a seed's run came to; everything else is in its folder.

    Attributes:
        best_round: the version chosen on validation.
        n_rounds: rounds that were held.
        rows: the result table on test, the model first.
    """

    seed: int
    folder: Path
    finished: bool
    best_round: int
    n_rounds: int
    rows: tuple[ResultRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    settings: Settings
    folder: Path
    n_clients: int
    cells: Cells
    protect: bool
    users: UserSplit | None
    catalogue: Catalogue | None

    @property
    def seed(self) -> int:
        return self.settings.federation.seed


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def settings_of_seeds(settings: Settings, seeds: Sequence[int]) -> dict[int, Settings]:
    """Return the settings under every seed, in the order given.

    Raises:
        SettingsError: a seed is named twice, or is none.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise SettingsError(
            f"The seeds are {list(seeds)}; expected one or more, each once.",
            remedy="Name every seed once, e.g. 1,2,3.",
        )
    outside = [seed for seed in seeds if not 0 <= seed < 2**63]
    if outside:
        raise SettingsError(
            f"{outside[0]} is no seed.", remedy="A seed is an integer from 0 to 2^63 - 1."
        )
    values = settings.federation.model_dump()
    return {
        seed: settings.model_copy(
            update={"federation": FederationSettings(**(values | {"seed": seed}))}
        )
        for seed in seeds
    }


def simulate_seeds(
    settings: Settings,
    folders: Mapping[int, Path],
    *,
    jobs: int = 0,
    n_clients: int = 1,
    cells: Cells = (),
    protect: bool = False,
    on_round: Callable[[int, RoundReport], None] | None = None,
    stop: Callable[[], bool] = never,
    users: UserSplit | None = None,
    catalogue: Catalogue | None = None,
) -> list[SeedResult]:
    """Run a federation once for every seed, several at a time, and record each in its folder.

    Args:
        folders: an existing run folder for each seed, in the order in which they are begun.
        jobs: processes at a time; 0 for one a core.
        on_round: told of each seed's rounds, in the order of each seed.
        stop: asked all the time; then every run stops after its round and saves. Seeds that were
            not begun are not in the result.

    Raises:
        SettingsError: settings that cannot be used; see `settings_of_seeds`, too.
        FedrecError: what stopped one of the runs; the others were stopped and saved.
    """
    of_seeds = settings_of_seeds(settings, list(folders))
    at_once = min(jobs or available_cores(), len(folders))
    share = max(1, available_cores() // at_once)
    threads = min(settings.client.threads or share, share)
    asked = settings.client.workers
    # "auto" takes no more processes than threads.
    each = asked if asked == "auto" else min(asked, share)
    within = {"threads": threads, "workers": each}
    waiting = [
        _Job(
            settings=own.model_copy(update={"client": own.client.model_copy(update=within)}),
            folder=folders[seed],
            n_clients=n_clients,
            cells=cells,
            protect=protect,
            users=users,
            catalogue=catalogue,
        )
        for seed, own in of_seeds.items()
    ]
    # A forked process would inherit threads that hold locks.
    context = multiprocessing.get_context("spawn")
    workers = _Workers(context, at_once, on_round)
    try:
        found = workers.run(waiting, stop)
    finally:
        workers.end()
    return [found[seed] for seed in folders if seed in found]


class _Workers:
    """At most so many processes at a time, and what they say."""

    def __init__(
        self, context: Any, at_once: int, on_round: Callable[[int, RoundReport], None] | None
    ) -> None:
        self._context = context
        self._at_once = at_once
        self._on_round = on_round
        self._said = context.Queue()
        self._stopping = context.Event()
        self._running: dict[int, Any] = {}
        self._found: dict[int, SeedResult] = {}
        self._failed: FedrecError | None = None

    def run(self, waiting: list[_Job], stop: Callable[[], bool]) -> dict[int, SeedResult]:
        """Hold all runs; return what came of those that began."""
        while waiting or self._running:
            if stop() or self._failed is not None:
                self._stopping.set()
                waiting.clear()
            while waiting and len(self._running) < self._at_once:
                self._begin(waiting.pop(0))
            self._listen()
        if self._failed is not None:
            raise self._failed
        return self._found

    def _begin(self, job: _Job) -> None:
        process = self._context.Process(
            target=_work, args=(job, self._said, self._stopping), daemon=True
        )
        process.start()
        self._running[job.seed] = process

    def _listen(self) -> None:
        dead = [seed for seed, process in self._running.items() if not process.is_alive()]
        try:
            while True:
                self._hear(*self._said.get(timeout=_SECONDS_BETWEEN_LOOKS))
        except queue.Empty:
            pass
        # Who died before and has said nothing by now never will.
        for seed in dead:
            process = self._running.pop(seed, None)
            if process is not None:
                self._failed = self._failed or InternalError(
                    f"The process of seed {seed} died with exit code {process.exitcode}.",
                    remedy="If the machine ran out of memory, take fewer --jobs or lower "
                    "client.memory_mib; the run can be resumed from its folder.",
                )

    def _hear(self, seed: int, said: RoundReport | SeedResult | FedrecError) -> None:
        if isinstance(said, RoundReport):
            if self._on_round is not None:
                self._on_round(seed, said)
            return
        self._running.pop(seed).join()
        if isinstance(said, SeedResult):
            self._found[seed] = said
        elif self._failed is None:
            said.message = f"Seed {seed}: {said.message}"
            self._failed = said

    def end(self) -> None:
        """Let nobody outlive this one; only after an error or a second Ctrl-C is anybody left."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.join(_SECONDS_TO_END)
        self._said.close()


def _work(job: _Job, said: Any, stopping: Any) -> None:
    """Hold one seed's run in a process of its own."""
    # Ctrl-C reaches every process of a terminal; the first one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = RunFolder(job.folder)

    def tell(report: RoundReport) -> None:
        run.append_round(report)
        said.put((job.seed, report))

    try:
        result = simulate(
            job.settings,
            n_clients=job.n_clients,
            cells=job.cells,
            protect=job.protect,
            folder=job.folder,
            on_round=tell,
            stop=stopping.is_set,
            users=job.users,
            catalogue=job.catalogue,
        )
        record_simulation(result, run)
    except FedrecError as error:
        said.put((job.seed, error))
        return
    said.put(
        (
            job.seed,
            SeedResult(
                seed=job.seed,
                folder=job.folder,
                finished=result.finished,
                best_round=int(result.best.round),
                n_rounds=len(result.rounds),
                rows=result.rows(),
            ),
        )
    )
