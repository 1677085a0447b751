"""Run a federation under several seeds, or with several settings, in parallel processes.

Each run is that of `simulate` alone, to the bit: runs share nothing but the machine. Every
process gets its share of the cores, records its own run folder and keeps its own checkpoint, so
that a stopped run resumes like any other.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydantic import TypeAdapter

from fedrec.data.catalogue import Catalogue
from fedrec.data.mapped_items import MappedItems
from fedrec.data.splits import UserSplit
from fedrec.errors import ERRORS, FedrecError, InternalError, SettingsError, TrainingError
from fedrec.evaluation.metrics import Rates
from fedrec.formats import CHECKPOINT_FILE
from fedrec.ids import UserId
from fedrec.plan.schema import FederationSettings
from fedrec.plan.travelling_rows import Cells
from fedrec.processes import child_command, module_search_path
from fedrec.settings.schema import Settings
from fedrec.training.executors.worker_process import read_frame, write_frame
from fedrec_lab.reports.result_row import ResultRow
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation.recording import record_simulation
from fedrec_lab.simulation.result import SimulationResult, user_ranks, with_tail
from fedrec_lab.simulation.runner import never, simulate

_SECONDS_BETWEEN_LOOKS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class OnValidation:
    """The results of a run on validation, without test.

    Attributes:
        rates: the rates of the best version, or None if training diverged.
        popularity: the rates of popularity, or None if they were not measured.
        ranks: the rank of every user's validation item, or -1 if it has no such item. A miss has
            rank K.
        note: the reason why there are no rates, or the number of clipped values.
    """

    rates: Rates | None
    popularity: Rates | None = None
    ranks: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """The result of a seed's run. Everything else is in its folder.

    Attributes:
        best_round: the version chosen on validation.
        n_rounds: number of rounds.
        rows: the result table on test, the model first. Empty for a trial.
        validation: the results of a finished trial on validation, or None.
        uninformed: why the version must not be used under noise, or empty if it may.
    """

    seed: int
    folder: Path
    finished: bool
    best_round: int
    n_rounds: int
    rows: tuple[ResultRow, ...] = ()
    validation: OnValidation | None = None
    uninformed: str = ""

    def to_json(self) -> str:
        """Return it as JSON. Floats keep all their digits."""
        return _RESULT.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> SeedResult:
        """Read what `to_json` wrote."""
        return _RESULT.validate_json(text)


_RESULT = TypeAdapter(SeedResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedJob:
    """The job of one process.

    Attributes:
        log: the run's loggers.
        users, catalogue: the data. If omitted, the process reads the settings' data file.
        is_trial: measure on validation alone, record nothing, and resume from a checkpoint that is
            in the folder.
        accept_other_arithmetic: resume even if the checkpoint's training rounded differently.
    """

    settings: Settings
    folder: Path
    n_clients: int
    cells: Cells
    protect: bool = False
    log: Sequence[str] = ()
    users: UserSplit | None
    catalogue: Catalogue | None
    is_trial: bool = False
    accept_other_arithmetic: bool = False

    @property
    def seed(self) -> int:
        """The seed of its federation."""
        return self.settings.federation.seed

    def to_frame(self) -> tuple[dict[str, Any], bytes]:
        """Return it as a header for JSON and bytes."""
        header: dict[str, Any] = {
            "settings": self.settings.model_dump(mode="json"),
            "folder": str(self.folder),
            "n_clients": self.n_clients,
            "cells": self.cells,
            "protect": self.protect,
            "log": list(self.log),
            "is_trial": self.is_trial,
            "accept_other_arithmetic": self.accept_other_arithmetic,
            "parent": os.getpid(),
        }
        users, items = self.users, self.catalogue
        if users is None or items is None:
            return header, b""
        header["user_ids"] = users.user_ids
        header["items"] = [items.item_ids, items.titles, items.version]
        arrays = [users.train_indptr, users.validation_items, users.test_items]
        if isinstance(users.train_items, MappedItems):
            # This process keeps the files, which outlive its children.
            header["train_items"] = users.train_items.to_json()
        else:
            arrays.append(users.train_items)
        return header, np.concatenate(arrays).astype("<i8").tobytes()

    @classmethod
    def from_frame(cls, header: Mapping[str, Any], body: bytes) -> SeedJob:
        """Read what `to_frame` returned."""
        users = items = None
        if "items" in header:
            ids, titles, version = header["items"]
            items = Catalogue.of(ids, titles, version=version)
            user_ids = tuple(map(UserId, header["user_ids"]))
            numbers, n = np.frombuffer(body, "<i8").astype(np.int64), len(user_ids)
            starts, validation, test, train = np.split(numbers, [n + 1, 2 * n + 1, 3 * n + 1])
            mapped = header.get("train_items")
            users = UserSplit(
                user_ids=user_ids,
                train_indptr=starts,
                train_items=train if mapped is None else MappedItems(mapped),
                validation_items=validation,
                test_items=test,
            )
        return cls(
            settings=Settings.model_validate(header["settings"]),
            folder=Path(header["folder"]),
            n_clients=header["n_clients"],
            cells=tuple(tuple(cell) for cell in header["cells"]),
            protect=header["protect"],
            log=header["log"],
            is_trial=header["is_trial"],
            accept_other_arithmetic=header["accept_other_arithmetic"],
            users=users,
            catalogue=items,
        )


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_seeds(seeds: Sequence[int]) -> None:
    """Check the seeds of several runs.

    Raises:
        SettingsError: a seed is named twice, or is none.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise SettingsError(
            f"The seeds are {list(seeds)}. Expected one or more, each once.",
            remedy="Name every seed once, e.g. 1,2,3.",
        )
    outside = [seed for seed in seeds if not 0 <= seed < 2**63]
    if outside:
        raise SettingsError(
            f"{outside[0]} is not a valid seed.", remedy="A seed is an integer from 0 to 2^63 - 1."
        )


def settings_of_seeds(settings: Settings, seeds: Sequence[int]) -> dict[int, Settings]:
    """Return the settings under every seed, in the order given. See `check_seeds`."""
    check_seeds(seeds)
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
    log: Sequence[str] = (),
    on_round: Callable[[int, RoundReport], None] | None = None,
    stop: Callable[[], bool] = never,
    users: UserSplit | None = None,
    catalogue: Catalogue | None = None,
) -> list[SeedResult]:
    """Run a federation once for every seed, several at a time, and record each in its folder.

    Args:
        folders: an existing run folder for each seed, in the order in which they are begun.
        jobs: processes at a time. 0 for one a core.
        log: the loggers of each seed, as in `simulate`.
        on_round: told of each seed's rounds, in the order of each seed.
        stop: asked all the time. Then every run stops after its round and saves. Seeds that were
            not begun are not in the result.

    Raises:
        SettingsError: settings that cannot be used. See `settings_of_seeds`, too.
        FedrecError: what stopped one of the runs. The others were stopped and saved.
    """
    jobs_of_seeds = [
        SeedJob(
            settings=own,
            folder=folders[seed],
            n_clients=n_clients,
            cells=cells,
            protect=protect,
            log=log,
            users=users,
            catalogue=catalogue,
        )
        for seed, own in settings_of_seeds(settings, list(folders)).items()
    ]
    found: dict[int, SeedResult] = {}
    run_jobs(jobs_of_seeds, jobs=jobs, on_round=on_round, on_result=found.__setitem__, stop=stop)
    return [found[place] for place in range(len(jobs_of_seeds)) if place in found]


def run_jobs(
    waiting: Sequence[SeedJob],
    *,
    jobs: int = 0,
    on_round: Callable[[int, RoundReport], None] | None = None,
    on_result: Callable[[int, SeedResult], None],
    stop: Callable[[], bool] = never,
) -> None:
    """Run every job in a process of its own, several at a time.

    Args:
        jobs: processes at a time. 0 for one a core.
        on_round: told of each job's rounds, with its seed.
        on_result: told of each result as it comes, with the job's place in the list.
        stop: asked all the time. Then every run stops after its round and saves. Jobs that were
            not begun have no result.

    Raises:
        FedrecError: what stopped one of the runs. The others were stopped and saved.
    """
    at_once = max(1, min(jobs or available_cores(), len(waiting)))
    share = max(1, available_cores() // at_once)
    workers = _Workers(at_once, on_round, on_result)
    try:
        workers.run([_with_share(job, share) for job in waiting], stop)
    finally:
        workers.end()


def _with_share(job: SeedJob, cores: int) -> SeedJob:
    """Return a job that takes its share of the cores."""
    client = job.settings.client
    # "auto" takes at most as many processes as threads. A cluster's workers aren't of this machine.
    elsewhere = client.workers == "auto" or client.engine == "ray"
    workers = client.workers if elsewhere else min(client.workers, cores)
    within = {"threads": min(client.threads or cores, cores), "workers": workers}
    settings = job.settings.model_copy(update={"client": client.model_copy(update=within)})
    return replace(job, settings=settings)


class _Workers:
    """A limited number of parallel processes, and their messages."""

    def __init__(
        self,
        at_once: int,
        on_round: Callable[[int, RoundReport], None] | None,
        on_result: Callable[[int, SeedResult], None],
    ) -> None:
        self._at_once = at_once
        self._on_round = on_round
        self._on_result = on_result
        self._answers: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
        self._jobs: list[SeedJob] = []
        # Keyed by the job's position in the list, as is everything below.
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._ears: list[threading.Thread] = []
        self._done: set[int] = set()
        self._failed: FedrecError | None = None

    def run(self, jobs: list[SeedJob], stop: Callable[[], bool]) -> None:
        """Hold all runs, and tell what came of those that began."""
        self._jobs, waiting = jobs, list(range(len(jobs)))
        stopped = False
        while waiting or self._running:
            if not stopped and (stop() or self._failed is not None):
                stopped = True
                waiting.clear()
                for process in self._running.values():
                    self._tell(process, {"say": "stop"})
            while waiting and len(self._running) < self._at_once:
                self._begin(waiting.pop(0))
            with suppress(queue.Empty):
                self._hear(*self._answers.get(timeout=_SECONDS_BETWEEN_LOOKS))
        if self._failed is not None:
            raise self._failed

    def _begin(self, place: int) -> None:
        # A forked process would inherit threads that hold locks, and what `multiprocessing` spawns
        # runs the main module again.
        process = subprocess.Popen(
            child_command("fedrec_lab.seed_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": module_search_path()},
        )
        self._running[place] = process
        self._tell(process, *self._jobs[place].to_frame())
        self._ears.append(
            threading.Thread(target=self._listen, args=(place, process.stdout), daemon=True)
        )
        self._ears[-1].start()

    def _listen(self, place: int, pipe: IO[bytes]) -> None:
        """Forward the messages of a process, and None at the end."""
        with pipe:
            while (frame := read_frame(pipe)) is not None:
                self._answers.put((place, frame[0]))
        self._answers.put((place, None))

    def _tell(
        self, process: subprocess.Popen[bytes], header: Mapping[str, Any], body: bytes = b""
    ) -> None:
        assert process.stdin is not None
        with suppress(OSError):
            write_frame(process.stdin, header, body)

    def _hear(self, place: int, answer: dict[str, Any] | None) -> None:
        if answer is None:
            self._ended(place)
        elif "report" in answer:
            if self._on_round is not None:
                seed = self._jobs[place].seed
                self._on_round(seed, RoundReport.from_json(answer["report"]))
        elif "result" in answer:
            self._done.add(place)
            self._on_result(place, SeedResult.from_json(answer["result"]))
        elif self._failed is None:
            error = answer["error"]
            kind = ERRORS[error["code"]]
            message = f"Seed {self._jobs[place].seed}: {error['message']}"
            self._failed = kind(message, remedy=error["remedy"])

    def _ended(self, place: int) -> None:
        process = self._running.pop(place)
        _close(process)
        if place in self._done or self._failed is not None:
            return
        seed = self._jobs[place].seed
        killed = process.returncode == -signal.SIGKILL
        self._failed = InternalError(
            f"The process of seed {seed} died with exit code {process.returncode}.",
            remedy="If the machine ran out of memory, run fewer seeds at a time or lower "
            "client.memory_mib. The run can be resumed from its folder."
            if killed
            else "Its output on stderr has the reason. The run can be resumed from its folder.",
        )

    def end(self) -> None:
        """Let none outlive this one. Only after an error or a second Ctrl-C is any left."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            _close(process)
        for ear in self._ears:
            ear.join()


def run_seed(
    job: SeedJob, on_round: Callable[[RoundReport], None], stop: Callable[[], bool]
) -> SeedResult:
    """Hold one job's run in this process, and record it in its folder unless it is a trial."""
    run = RunFolder(job.folder)
    try:
        result = simulate(
            job.settings,
            n_clients=job.n_clients,
            cells=job.cells,
            protect=job.protect,
            log=job.log,
            folder=job.folder,
            resume=job.is_trial and (job.folder / CHECKPOINT_FILE).is_file(),
            accept_other_arithmetic=job.accept_other_arithmetic,
            on_round=on_round if job.is_trial else run.appending(on_round),
            stop=stop,
            users=job.users,
            catalogue=job.catalogue,
        )
    except TrainingError as error:
        if not job.is_trial:
            raise
        diverged = OnValidation(rates=None, note=f"diverged: {error.message}")
        return SeedResult(
            seed=job.seed,
            folder=job.folder,
            finished=True,
            best_round=0,
            n_rounds=0,
            validation=diverged,
        )
    if not job.is_trial:
        result = with_tail(result)
        record_simulation(result, run)
    return SeedResult(
        seed=job.seed,
        folder=job.folder,
        finished=result.finished,
        best_round=int(result.best.round),
        n_rounds=len(result.rounds),
        rows=() if job.is_trial else result.rows(),
        validation=_on_validation(result) if job.is_trial and result.finished else None,
        uninformed="" if result.uninformed is None else result.uninformed.message,
    )


def _on_validation(result: SimulationResult) -> OnValidation:
    report, evaluation = result.best_report, result.evaluation
    ranks = user_ranks(result, "validation").model
    clipped = max((each.clipped_values for each in result.rounds), default=0)
    return OnValidation(
        rates=None if report is None else report.validation,
        popularity=None if evaluation is None else evaluation.rates("popularity", "validation"),
        ranks=tuple(np.minimum(ranks, result.settings.evaluation.at).tolist()),
        note=f"{clipped} values clipped in a round" if clipped else "",
    )


def _close(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
