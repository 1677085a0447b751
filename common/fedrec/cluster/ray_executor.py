"""Train and measure a party's users on a Ray cluster, in contiguous shards of users.

Workers keep no state. A shard's tables go to a node once, and stay in its object store as long as
the cohort lives. Each round's call also brings the model, which goes to a node once, and the
private rows of the users that train. They come back with the shard's integer sums. So Ray may
repeat any call anywhere, and sums have the bits of one process.

Rows travel because the party alone must keep them: its own versions are what a round changes, and
a call changes none. Ray's store never changes an object either. A version in it, or in files of the
nodes, would be a second truth that a node's death or a restored backup could set against the first.
"""

from __future__ import annotations

import math
import re
import signal
import socket
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import ray
import ray.exceptions
import torch
from numpy.typing import NDArray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedrec.algorithms.cohort import Cohort
from fedrec.cluster.shard_worker import NodeReport, ShardRanking, ShardWorker, Told, Training
from fedrec.errors import FedrecError, SettingsError, StorageError, TrainingError
from fedrec.evaluation.metrics import Protocol
from fedrec.evaluation.protocols import Ranking
from fedrec.model.tables import rows_of, table_bytes
from fedrec.training.device import open_tables
from fedrec.training.executors.executor import (
    CPU,
    Executor,
    Job,
    JobResult,
    MeasureJob,
    SerialExecutor,
    arrays_of,
    can_be_made_again,
    error_of,
    numbers_of,
    recipe_of,
)

MOST_SHARD_USERS = 100_000
_RETRIES = 4
"""The number of deaths per call that a round survives."""
_SECONDS_TO_START = 300.0
_MOST_BYTES = 128 << 20
"""The memory of one processor's users at once. More users at once aren't faster."""

T = TypeVar("T")
Shard = tuple[int, int]
"""The first user of a shard, and the first one after it."""


class RayExecutor(Executor):
    """Train and measure jobs of importable algorithms on a Ray cluster, and all others here.

    A job on a CUDA device goes to workers that have one such device each. All other jobs go to
    processors.

    Args:
        address: host:port of the cluster, or "auto" for the one of this machine.
        n_workers: the number of workers, or 0 for one for each processor or device of the cluster.
        worker: the class of workers. Only tests give another one.
    """

    def __init__(
        self, address: str, n_workers: int, *, worker: type[ShardWorker] = ShardWorker
    ) -> None:
        self._address, self._n_workers, self._worker = address, n_workers, worker
        self._actors: list[Any] = []
        self._kept: weakref.WeakKeyDictionary[Cohort | Ranking, dict[Any, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._connected = False
        self._device: torch.device | None = None
        self._report: NodeReport | None = None

    def train(self, job: Job) -> JobResult:
        """Train a job's users (see `Executor.train`).

        Raises:
            SettingsError: the cluster can't be used.
            TrainingError: workers keep dying.
            StorageError: a node's disk is full.
        """
        if not can_be_made_again(job.algorithm):
            return SerialExecutor().train(job)
        self._connect(job.device)
        told = Training(
            **self._told(job.algorithm, job.start, job.memory_bytes),
            accelerated=job.accelerator is not None,
            sums=job.sums,
        )
        tables = open_tables(job.private, job.room, job.on_device)
        sums, metrics = job.sums.empty(job.device), np.zeros(4, dtype=np.int64)
        levels = list(job.cohort.levels(job.participating, job.algorithm.steps))
        shards = self._shards(job.cohort, job.private.widths(), job.memory_bytes)
        model = ray.put(told)
        members: dict[Shard, NDArray[np.int64]] = {}

        def call(actor: Any, shard: Shard) -> Any:
            begin, end = shard
            tasks = [(_within(users, begin, end) - begin, steps) for users, steps in levels]
            members[shard] = rows = begin + np.concatenate([users for users, _ in tasks])
            own = {name: rows_of(values, rows) for name, values in job.private.tensors.items()}
            return actor.train.remote(model, self._tables(job.cohort, shard), tuple(tasks), own)

        for shard, found in self._results(shards if levels else [], call):
            parts = {name: _copy(part, job.device) for name, part in found.parts.items()}
            sums.add_parts(parts, finite=found.sums_finite, n_shrunk=found.n_shrunk)
            metrics += found.metrics
            rows = torch.from_numpy(members.pop(shard)).to(job.device)
            tables.put(rows, {name: _copy(own, job.device) for name, own in found.own.items()})
        private = tables.finish()
        return JobResult(sums=sums, metrics=metrics, private=private, finite=tables.finite)

    def measure(self, job: MeasureJob) -> NDArray[np.int64]:
        """Measure a job's users (see `Executor.measure`).

        Raises:
            SettingsError, TrainingError, StorageError: see `train`.
        """
        scoring = job.scoring
        if not can_be_made_again(scoring.algorithm):
            return SerialExecutor().measure(job)
        self._connect(scoring.on_device.device)
        told = ray.put(Told(**self._told(scoring.algorithm, scoring.start, job.memory_bytes)))
        tensors = scoring.private.tensors
        private = {name: tensors[name] for name in tensors.keys() & scoring.algorithm.scoring}
        widths = {name: values.shape[1:] for name, values in private.items()}
        shards = self._shards(job.cohort, widths, job.memory_bytes)

        def call(actor: Any, shard: Shard) -> Any:
            own = {name: rows_of(values, np.arange(*shard)) for name, values in private.items()}
            ranking = self._ranking(job.ranking, shard, job.measures.protocols)
            tables = self._tables(job.cohort, shard)
            return actor.measure.remote(told, job.measures, tables, ranking, own)

        return sum((found for _, found in self._results(shards, call)), job.measures.empty())

    def _told(self, algorithm: Any, start: Any, memory_bytes: int) -> dict[str, Any]:
        return {
            "report": self._report,
            "recipe": recipe_of(algorithm),
            "numbers": numbers_of(start),
            "arrays": arrays_of(start),
            "memory_bytes": min(memory_bytes // len(self._actors), _MOST_BYTES)
            if self._device == CPU
            else memory_bytes,
        }

    def _shards(
        self, cohort: Cohort, widths: Mapping[str, tuple[int, ...]], memory_bytes: int
    ) -> list[Shard]:
        """Cut users into contiguous shards, one a worker unless they were too large."""
        n_users, n_workers = cohort.n_users, len(self._actors)
        most = max(1, memory_bytes // n_workers // max(1, table_bytes(1, widths)))
        n_shards = max(n_workers, math.ceil(n_users / min(most, MOST_SHARD_USERS)))
        cuts = np.linspace(0, n_users, n_shards + 1).astype(int).tolist()
        return [(begin, end) for begin, end in pairwise(cuts) if begin < end]

    def _tables(self, cohort: Cohort, shard: Shard) -> Any:
        """Return the reference of a shard's tables, which are sent once."""
        kept = self._kept.setdefault(cohort, {})
        if shard not in kept:
            kept[shard] = ray.put(cohort.tables.part(*shard))
        return kept[shard]

    def _forget(self, shard: Shard) -> None:
        """Send a shard's tables again with its next call."""
        for kept in self._kept.values():
            for key in (shard, (shard, False), (shard, True)):
                kept.pop(key, None)

    def _ranking(self, ranking: Ranking, shard: Shard, protocols: Collection[Protocol]) -> Any:
        """Return the reference of a shard's held-out items, which are sent once."""
        drawn = ranking.kept_candidates() if set(protocols) - {"full"} else None
        kept, key = self._kept.setdefault(ranking, {}), (shard, drawn is not None)
        if key not in kept:
            kept[key] = ray.put(
                ShardRanking(
                    histories=ranking.histories.part(*shard),
                    n_items=ranking.n_items,
                    seed=ranking.seed,
                    drawn=None
                    if drawn is None
                    else (
                        drawn[0][slice(*shard)].cpu().numpy(),
                        drawn[1][slice(*shard)].cpu().numpy(),
                    ),
                )
            )
        return kept[key]

    def _results(
        self, shards: list[Shard], call: Callable[[Any, Shard], Any]
    ) -> Iterator[tuple[Shard, Any]]:
        """Call a worker for each shard, one call a worker at a time, and yield the results."""
        waiting, busy = deque(shards), {}
        n_lost: Counter[Shard] = Counter()
        try:
            with _ray_errors():
                for actor, shard in zip(self._actors, shards, strict=False):
                    busy[call(actor, waiting.popleft())] = actor, shard
                while busy:
                    (done,), _ = ray.wait(list(busy), num_returns=1)
                    actor, shard = busy.pop(done)
                    try:
                        found = ray.get(done)
                    except ray.exceptions.ObjectLostError:
                        # The shard's tables are gone, or a node is with a result that wasn't
                        # fetched yet. If it was this worker's, the next call tells.
                        n_lost[shard] += 1
                        if n_lost[shard] > _RETRIES:
                            raise
                        self._forget(shard)
                        waiting.append(shard)
                        following = waiting.popleft()
                        busy[call(actor, following)] = actor, following
                        continue
                    except (
                        ray.exceptions.RayActorError,
                        ray.exceptions.ActorUnschedulableError,
                    ):
                        # Its node is gone. The others do its work, which changed nothing yet.
                        if len(self._actors) < 2:
                            raise
                        self._actors.remove(actor)
                        waiting.append(shard)
                        taken = [other for other, _ in busy.values()]
                        for other in self._actors:
                            if waiting and not any(other is one for one in taken):
                                following = waiting.popleft()
                                busy[call(other, following)] = other, following
                        continue
                    if waiting:
                        following = waiting.popleft()
                        busy[call(actor, following)] = actor, following
                    if isinstance(found, dict):
                        raise error_of(found)
                    yield shard, found
        except BaseException:
            # A worker that is still busy would delay the next round.
            self._dismiss()
            raise

    def _connect(self, device: torch.device) -> None:
        """Connect to the cluster, and start workers there that can give this device's bits."""
        if self._actors and self._device == device:
            return
        self._dismiss()
        if self._report is None or self._device != device:
            self._device, self._report = device, NodeReport.of_this_process(str(device))
        with _ray_errors():
            if not ray.is_initialized():
                with _signals_kept():
                    _init(self._address)
                self._connected = True
            remote = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=_RETRIES)(
                self._worker
            )
            nodes, on_cpu = _places(device), device == CPU
            n_workers = self._n_workers or len(nodes)
            if not on_cpu and n_workers > len(nodes):
                raise SettingsError(
                    f"client.workers is {n_workers}, but the Ray cluster has {len(nodes)} GPUs. "
                    "Each worker takes one.",
                    remedy='Set client.workers = "auto", or add nodes.',
                )
            self._actors = [
                remote.options(
                    num_gpus=0 if on_cpu else 1,
                    # Processors take more workers, but a lost node's device has no spare.
                    scheduling_strategy=NodeAffinitySchedulingStrategy(
                        nodes[number * len(nodes) // n_workers], soft=on_cpu
                    ),
                ).remote()
                for number in range(n_workers)
            ]
            try:
                calls = [actor.check.remote(self._report) for actor in self._actors]
                for failure in ray.get(calls, timeout=_SECONDS_TO_START):
                    if failure is not None:
                        raise error_of(failure)
            except ray.exceptions.RayActorError as error:
                self.close()
                # Without a token, a worker can't call this process, and ends.
                raise SettingsError(
                    f"A worker of the Ray cluster ended before the check: {_first_line(error)}",
                    remedy="Start Ray on every node with RAY_AUTH_MODE=token, the cluster's token "
                    "and the same fedrec[ray].",
                ) from error
            except BaseException:
                self.close()
                raise

    def _dismiss(self) -> None:
        for actor in self._actors:
            with suppress(Exception):
                ray.kill(actor)
        self._actors = []

    def close(self) -> None:
        """End this executor's workers and disconnect. The cluster keeps running."""
        self._dismiss()
        self._kept.clear()
        if self._connected:
            self._connected = False
            ray.shutdown()


def _init(address: str) -> None:
    """Connect this process to a cluster."""
    try:
        ray.init(
            address=address,
            configure_logging=False,
            logging_level="ERROR",
            log_to_driver=False,
        )
    except RuntimeError as error:
        if "mismatch" not in str(error):
            raise
        raise SettingsError(
            f"The Ray cluster at {address} has another Ray or Python: {error}",
            remedy="Install the same Python and the same fedrec[ray] on every node.",
        ) from error
    except (ConnectionError, ValueError) as error:
        raise SettingsError(
            f"There is no Ray cluster at client.ray_address = {address!r} that this machine can "
            f"join with its token: {error}",
            remedy="Start Ray on this machine with RAY_AUTH_MODE=token and the cluster's token in "
            "~/.ray/auth_token: `ray start --head`, or `ray start --address=HOST:PORT`.",
        ) from error


def _places(device: torch.device) -> list[str]:
    """Return the cluster's processors, or its GPUs for a CUDA device, each by its node's id."""
    resource, words = ("CPU", "processors") if device == CPU else ("GPU", "GPUs")
    found = [
        node["NodeID"]
        for node in sorted(ray.nodes(), key=lambda node: str(node["NodeID"]))
        if node["Alive"]
        for _ in range(int(node["Resources"].get(resource, 0)))
    ]
    if not found:
        raise SettingsError(
            f"The Ray cluster has no {words}, but client.device chose {device}.",
            remedy=f"Start its nodes with --num-{resource.lower()}s above 0, or set client.device.",
        )
    return found


def _within(users: NDArray[np.int64], begin: int, end: int) -> NDArray[np.int64]:
    """Return those of ascending users that are in a shard."""
    first, last = np.searchsorted(users, [begin, end])
    return users[first:last]


def _copy(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return a copy on a device of an array that other processes may share."""
    return torch.from_numpy(array.copy()).to(device)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep this process's handlers of signals, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _ray_errors() -> Iterator[None]:
    """Report Ray's errors as those of this process."""
    try:
        yield
    except FedrecError:
        raise
    except (ray.exceptions.OutOfDiskError, ray.exceptions.ObjectStoreFullError) as error:
        # A worker's error has its node's address in the text, and the cause apart.
        found = re.search(r"\bip=([^,)\s]+)", str(error))
        cause = getattr(error, "cause", error)
        raise StorageError(
            f"Node {found[1] if found else socket.gethostname()} of the Ray cluster has no room "
            f"for users' tables: {_first_line(cause)}.",
            remedy="Free space in its --temp-dir, or start it with more --object-store-memory.",
        ) from error
    except ray.exceptions.AuthenticationError as error:
        raise SettingsError(
            f"The Ray cluster refused this machine's token: {_first_line(error)}",
            remedy="Copy the cluster's token to ~/.ray/auth_token, with mode 0600.",
        ) from error
    except ray.exceptions.GetTimeoutError as error:
        raise SettingsError(
            f"The Ray cluster didn't start all workers within {_SECONDS_TO_START:.0f} s.",
            remedy="Look at `ray status`, or lower client.workers.",
        ) from error
    except ray.exceptions.RayError as error:
        raise TrainingError(
            f"A worker of the Ray cluster or its tables were lost {_RETRIES + 1} times in one "
            f"call, or it couldn't start: {_first_line(error)} The version before this round is "
            "intact.",
            remedy="Check that every node has the same fedrec[ray] and enough memory, and that no "
            'program cleans up in its --temp-dir. client.engine = "local" trains on this machine.',
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
