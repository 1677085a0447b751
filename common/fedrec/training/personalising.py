"""Carry out a rule that reads each update: from all users' tables to a model for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import UpdateTensor
from fedrec.algorithms.individual import UserUpdates
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.model.blocked_table import BLOCK_BYTES
from fedrec.model.new_table import NewTable
from fedrec.model.state import PrivateState, SharedState
from fedrec.model.tables import TableRoom
from fedrec.training.server_half import ServerHalf


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


def sent_table(
    own: NDArray[np.float32], version: NDArray[np.float64], tensor: UpdateTensor
) -> NDArray[np.float32]:
    """Return users' tables as a server reads them from their updates.

    An update is a change from the version, clipped and rounded to the grid, as in any sum.

    Args:
        own: (n_users, n_active, ...).
        version: (n_active, ...).
    """
    steps = own - version.astype(np.float32)
    steps *= np.float32(1.0 / tensor.step)
    np.rint(steps, out=steps)
    np.clip(steps, -tensor.bound, tensor.bound, out=steps)
    return (version + steps.astype(np.float64) * tensor.step).astype(np.float32)


class _Senders:
    """The users of all parties that trained, in the order of their identities."""

    def __init__(
        self, parties: Sequence[TrainedUsers], server: ServerHalf, version: SharedState
    ) -> None:
        algorithm = server.algorithm
        assert isinstance(algorithm, TrainedAlgorithm)
        self._parties, self._version = parties, version
        self._own = algorithm.sent_from
        self._tensors = {tensor.name: tensor for tensor in algorithm.tensors}
        self.active = server.active_items(version)
        self._whole = len(self.active) == server.n_items
        rows = [np.nonzero(party.trained)[0] for party in parties]
        party = np.repeat(np.arange(len(parties)), [len(own) for own in rows])
        keys = np.concatenate([one.user_keys[own] for one, own in zip(parties, rows, strict=True)])
        order = np.argsort(keys)
        self.keys, self.party = keys[order], party[order]
        self.row = np.concatenate(rows)[order]

    @property
    def samples(self) -> NDArray[np.int64]:
        """The senders' numbers of training items."""
        found = np.zeros(len(self.keys), dtype=np.int64)
        for number, party in enumerate(self._parties):
            mine = self.party == number
            found[mine] = party.samples[self.row[mine]]
        return found

    def shown(self, name: str) -> NDArray[np.float32]:
        """Return all senders' values of a parameter that the server reads, (n_users, ...)."""
        tables = [party.private.tensors[name] for party in self._parties]
        found = np.empty((len(self.keys), *tables[0].shape[1:]), dtype=np.float32)
        for number, table in enumerate(tables):
            mine = self.party == number
            found[mine] = table[self.row[mine]]
        return found

    def read(self, name: str, users: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the tables that some senders sent for a shared one, (n, n_active, ...)."""
        version, tensor = self._version.kept[name], self._tensors[name]
        found = np.empty((len(users), *version.shape), dtype=np.float32)
        at_once = max(1, BLOCK_BYTES // max(1, version.nbytes))
        for number, party in enumerate(self._parties):
            mine = np.nonzero(self.party[users] == number)[0]
            table = party.private.tensors[self._own[name]]
            for begin in range(0, len(mine), at_once):
                some = mine[begin : begin + at_once]
                own = table[self.row[users[some]]]
                own = own if self._whole else own[:, self.active]
                found[some] = sent_table(own, version, tensor)
        return found

    def write(
        self,
        name: str,
        table_of: NDArray[np.int64],
        tables: NDArray[np.floating],
        new: Sequence[Mapping[str, NewTable]],
    ) -> None:
        """Write the tables that some senders receive.

        Args:
            table_of: the position of each sender's table in `tables`. Others are not written.
            tables: (n_tables, n_active, ...).
        """
        at_once = max(1, BLOCK_BYTES // max(1, tables[:1].nbytes))
        for number, party in enumerate(self._parties):
            inside = (table_of >= 0) & (table_of < len(tables)) & (self.party == number)
            users = np.nonzero(inside)[0]
            for begin in range(0, len(users), at_once):
                some = users[begin : begin + at_once]
                rows, table = self.row[some], tables[table_of[some]].astype(np.float32, copy=False)
                if not self._whole:
                    whole = party.private.tensors[name][rows]
                    whole[:, self.active] = table
                    table = whole
                new[number][name].write(rows, table)


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
    before = server.apart(before)
    senders = _Senders(parties, server, before)
    if not len(senders.keys):
        return after, [party.private for party in parties]
    updates = UserUpdates(
        before.part(),
        active=senders.active,
        user_keys=senders.keys,
        samples=senders.samples,
        number=number,
        read=senders.read,
        shown=senders.shown,
    )
    found = server.algorithm.personalise(updates)
    if found.shared:
        after = server.apart(after)
        kept = after.part().with_tensors(**found.shared)
        after = after.with_part(kept)
    new = [party.room.new(len(party.user_keys), party.private.widths()) for party in parties]
    for name, mixture in found.own.items():
        table_of = np.arange(len(updates)) if mixture.table_of is None else mixture.table_of
        for part in updates.parts(mixture.of, len(mixture.weights)):
            tables = updates.mixed(mixture.of, mixture.weights[part])
            senders.write(name, table_of - part.start, tables, new)
    states = [
        PrivateState.of(
            {
                name: made[name].finish(table) if name in found.own else table
                for name, table in party.private.tensors.items()
            }
        )
        for party, made in zip(parties, new, strict=True)
    ]
    return after, states
