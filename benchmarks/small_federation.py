"""A federation for benchmarks: vectors of a wanted size, clients that do not train."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from world.federation import Workspace, prepare

from fedrec.data import Catalogue, Interactions
from fedrec.identity.identity import Identity
from fedrec.plan.agreement import plan_fingerprint
from fedrec.plan.layout import Layout
from fedrec.plan.schema import Plan
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import PROTOCOL_VERSION, FederationInfo, Train, UploadHeader
from fedrec_lab.demo.workspace import DemoData

USERS_PER_CLIENT = 2


def federation(
    folder: Path,
    *,
    n_clients: int,
    n_items: int,
    rank: int,
    rounds: int,
    protection: str,
    clients_per_round: int = 0,
    users_per_client: int = USERS_PER_CLIENT,
    algorithm: dict[str, str | int] | None = None,
) -> Workspace:
    """Prepare a federation whose update has n_items x (rank + 1) values and a few more.

    Args:
        rank: of the update; 0 sends whole rows.
        clients_per_round: how many are asked in a round; 0 asks and awaits everybody.
        algorithm: its settings, in place of the default algorithm's.
    """
    n_users = users_per_client * n_clients
    users = np.repeat(np.arange(n_users), 5).astype(str).astype(object)
    items = np.random.default_rng(0).integers(0, n_items, len(users)).astype(str).astype(object)
    catalogue = Catalogue.of([str(item) for item in range(n_items)])
    plan = Plan.model_validate(
        {
            "federation": {
                "name": "bench",
                "maximum_users": max(1024, n_users),
                "minimum_item_users": 1,
            },
            "algorithm": algorithm or {"dim": max(rank, 2)},
            "update": {"rank": rank} if rank else {"structure": "dense"},
            # No key authority runs beside this federation: the papers' protocol.
            "protection": {"name": protection, "key_holder": "members"},
            "rounds": {
                "total": rounds,
                "minimum_clients": clients_per_round or n_clients,
                "clients_per_round": clients_per_round,
                "minimum_summands": min(3, n_clients),
            },
        }
    )
    interactions = Interactions.from_arrays(users, items).deduplicated()
    data = DemoData(name="bench", interactions=interactions, catalogue=catalogue, note="")
    folder.mkdir(parents=True, exist_ok=True)
    return prepare(folder, plan, data, n_clients=n_clients)


def training_vector(layout: Layout, seed: int) -> NDArray[np.int64]:
    """Return what one user who touched every row could contribute."""
    vector = np.zeros(layout.length, dtype=np.int64)
    values = np.random.default_rng(seed).integers(-1000, 1000, layout.change_slice.stop)
    vector[layout.change_slice] = values
    # The party that opens a sum holds each row against its users.
    vector[layout.count_slice] = 1
    vector[layout.metrics_slice.start] = 1
    return vector


def signed_header(
    identity: Identity, info: FederationInfo, plan: Plan, task: Train, payload: bytes
) -> UploadHeader:
    """Return what goes before a payload that covers all rows."""
    blob = Blob.of(payload)
    unsigned = UploadHeader(
        protocol_version=PROTOCOL_VERSION,
        federation=info.federation,
        run=info.run,
        round=task.round,
        kind=task.kind,
        base_round=task.base_round,
        base_state=bytes(32),
        key_list=b"",
        nonce=b"",
        epoch=info.epoch,
        client_id=identity.client_id,
        catalogue_fingerprint=info.catalogue_fingerprint,
        plan_fingerprint=plan_fingerprint(plan),
        length=blob.length,
        digest=blob.digest,
        n_rows=info.n_items,
    )
    return replace(unsigned, signature=identity.sign(unsigned.statement()))


class FixedVectors:
    """What an untrained client sends, and whether what it gets back is the sum of all clients'.

    Every client sends the same: a vector that is made once, whose first value is the number of its
    round, so that no round's sum is that of another.

    Args:
        n_clients: how many add up to a sum.
    """

    def __init__(self, n_clients: int) -> None:
        self._n_clients = n_clients
        self._vector: NDArray[np.int64] | None = None
        self._n_sent = 0
        self._last: NDArray[np.int64] | None = None
        self.faults: list[str] = []

    def next(self, layout: Layout, n_active: int) -> NDArray[np.int64]:
        """Return the vector of the next round of training."""
        if self._vector is None or len(self._vector) != layout.length:
            # A client warms up on a small model before it joins.
            self._n_sent = 0
            self._vector = training_vector(layout, 0)
            # Key holders refuse a sum that is not zero behind the active rows.
            for part in layout.padding(n_active):
                self._vector[part] = 0
        self._n_sent += 1
        self._vector[0] = self._n_sent
        return self._vector

    def compare(self, aggregate: NDArray[np.int64]) -> None:
        """Hold a sum against what it has to be, in some places: all would take time of a round."""
        self._last = aggregate
        self._hold(slice(None, None, 1009))

    def compare_last(self) -> None:
        """Hold every value of the last sum against what it has to be."""
        self._hold(slice(None))
        if self._last is None:
            self.faults.append("no sum arrived")

    def _hold(self, places: slice) -> None:
        if self._last is None or self._vector is None:
            return
        if not np.array_equal(self._last[places], self._n_clients * self._vector[places]):
            self.faults.append(f"the sum of training round {self._n_sent} is wrong")


def run_client(settings_file: str, coordinator: str, *, fill: bool = False) -> None:
    """Take part as the real client does, with a fixed vector in place of training.

    Args:
        fill: print a line once the private state is in hand, and leave noise in its tables.

    Raises:
        SystemExit: when the run is over and a sum was not that of all clients' vectors.
    """
    from fedrec.model.state import PrivateState
    from fedrec.settings.validation import load_settings
    from fedrec.training.learner import Contribution, Learner
    from fedrec.training.server_half import ServerHalf
    from fedrec_client.app import ClientApp

    settings = load_settings(settings_file, {"client.coordinator": coordinator})
    fixed = FixedVectors(settings.plan.rounds.minimum_clients)

    def contribute(
        self, kind, round_id, shared, users, private, participating=None, *, abstains=False, **more
    ):
        if fill:
            print(kind, flush=True)
        if fill and kind == "train":
            random = np.random.default_rng(round_id)
            tables = private.arrays().items()
            private = PrivateState.of(
                {name: random.random(table.shape, dtype=np.float32) for name, table in tables}
            )
        travelling = self.server.travelling
        layout = travelling.layout(kind, shared)
        if kind == "train":
            vector = fixed.next(layout, len(travelling.rows(kind, shared).index))
        else:
            vector = np.zeros(layout.length, dtype=np.int64)
        if kind == "count":
            # Everybody holds everything, so that all rows travel.
            vector[layout.count_slice] = 1
        return Contribution(vector=vector, private=private, n_clipped=0)

    def counted(self, shared, counts, private):
        return contribute(self, "count", 0, shared, None, private)

    def apply(self, kind, round_id, shared, aggregate):
        if kind == "train":
            fixed.compare(aggregate)
        if kind != "count":
            return shared
        counts = self.travelling.counts(kind, shared, aggregate).copy()
        return self.apart(shared.with_holders(counts))

    Learner.contribute, Learner.counted, ServerHalf.apply = contribute, counted, apply
    ClientApp(settings).run()
    fixed.compare_last()
    if fixed.faults:
        raise SystemExit("; ".join(fixed.faults))


if __name__ == "__main__":
    run_client(sys.argv[1], sys.argv[2], fill="fill" in sys.argv[3:])
