"""Make a model for each client of a round, if the plan's algorithm compares users' updates.

One published round has two parts: the sum with the shared values that the algorithm computed, which
all clients fetch, and a file for each parameter that a client receives. A client fetches its own
files before its next update is counted. So the folder has the files of one round for each client,
and those of two while a round is published.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from fedrec.algorithms.declarations import TRAINING_ITEMS, USER_KEY
from fedrec.errors import ProtocolError, RoundClosed, RoundError
from fedrec.evaluation.metrics import MetricSums
from fedrec.ids import ClientId, RoundId
from fedrec.model.state import SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.layout import own_model_bytes
from fedrec.protection.protection import in_one_step
from fedrec.protection.vector import Packed
from fedrec.training.personalising import (
    Senders,
    parts_of_publication,
    personalise,
    publication,
    values_of,
    with_shared,
)
from fedrec.training.server_half import ServerHalf
from fedrec.wire.chunks import Blob
from fedrec_server.federation import METRICS
from fedrec_server.rounds.state import Round
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import OpenFile, own_models_name

_AT_ONCE = 16


class OwnModels:
    """The models of a run's clients."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._seen = RoundId(0)
        self._shared: SharedState | None = None

    @cached_property
    def received(self) -> list[str]:
        """The parameters that clients receive, or none for an algorithm that only needs sums."""
        parameters = algorithm_of(self._run.federation.plan, 1).parameters
        return [entry.name for entry in parameters if entry.received]

    @cached_property
    def _half(self) -> ServerHalf:
        federation = self._run.federation
        return ServerHalf(federation.plan, federation.catalogue.n_items)

    def publication(self, round_: Round, total: bytes, before: SharedState) -> bytes:
        """Write the counted clients' files. Return what is published of a round.

        Args:
            total: the round's sum.
            before: the version that the round's clients trained from.

        Raises:
            DiskFull: there is no space for the files.
            RoundClosed: the round was abandoned meanwhile, or the process is about to end.
        """
        federation = self._run.federation
        each = own_model_bytes(federation.plan, federation.catalogue.n_items)
        # Before minutes of work that a full disk would waste at every try.
        self._run.store.spool.require_space(len(round_.accepted) * each)
        clients = _Clients(self._run, round_, self._half, before)
        shared = personalise(self._half, before.number, before, clients)
        clients.keep(
            (client_id, place, b"")
            for client_id in round_.accepted
            for place in range(len(self.received))
            if (client_id, place) not in clients.written
        )
        return publication(total, shared)

    def fetch(
        self, client_id: ClientId, round_id: RoundId, parameter: str
    ) -> tuple[Blob, OpenFile]:
        """Open the values of a parameter that a client receives from a published round.

        Raises:
            ProtocolError: clients receive no such parameter.
            RoundError: the client was not counted in this round, or has fetched a later one.
            DamagedFile: the file is damaged.
        """
        if parameter not in self.received:
            raise ProtocolError("Clients receive no such parameter.")
        name = f"{own_models_name(round_id, client_id)}-{self.received.index(parameter)}"
        run = self._run
        if round_id > run.state.published or not run.store.spool.has(name):
            raise RoundError(
                f"There is no model of round {round_id} for this client.",
                remedy="If the round counted this client's update, restore models/ of "
                "coordinator.state from a backup, and start the coordinator again.",
            )
        return run.store.spool.open_described(name)

    def version_before(self, round_: Round) -> SharedState | None:
        """Return the version after the last published round, computed from the published sums.

        Only the store's thread calls it.

        Returns:
            None if clients receive no models from this round.
        """
        run = self._run
        if round_.kind != "train" or not self.received:
            return None
        half = self._half
        shared = self._shared or half.initial_shared()
        while (record := run.store.next_published(self._seen)) is not None:
            published = run.store.spool.read(record.name, record.blob)
            computed: dict[str, NDArray[np.float64]] = {}
            if record.kind == "train":
                published, computed = parts_of_publication(half, shared, published)
            parts = run.federation.parts_of_sum(
                record.kind, run.state.rows_of(record.kind), published, len(record.contributions)
            )
            vector = np.concatenate([part.astype(np.int64) for part in parts.values()])
            after = half.apply(record.kind, shared.number, shared, vector)
            shared = self._shared = with_shared(half, after, computed)
            self._seen = record.round
        return shared


class _Clients(Senders):
    """The clients of a round whose user trained, in the order of their ids.

    Attributes:
        written: the files that exist, by client and the parameter's place among those received.
    """

    def __init__(self, run: LiveRun, round_: Round, half: ServerHalf, before: SharedState) -> None:
        self._run, self._round, self._version = run, round_, half.apart(before)
        self._received = [entry.name for entry in half.algorithm.parameters if entry.received]
        layout = half.travelling.layout("train", before)
        self._tensors = {tensor.name: tensor for tensor in layout.tensors}
        self._n_active = len(half.active_items(before))
        self._clients: list[ClientId] = []
        shown: dict[str, list[NDArray[np.int64]]] = {}
        for client_id in sorted(round_.accepted):
            parts = self._parts(client_id)
            if not MetricSums(parts[METRICS].astype(np.int64)).participants:
                continue
            self._clients.append(client_id)
            for name, tensor in self._tensors.items():
                if not tensor.per_item:
                    # A copy, so that the update itself doesn't stay in memory.
                    steps = parts[name].astype(np.int64).reshape(tensor.shape)
                    shown.setdefault(name, []).append(steps)
        self._shown = {name: np.stack(steps) for name, steps in shown.items()}
        words = self._shown.get(USER_KEY, np.zeros((0, 4), np.int64)).astype("<u2")
        self.keys = words.view("<i8").reshape(-1).astype(np.int64)
        self.samples = np.zeros(len(self._clients), np.int64)
        if TRAINING_ITEMS in self._shown:
            # A user that trained has an item, and each one once. Other numbers are only weight.
            self.samples = self._shown[TRAINING_ITEMS][:, 0].clip(1, half.n_items)
        self.written: set[tuple[ClientId, int]] = set()

    def _parts(self, client_id: ClientId) -> dict[str, Packed]:
        run, accepted, current = self._run, self._round.accepted, self._run.state.current
        if run.stopping or current is None or current.number != self._round.number:
            # After a restart, the stored updates give the same models.
            raise RoundClosed(f"Round {self._round.number} needs no models now.")
        plain = in_one_step(run.protection_of("train"))
        total = plain.accumulator(run.federation.keys.server_context)
        total.add(run.read_update(accepted[client_id]))
        rows = run.state.rows_of("train")
        return run.federation.parts_of_sum("train", rows, total.finish(), 1)

    def shown(self, name: str) -> NDArray[np.float32]:
        """See `Senders.shown`."""
        steps = self._shown[name]
        return values_of(steps, np.zeros(steps.shape[1:]), self._tensors[name])

    def read(self, name: str, users: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `Senders.read`."""
        version, tensor = self._version.kept[name], self._tensors[name]
        found = np.empty((len(users), *version.shape), dtype=np.float32)
        for place, user in enumerate(users):
            steps = self._parts(self._clients[user])[name].reshape(tensor.shape)
            found[place] = values_of(steps[: self._n_active], version, tensor)
        return found

    def write(self, name: str, table_of: NDArray[np.int64], tables: NDArray[np.float32]) -> None:
        """See `Senders.write`."""
        place = self._received.index(name)
        self.keep(
            (self._clients[user], place, tables[table_of[user]].astype("<f4", copy=False).tobytes())
            for user in np.nonzero((table_of >= 0) & (table_of < len(tables)))[0]
        )

    def keep(self, files: Iterable[tuple[ClientId, int, bytes]]) -> None:
        """Write what clients receive.

        Args:
            files: a client, the place of a parameter and its values, which are empty if the client
                keeps its own.
        """

        def write(client_id: ClientId, place: int, values: bytes) -> None:
            name = f"{own_models_name(self._round.number, client_id)}-{place}"
            self._run.store.spool.write(name, blake3(values).digest() + values)
            self.written.add((client_id, place))

        # A disk makes many files durable at once in little more time than one.
        left = iter(files)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while some := list(islice(left, _AT_ONCE)):
                list(pool.map(write, *zip(*some, strict=True)))
