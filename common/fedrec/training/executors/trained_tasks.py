"""A worker's part of a round or of measuring: mapped tables, its tasks, and its own sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import Algorithm, RoundStart
from fedrec.algorithms.cohort import CohortTables
from fedrec.algorithms.declarations import UpdateTensor
from fedrec.algorithms.grid import RoundSums, SumsShape
from fedrec.data.mapped_items import MappedItems
from fedrec.evaluation.protocols import Histories, Ranking
from fedrec.model.blocked_table import Table
from fedrec.model.state import PrivateState
from fedrec.model.tables import BlockWriter, give_back, rows_of
from fedrec.training.device import DeviceTables
from fedrec.training.executors.executor import Measures, Scoring, algorithm_from, start_from
from fedrec.training.executors.scratch import (
    CANDIDATES,
    new_tables,
    old_tables,
    opened,
    write_rows,
)
from fedrec.training.fitting import Fit, fit_of, training_sums

_CPU = torch.device("cpu")


class TrainedTasks:
    """Handle an executor's messages in a worker."""

    _algorithm: Algorithm
    _tables: CohortTables
    _start: RoundStart
    _sums: RoundSums
    _fit: Fit
    _ranking: Ranking

    def __init__(self) -> None:
        self._old: dict[str, Table] = {}
        self._new: dict[str, BlockWriter | NDArray[Any]] = {}
        self._own: dict[str, NDArray[Any]] = {}
        self._users: dict[str, dict[str, NDArray[Any]]] = {}

    def hear(self, header: dict[str, Any], body: bytes) -> dict[str, Any] | None:
        """Process a message of the executor. Return the answer to a task."""
        found: dict[str, Callable[..., dict[str, Any] | None]] = {
            "algorithm": self._begin,
            "cohort": self._take_users,
            "round": self._begin_round,
            "sums": self._take_sums,
            "task": self._train,
            "ranking": self._take_ranking,
            "measure": self._measure,
        }
        return found[header["say"]](header, body)

    def _begin(self, header: dict[str, Any], _: bytes) -> None:
        self._algorithm = algorithm_from(header["recipe"])

    def _take_users(self, header: dict[str, Any], _: bytes) -> None:
        arrays = self._users["cohort"] = opened(header["arrays"])
        self._tables = CohortTables(**arrays, n_items=header["n_items"])

    def _begin_round(self, header: dict[str, Any], _: bytes) -> None:
        self._start = start_from(header, opened(header["start"]))
        self._old, self._new = old_tables(header["old"]), new_tables(header["new"])

    def _take_sums(self, header: dict[str, Any], _: bytes) -> None:
        shape = header["shape"]
        tensors = [
            UpdateTensor(**{**own, "shape": tuple(own["shape"])}) for own in shape["tensors"]
        ]
        self._sums = SumsShape(**{**shape, "tensors": tuple(tensors)}).empty(_CPU)
        self._own = opened(header["places"], "r+")
        self._sums.store_in({name: torch.from_numpy(own) for name, own in self._own.items()})
        self._fit = fit_of(self._algorithm, self._start, self._sums, None)

    def _train(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        members = np.frombuffer(body, dtype=np.int64).copy()
        chunk = self._tables.chunk_of(members, _CPU, n_steps=header["n_steps"])
        private = {name: torch.from_numpy(rows_of(own, members)) for name, own in self._old.items()}
        result = self._fit(chunk, private)
        finite = True
        for name, values in result.private.items():
            array = values.numpy()
            finite = finite and bool(np.isfinite(array).all())
            write_rows(self._new[name], members, array)
        self._give_back()
        return {
            "say": "done",
            "metrics": training_sums(result.loss, result.clipped).tolist(),
            "private_finite": finite,
            # These cover all tasks of the round up to now, as do the sums in the file.
            "sums_finite": self._sums.finite,
            "n_shrunk": self._sums.n_shrunk,
        }

    def _take_ranking(self, header: dict[str, Any], _: bytes) -> None:
        arrays: dict[str, Any] = opened(header["arrays"])
        self._users["ranking"] = dict(arrays)
        if "train_items" in header:
            arrays["train_items"] = MappedItems(header["train_items"])
        drawn = [torch.from_numpy(arrays.pop(name)) for name in CANDIDATES if name in arrays]
        self._ranking = Ranking(
            Histories(**arrays),
            header["n_items"],
            seed=header["seed"],
            device=_CPU,
            drawn=(drawn[0], drawn[1]) if drawn else None,
        )

    def _measure(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        scoring = Scoring(
            algorithm=self._algorithm,
            start=self._start,
            tables=self._tables,
            private=PrivateState.of(self._old),
            on_device=DeviceTables(_CPU, None),
        )
        measures = Measures(tuple(header["protocols"]), tuple(header["splits"]), header["at"])
        rows = np.frombuffer(body, dtype=np.int64).copy()
        found = measures.of(scoring, self._ranking, rows, header["memory_bytes"])
        self._give_back()
        return {"say": "done", "metrics": found.tolist()}

    def _give_back(self) -> None:
        """Keep no pages of files between tasks, which would add up to all users' tables."""
        for arrays in (self._own, *self._users.values()):
            for own in arrays.values():
                give_back(own)
