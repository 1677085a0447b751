"""The CoLR paper's encrypted Top-K over gRPC: clients of one user, k values with their indices.

The size is that of MovieLens 100K: 1,682 items, 32 columns, of 53,824 values a 64th, k = 841. Data
is made up unless a file is named. Clients are threads of one process, so that their seconds
are those of clients that share one core. Printed are an upload, the union of indices in the sum
beside what `fedrec check` expects, what opening it took, and how long the coordinator would have
waited.

    python benchmarks/bench_clear_indices.py [--clients 8] [--preset single-3072]
        [--path u.data]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import structlog
from measuring import describe_machine

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from world.bench import changed
from world.federation import prepare
from world.links import Passing
from world.parties import Client, Loop

from fedrec.data import Catalogue, Interactions, generate
from fedrec.data.reading import DataSettings
from fedrec.data.source import read_source
from fedrec.follower.events import ClientEvent
from fedrec.plan.price import price
from fedrec.plan.schema import Plan
from fedrec.settings.validation import load_settings
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.link import Link
from fedrec.wire.messages import UploadHeader
from fedrec_lab.demo.workspace import DemoData
from fedrec_server.app import Coordinator
from fedrec_server.federation import PublicCatalogue

N_ITEMS, DIM, INTERACTIONS = 1682, 32, 106
HEADER_BYTES, TRAINING_ROUND = 44, 2


class Keeping(Passing):
    """Keeps the update of the training round."""

    def __init__(self, link: Link, kept: list[bytes]) -> None:
        super().__init__(link)
        self._kept = kept

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        """Pass an update on."""
        if header.round == TRAINING_ROUND:
            self._kept.append(payload)
        return super().submit_update(header, payload)


def plan_of(n_clients: int, preset: str) -> Plan:
    """Return the paper's Top-K with one training round."""
    return Plan.model_validate(
        {
            "federation": {"name": "bench", "maximum_users": 943, "minimum_item_users": 1},
            "algorithm": {"name": "fedmf", "dim": DIM, "learning_rate": 0.5},
            "update": {"structure": "topk", "ratio": 1 / 64, "indices": "clear"},
            # No key authority runs beside this federation: the papers' protocol.
            "protection": {"name": "paillier", "preset": preset, "key_holder": "members"},
            "rounds": {"total": 1, "minimum_clients": n_clients, "deadline_seconds": 3600},
        }
    )


def data_of(n_clients: int, path: str) -> DemoData:
    """Return the data of so many users."""
    if path:
        every = read_source(DataSettings(path=path), reader="a benchmark")
        catalogue = Catalogue.from_interactions(every)
    else:
        made = generate(
            n_users=n_clients, n_items=N_ITEMS, n_clusters=4, interactions_per_user=INTERACTIONS
        )
        every, catalogue = made.interactions, made.catalogue
    mine = np.isin(every.user_ids, np.unique(every.user_ids)[:n_clients])
    kept = Interactions(
        user_ids=every.user_ids[mine],
        item_ids=every.item_ids[mine],
        timestamps=None if every.timestamps is None else every.timestamps[mine],
    )
    return DemoData(name="bench", interactions=kept, catalogue=catalogue, note="")


def measure(n_clients: int, preset: str, path: str) -> None:
    """Run one federation."""
    plan, data = plan_of(n_clients, preset), data_of(n_clients, path)
    kept: list[bytes] = []
    stamps: dict[str, list[float]] = {}
    lock = threading.Lock()

    def note(event: ClientEvent) -> None:
        if event.round == TRAINING_ROUND:
            with lock:
                stamps.setdefault(event.name, []).append(time.perf_counter())

    loop = Loop()
    with tempfile.TemporaryDirectory() as folder:
        workspace = prepare(Path(folder), plan, data, n_clients=n_clients)
        settings = load_settings(workspace.parties.coordinator)
        catalogue = PublicCatalogue.load(Path(settings.data.catalogue or ""))
        vectors = RoundVectors.of(plan, catalogue.n_items)
        coordinator = Coordinator.from_settings(settings, catalogue, vectors, accept_exposure=True)
        local = {"client__coordinator": loop.run(coordinator.start()), "client__device": "cpu"}
        clients = [
            Client(
                changed(load_settings(each), local),
                wrap=lambda link: Keeping(link, kept),
                on_event=note,
            )
            for each in workspace.parties.clients
        ]
        for client in clients:
            client._thread.join()
            client.result()
        deadline = coordinator.engine.run.state.rules.report_seconds("train", n_clients)
        loop.run(coordinator.stop(grace_seconds=0.2))
    loop.close()
    expected = price(plan, n_items=catalogue.n_items, n_clients=n_clients).parts["opening"].facts
    union = set()
    for payload in kept:
        raw = np.frombuffer(payload[HEADER_BYTES:], dtype="<u4", count=expected["entries"])
        union |= set(raw.tolist())
    print(f"{n_clients} clients, {preset}, {path or 'made-up data'}")
    print(f"  upload: {len(kept[0]):,} B, {expected['entries']} values with an index")
    print(f"  union: {len(union):,}; expected {expected['expected_entries']:,}, at most ", end="")
    print(f"{expected['most_entries']:,}")
    print(f"  training to last upload: {max(stamps['sent']) - min(stamps['training']):.1f} s")
    opening = max(stamps["published"]) - max(stamps["sent"])
    print(f"  opening: {opening:.1f} s of {n_clients} clients that share this process, ", end="")
    print(f"{opening / n_clients:.1f} s each; one by itself has {deadline:.0f} s to report")


def main() -> None:
    """Measure one federation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--preset", default="single-3072")
    parser.add_argument("--path", default="")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    print(describe_machine())
    measure(arguments.clients, arguments.preset, arguments.path)


if __name__ == "__main__":
    main()
