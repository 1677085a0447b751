"""FedMF as a Flower app, the way Flower's documentation writes one; `bench_flower.py` runs it.

It runs in an environment of its own and needs neither fedrec nor its dependencies. Arguments: a
file with the data, and the number of rounds. The last line on stdout is the seconds of each round
as JSON. A client is a user: it gets the item table, keeps its own vector in its context, and sends
the trained table with which rows it touched. The server divides the changes of a row by the
clients who touched it, in a subclass of FedAvg.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable

import numpy as np
import torch
from client_samples import drawn_samples
from fedmf_client import ClientModel, train_client
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

SECONDS: list[float] = []


class CountedAverage(FedAvg):
    """Averages each row over the clients who touched it, and notes how long rounds take."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the table to everybody."""
        self.begin, self.items = time.perf_counter(), arrays.to_torch_state_dict()["items"]
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next table."""
        total, counts = torch.zeros_like(self.items), torch.zeros(len(self.items))
        n_replies = 0
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"A client failed: {reply.error}")
            found = reply.content["arrays"].to_torch_state_dict()
            total += found["items"] - self.items
            counts += found["touched"]
            n_replies += 1
        items = self.items + total / counts.clamp(min=1)[:, None]
        SECONDS.append(time.perf_counter() - self.begin)
        print(f"round {server_round}: {n_replies} clients, {SECONDS[-1]:.2f} s", file=sys.stderr)
        return ArrayRecord({"items": items}), MetricRecord()


def client_app(path: str) -> ClientApp:
    """Return the app of a client, who is the user of its partition."""
    app, opened = ClientApp(), {}

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        if not opened:
            with np.load(path) as stored:
                opened.update(stored)
        index = int(context.node_config["partition-id"])
        begin, end = opened["indptr"][index : index + 2]
        items = message.content["arrays"].to_torch_state_dict()["items"]
        vector = torch.from_numpy(opened["vectors"][index])
        if "user" in context.state:
            vector = context.state["user"].to_torch_state_dict()["vector"]
        rng = np.random.default_rng([index, int(message.content["config"]["server-round"])])
        item, label = drawn_samples(opened["train_items"][begin:end], len(items), rng)
        model = ClientModel(vector, items)
        train_client(model, item, label)
        context.state["user"] = ArrayRecord({"vector": model.user.detach()})
        touched = torch.zeros(len(items))
        touched[torch.from_numpy(item)] = 1.0
        arrays = ArrayRecord({"items": model.items.weight.detach(), "touched": touched})
        metrics = MetricRecord({"num-examples": len(item)})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server_app(path: str, rounds: int) -> ServerApp:
    """Return the app of the server, which trains all clients in every round."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with np.load(path) as stored:
            items, n_users = torch.from_numpy(stored["items"]), len(stored["vectors"])
        strategy = CountedAverage(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=n_users,
            min_available_nodes=n_users,
        )
        strategy.start(grid=grid, initial_arrays=ArrayRecord({"items": items}), num_rounds=rounds)

    return app


def main() -> None:
    """Run the federation; print the seconds of its rounds."""
    path, rounds = sys.argv[1], int(sys.argv[2])
    with np.load(path) as stored:
        n_users = len(stored["vectors"])
    run_simulation(
        server_app=server_app(path, rounds),
        client_app=client_app(path),
        num_supernodes=n_users,
        backend_name="ray",
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    print(json.dumps(SECONDS))


if __name__ == "__main__":
    main()
