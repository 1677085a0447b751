"""The server: FedAvg as Flower has it, with a note of when rounds began and what came of them."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class NotedAverage(FedAvg):
    """Averages, and notes the times of rounds in Unix seconds."""

    def __init__(self, n_nodes: int) -> None:
        super().__init__(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=n_nodes,
            min_available_nodes=n_nodes,
        )
        self.n_nodes = n_nodes
        self.opened: list[float] = []
        self.finished: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the arrays to everybody."""
        self.opened.append(time.time())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the average; a client that failed ends the run."""
        found = list(replies)
        failed = [str(reply.error) for reply in found if reply.has_error()]
        if failed or len(found) != self.n_nodes:
            raise RuntimeError(f"Round {server_round}: {len(found)} replies, failed: {failed}")
        average = super().aggregate_train(server_round, found)
        self.finished.append(time.time())
        return average


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, compare the last average with what it has to be, and write the notes."""
    chosen = context.run_config
    n_nodes, rounds = int(chosen["nodes"]), int(chosen["rounds"])
    values = np.random.default_rng(0).standard_normal(int(chosen["values"]), dtype=np.float32)
    strategy = NotedAverage(n_nodes)
    fault = ""
    try:
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord([values]), num_rounds=rounds)
        (average,) = result.arrays.to_numpy_ndarrays()
        expected = values.copy()
        # Clients add 1, 2, ..., n.
        expected[0] += rounds * (n_nodes + 1) / 2
        if not np.allclose(average, expected, rtol=1e-5):
            fault = "the last average is wrong"
    except Exception as error:
        fault = str(error)
    notes = {
        "fault": fault,
        "opened": strategy.opened,
        "finished": strategy.finished,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    into = Path(str(chosen["into"]))
    unfinished = into.with_suffix(".part")
    unfinished.write_text(json.dumps(notes), encoding="utf-8")
    unfinished.rename(into)
