"""Carry out a rule that reads each update: from all users' tables to a model for each of them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from fedrec.algorithms.declarations import TRAINING_ITEMS, USER_KEY, UpdateTensor
from fedrec.algorithms.individual import UserUpdates
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.data.splits import UserSplit
from fedrec.errors import ProtocolError
from fedrec.model.blocked_table import BLOCK_BYTES
from fedrec.model.state import PrivateState, SharedState
from fedrec.model.tables import TableRoom
from fedrec.model.tensor_file import file_parts
from fedrec.plan.travelling_rows import OwnRows
from fedrec.training.server_half import ServerHalf

_LENGTH_BYTES = 8


class Senders(ABC):
    """The users that sent a table in a round, in any order.

    Attributes:
        keys: their identities (`UserSplit.user_keys`), int64 (n_users,).
        samples: their numbers of training items, int64 (n_users,), or 0 if the algorithm does not
            read them.
    """

    keys: NDArray[np.int64]
    samples: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.keys)

    @abstractmethod
    def shown(self, name: str) -> NDArray[np.float32]:
        """Return all senders' values of a parameter that the server reads, (n_users, ...)."""

    @abstractmethod
    def read(self, name: str, users: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the tables that some senders sent for a shared one, (n, n_active, ...)."""

    @abstractmethod
    def write(self, name: str, table_of: NDArray[np.int64], tables: NDArray[np.float32]) -> None:
        """Write tables that some senders receive.

        Args:
            name: the parameter that they receive.
            table_of: the position of each sender's table in `tables`. Others are not written.
            tables: (n_tables, n_active, ...).
        """


def personalise(
    server: ServerHalf, number: int, before: SharedState, senders: Senders
) -> dict[str, NDArray[np.float64]]:
    """Write what each sender receives, and return the new values of shared tensors.

    The same tables give the same bits in any process on processors of one kind: they are read in
    the order of the users' identities, and multiplied in pieces of a fixed size, each by one
    thread. There are as many threads as NumPy would use.

    Args:
        number: the number of the round.
        before: the version that the senders started from.
    """
    # Only servers and simulations have it.
    from threadpoolctl import threadpool_info, threadpool_limits

    if not len(senders):
        return {}
    before = server.apart(before)
    pools = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    with threadpool_limits(1, user_api="blas"):
        order = np.argsort(senders.keys, kind="stable")
        updates = UserUpdates(
            before.part(),
            active=server.active_items(before),
            user_keys=senders.keys[order],
            samples=senders.samples[order],
            number=number,
            read=lambda name, users: senders.read(name, order[users]),
            shown=lambda name: senders.shown(name)[order],
            threads=max(pools, default=1),
        )
        found = server.algorithm.personalise(updates)
        table_of = np.empty(len(order), dtype=np.int64)
        for name, mixture in found.own.items():
            own = np.arange(len(order)) if mixture.table_of is None else mixture.table_of
            table_of[order] = own
            for part in updates.parts(mixture.of, len(mixture.weights)):
                tables = updates.mixed(mixture.of, mixture.weights[part])
                senders.write(name, table_of - part.start, tables.astype(np.float32, copy=False))
    return dict(found.shared)


def with_shared(
    server: ServerHalf, after: SharedState, shared: Mapping[str, NDArray[np.float64]]
) -> SharedState:
    """Return the version after a round, with the values that `personalise` returned."""
    if not shared:
        return after
    after = server.apart(after)
    return after.with_part(after.part().with_tensors(**shared))


def publication(total: bytes, shared: Mapping[str, NDArray[np.float64]]) -> bytes:
    """Return a round's sum, followed by the values of shared tensors that replace those of it."""
    content = b"".join(file_parts(shared))
    return total + content + len(content).to_bytes(_LENGTH_BYTES, "little")


def parts_of_publication(
    server: ServerHalf, before: SharedState, published: bytes
) -> tuple[bytes, dict[str, NDArray[np.float64]]]:
    """Return the sum and the values in a `publication`.

    Args:
        before: the version that the round started from.

    Raises:
        ProtocolError: it has other tensors or shapes than the version.
    """
    total = sum_of_publication(published)
    kept = server.apart(before).kept
    computed = [entry.name for entry in server.algorithm.parameters if entry.computed]
    expected = {name: (kept[name].dtype, kept[name].shape) for name in computed}
    return total, _tensors(published[len(total) : -_LENGTH_BYTES], expected)


def sum_of_publication(published: bytes) -> bytes:
    """Return the sum in a `publication`.

    Raises:
        ProtocolError: it has no values besides.
    """
    length = int.from_bytes(published[-_LENGTH_BYTES:], "little")
    end = len(published) - _LENGTH_BYTES
    if not 0 < length <= end:
        raise ProtocolError("A published round ends before the values that the server computed.")
    return published[: end - length]


def _tensors(
    data: bytes, expected: Mapping[str, tuple[np.dtype[np.floating], tuple[int, ...]]]
) -> dict[str, NDArray[np.float64]]:
    try:
        found = load(data)
    except (SafetensorError, json.JSONDecodeError, KeyError) as error:
        # A type without a counterpart in NumPy is a KeyError.
        raise ProtocolError(f"The values that the server computed are damaged: {error}.") from None
    for name, values in found.items():
        wanted = expected.get(name)
        if wanted != (values.dtype, values.shape) or not np.isfinite(values).all():
            raise ProtocolError(
                f"The server computed {name} as {values.dtype} {values.shape}, but finite values "
                f"of {wanted or 'no such tensor'} were expected."
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedUsers:
    """A party's users after they trained.

    Attributes:
        user_keys: the identities of all users of the party, int64 (n_users,).
        samples: their numbers of training items, int64 (n_users,).
        trained: those that trained in the round, bool (n_users,). The others sent nothing.
        private: all users' tables after training.
        room: the memory or files of private tables.
    """

    user_keys: NDArray[np.int64]
    samples: NDArray[np.int64]
    trained: NDArray[np.bool_]
    private: PrivateState
    room: TableRoom


def grid_steps(
    own: NDArray[np.float32], version: NDArray[np.float64], tensor: UpdateTensor
) -> NDArray[np.float32]:
    """Return users' values as the change from the version in an update: clipped, in grid steps.

    Args:
        own: (n_users, ...).
    """
    steps = own - version.astype(np.float32)
    steps *= np.float32(1.0 / tensor.step)
    np.rint(steps, out=steps)
    return np.clip(steps, -tensor.bound, tensor.bound, out=steps)


def values_of(
    steps: NDArray[np.number], version: NDArray[np.float64], tensor: UpdateTensor
) -> NDArray[np.float32]:
    """Return users' values as a server reads them from their updates.

    Only sums are checked before, and a sum has room for a value that no single user may send.
    """
    within = steps.astype(np.float64)
    np.clip(within, -tensor.bound, tensor.bound, out=within)
    within *= tensor.step
    within += version
    return within.astype(np.float32)


def sent_table(
    own: NDArray[np.float32], version: NDArray[np.float64], tensor: UpdateTensor
) -> NDArray[np.float32]:
    """Return users' tables as a server reads them from their updates.

    Args:
        own: (n_users, n_active, ...).
        version: (n_active, ...).
    """
    return values_of(grid_steps(own, version, tensor), version, tensor)


def shown_changes(
    algorithm: TrainedAlgorithm,
    users: UserSplit,
    private: PrivateState,
    trained: NDArray[np.bool_],
    own_rows: OwnRows = None,
) -> dict[str, NDArray[np.int64]]:
    """Return the tensors of a party's update that only show users, in grid steps.

    Args:
        trained: the users that trained, bool (n_users,).
        own_rows: the rows whose items count as training items.
    """
    found, rows = {}, np.nonzero(trained)[0]
    for tensor in algorithm.tensors:
        if tensor.name in private.tensors:
            values = private.tensors[tensor.name][rows]
            steps = grid_steps(values, np.zeros(values.shape[1:]), tensor)
            found[tensor.name] = steps.astype(np.int64).sum(0)
        elif tensor.name == TRAINING_ITEMS:
            samples = (
                np.diff(users.train_indptr) if own_rows is None else users.counts_among(own_rows)
            )
            found[tensor.name] = np.minimum(samples[rows], tensor.bound).sum(keepdims=True)
        elif tensor.name == USER_KEY:
            words = users.user_keys()[rows].astype("<i8").view("<u2").reshape(-1, *tensor.shape)
            found[tensor.name] = words.astype(np.int64).sum(0)
    return found


class _PartysUsers(Senders):
    """The users of all parties of one process that trained."""

    def __init__(
        self, parties: Sequence[TrainedUsers], server: ServerHalf, version: SharedState
    ) -> None:
        algorithm = server.algorithm
        assert isinstance(algorithm, TrainedAlgorithm)
        self._parties, self._version = parties, version
        self._own = algorithm.sent.sources
        self._tensors = {tensor.name: tensor for tensor in algorithm.tensors}
        self._active = server.active_items(version)
        self._whole = len(self._active) == server.n_items
        rows = [np.nonzero(party.trained)[0] for party in parties]
        self._party = np.repeat(np.arange(len(parties)), [len(own) for own in rows])
        self._row = np.concatenate(rows)
        parts = list(zip(parties, rows, strict=True))
        self.keys = np.concatenate([party.user_keys[own] for party, own in parts])
        samples = np.concatenate([party.samples[own] for party, own in parts])
        self.samples = samples * algorithm.reads_samples
        self._new = [
            party.room.new(len(party.samples), party.private.widths()) for party in parties
        ]
        self._written: set[str] = set()

    def shown(self, name: str) -> NDArray[np.float32]:
        """See `Senders.shown`."""
        tables = [party.private.tensors[name] for party in self._parties]
        found = np.empty((len(self), *tables[0].shape[1:]), dtype=np.float32)
        for number, table in enumerate(tables):
            mine = self._party == number
            found[mine] = table[self._row[mine]]
        return sent_table(found, np.zeros(found.shape[1:]), self._tensors[name])

    def read(self, name: str, users: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `Senders.read`."""
        version, tensor = self._version.kept[name], self._tensors[name]
        found = np.empty((len(users), *version.shape), dtype=np.float32)
        at_once = max(1, BLOCK_BYTES // max(1, version.nbytes))
        for number, party in enumerate(self._parties):
            mine = np.nonzero(self._party[users] == number)[0]
            table = party.private.tensors[self._own[name]]
            for begin in range(0, len(mine), at_once):
                some = mine[begin : begin + at_once]
                own = table[self._row[users[some]]]
                own = own if self._whole else own[:, self._active]
                found[some] = sent_table(own, version, tensor)
        return found

    def write(self, name: str, table_of: NDArray[np.int64], tables: NDArray[np.float32]) -> None:
        """See `Senders.write`."""
        self._written.add(name)
        at_once = max(1, BLOCK_BYTES // max(1, tables[:1].nbytes))
        for number, party in enumerate(self._parties):
            inside = (table_of >= 0) & (table_of < len(tables)) & (self._party == number)
            users = np.nonzero(inside)[0]
            for begin in range(0, len(users), at_once):
                some = users[begin : begin + at_once]
                rows, table = self._row[some], tables[table_of[some]]
                if not self._whole:
                    table = among_all(party.private.tensors[name][rows], self._active, table)
                self._new[number][name].write(rows, table)

    def states(self) -> list[PrivateState]:
        """Return the parties' private states with the tables that were written."""
        return [
            PrivateState.of(
                {
                    name: new[name].finish(table) if name in self._written else table
                    for name, table in party.private.tensors.items()
                }
            )
            for party, new in zip(self._parties, self._new, strict=True)
        ]


def among_all(
    whole: NDArray[np.float32], active: NDArray[np.int64], table: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return users' tables over the catalogue with new rows of the active items, in place.

    Args:
        whole: (n_users, n_items, ...).
        table: (n_users, n_active, ...).
    """
    whole[:, active] = table
    return whole


def personalised(
    server: ServerHalf,
    number: int,
    before: SharedState,
    after: SharedState,
    parties: Sequence[TrainedUsers],
) -> tuple[SharedState, list[PrivateState]]:
    """Return the version and all parties' private state after the server's rule.

    Args:
        number: the number of the round.
        before: the version that the users started from.
        after: the version that follows from their sum.
    """
    senders = _PartysUsers(parties, server, server.apart(before))
    shared = personalise(server, number, before, senders)
    return with_shared(server, after, shared), senders.states()
